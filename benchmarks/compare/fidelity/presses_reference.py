"""kvpress's presses on captured keys, values and queries, which Cairn's selections are compared
with. They run without hooks and get what a hook would give them. kvpress 0.5.5.

captured.py says what a method is; definitions.py and definitions_of_windows.py have those that
kvpress lacks.
"""

import torch
from captured import Captured, kept_rows, top

from kvpress import PyramidKVPress
from kvpress.presses import expected_attention_press, snapkv_press


def queries_of_capture(module_of_kvpress, queries):
    """Lets presses of that module of kvpress take a Captured layer's queries; other layers compute
    theirs."""
    compute = module_of_kvpress.get_prerope_query_states
    module_of_kvpress.get_prerope_query_states = lambda layer, hidden: (
        queries(layer, hidden) if isinstance(layer, Captured) else compute(layer, hidden)
    )


# The window's queries are captured after RoPE, so the presses rotate them by nothing; the expected
# ones are turned back.
queries_of_capture(snapkv_press, Captured.rotated_queries)
queries_of_capture(expected_attention_press, Captured.plain_queries)


def signatures(rows):
    """A number for each row of bits, [..., dim] -> [...]: equal rows have equal ones."""
    factors = torch.randint(
        -(2**62), 2**62, (rows.shape[-1],), generator=torch.Generator().manual_seed(1)
    )
    return (rows.contiguous().view(torch.int32) * factors).sum(-1)


def kept_by(layer, keys):
    """Mask [kv_heads, tokens] of the rows whose keys [kv_heads, kept, dim] came back, in any order;
    no two rows have the same key."""
    kept = torch.stack([torch.isin(a, b) for a, b in zip(signatures(layer.k), signatures(keys))])
    assert (kept.sum(-1) == keys.shape[1]).all()
    return kept


def all_but(masked, layer):
    """Mask [kv_heads, tokens] without the indices that kvpress's ragged presses leave at a
    module."""
    kept = torch.ones(layer.kv_heads, layer.tokens, dtype=torch.bool)
    _, heads, rows = masked
    kept[heads, rows] = False
    return kept


def with_kvpress(press):
    def run(layers, ratio):
        masks = []
        for layer in layers:
            press.compression_ratio = ratio
            layer.masked_key_indices = None
            no_turn = (
                torch.ones(1, layer.tokens, layer.head_dim),
                torch.zeros(1, layer.tokens, layer.head_dim),
            )
            keys, _ = press.compress(
                layer,
                layer.hidden(),
                layer.k[None],
                layer.v[None],
                None,
                {"position_embeddings": no_turn},
            )
            masks.append(
                kept_by(layer, keys[0])
                if layer.masked_key_indices is None
                else all_but(layer.masked_key_indices, layer)
            )
        return torch.stack(masks)

    return run


def ranked_by_kvpress(press):
    """As with_kvpress, but of equal scores the earlier row is taken: torch leaves that open."""

    def run(layers, ratio):
        press.compression_ratio = ratio
        masks = []
        for layer in layers:
            scores = press.score(layer, layer.hidden(), layer.k[None], layer.v[None], None, {})[0]
            masks.append(torch.stack([top(s, kept_rows(layer, ratio)) for s in scores]))
        return torch.stack(masks)

    return run


def in_pyramid(window, press):
    """A press inside the layer budgets of kvpress's PyramidKV."""

    def run(layers, ratio):
        pyramid, masks = PyramidKVPress(compression_ratio=ratio, window_size=window), []
        for layer in layers:
            rows = pyramid.get_layer_budget(layer, layer.tokens)
            masks.append(with_kvpress(press)([layer], 1 - (rows + 0.5) / layer.tokens)[0])
        return torch.stack(masks)

    return run
