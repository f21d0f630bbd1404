"""kvpress's presses on captured keys, values and queries, and in torch methods that it lacks: what
Cairn's selections are compared with.

A method is run(layers, ratio) -> masks [layers, kv_heads, tokens] of the rows that stay, with the
layers of one text as Captured and the share of rows that goes. Presses run without hooks: they get
what a hook would give them. kvpress 0.5.5.
"""

import functools
import math
import types

import torch
import torch.nn.functional as F

from kvpress.presses import expected_attention_press, snapkv_press


class Captured:
    """One attention layer after a prefill, with what presses read of a module.

    k, v [kv_heads, tokens, dim], q [heads, tokens, dim], k and q after RoPE; projection [hidden,
    heads * dim]; cos and sin of RoPE [positions, dim].
    """

    def __init__(self, index, layers, k, v, q, projection, cos, sin):
        self.k, self.v, self.q = k, v, q
        self.cos, self.sin = cos, sin
        self.kv_heads, self.tokens, self.head_dim = k.shape
        self.heads = q.shape[0]
        self.layer_idx = index
        self.num_key_value_groups = self.heads // self.kv_heads
        self.config = types.SimpleNamespace(
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden_size=projection.shape[0],
            num_hidden_layers=layers,
            _attn_implementation="sdpa",
        )
        self.o_proj = types.SimpleNamespace(weight=projection)
        self.masked_key_indices = None

    def rotary_emb(self, _, positions):
        return self.cos[positions], self.sin[positions]

    # Rows of the hidden state are their numbers: queries come from the capture.
    def hidden(self):
        return torch.arange(self.tokens, dtype=torch.float32).view(1, self.tokens, 1)

    def rotated_queries(self, hidden):
        return self.q[:, hidden[0, :, 0].long()][None]

    def plain_queries(self, hidden):
        rows = hidden[0, :, 0].long()
        q, half = self.q[:, rows], self.head_dim // 2
        turned = torch.cat((q[..., half:], -q[..., :half]), -1)
        return (q * self.cos[rows] + turned * self.sin[rows])[None]

    def by_group(self, x):
        return x.view(self.kv_heads, self.num_key_value_groups, *x.shape[1:])

    def attention(self, begin, end):
        """Causal softmax of the queries `begin` to `end`: [heads, end - begin, end]."""
        k = self.k[:, :end].repeat_interleave(self.num_key_value_groups, 0)
        logits = self.q[:, begin:end] @ k.transpose(1, 2) / math.sqrt(self.head_dim)
        future = torch.arange(end)[None, :] > torch.arange(begin, end)[:, None]
        return logits.masked_fill_(future, -math.inf).softmax(-1)

    def last_attention(self, rows):
        """Causal softmax of the last `rows` queries: [heads, rows, tokens]."""
        return self.attention(self.tokens - rows, self.tokens)

    @functools.cached_property
    def attention_sums(self):
        """What each row gets from all queries: [heads, tokens]."""
        sums = torch.zeros(self.heads, self.tokens)
        for begin in range(0, self.tokens, 128):
            end = min(begin + 128, self.tokens)
            sums[:, :end] += self.attention(begin, end).sum(1)
        return sums

    @functools.cached_property
    def projected_norm(self):
        """L1 norm of each value after the output projection, mean over the group: [kv_heads,
        tokens]."""
        w = self.o_proj.weight.T.reshape(self.heads, self.head_dim, -1)
        v = self.v.repeat_interleave(self.num_key_value_groups, 0)
        return self.by_group((v @ w).abs().sum(-1)).mean(1)


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


# --- Definitions of what kvpress has not, from the papers' formulas ---


def kept_rows(layer, ratio):
    return max(1, int(layer.tokens * (1 - ratio)))


def top(scores, count, forced=None):
    """Marks of the `count` largest of a flat tensor, the forced ones among them."""
    scores = scores.flatten().clone()
    if forced is not None:
        scores[forced.flatten()] = math.inf
    marks = torch.zeros(scores.numel(), dtype=torch.bool)
    marks[torch.sort(scores, descending=True, stable=True).indices[:count]] = True
    return marks


def defensive_layer(layer, ratio, window, pool, mass):
    """Scores and forced marks [kv_heads, tokens]; the window is forced."""
    rest = layer.tokens - window
    a = layer.last_attention(window)[..., :rest]
    pooled = F.avg_pool1d(a, 2 * pool + 1, 1, pool)
    pooled = pooled * (a.sum(-1, keepdim=True) / pooled.sum(-1, keepdim=True))
    s = layer.by_group(pooled).amax(dim=(1, 2))
    s = torch.maximum(s, s.mean(-1, keepdim=True))
    norm = layer.projected_norm
    s = s * (norm / norm.sum(0, keepdim=True))[:, :rest]
    mean = layer.by_group(a).mean(dim=(1, 2))
    share = 1 - mean.sum(-1)
    forced = torch.zeros(layer.kv_heads, layer.tokens, dtype=torch.bool)
    forced[:, rest:] = True
    for h in range(layer.kv_heads):
        order = torch.sort(mean[h], descending=True, stable=True).indices
        total = mean[h][order].cumsum(0)
        reach = torch.nonzero(total >= mass - share[h])
        count = int(reach[0]) if len(reach) else 0
        forced[h, order[: min(count, kept_rows(layer, ratio) - window)]] = True
    return F.pad(s, (0, window)), forced


def defensive(window, pool, mass, whole):
    """DefensiveKV; `whole`: the budget is one for all layers."""

    def run(layers, ratio):
        scores, forced = zip(
            *(defensive_layer(layer, ratio, window, pool, mass) for layer in layers)
        )
        per_layer = layers[0].kv_heads * kept_rows(layers[0], ratio)
        if whole:
            return top(torch.stack(scores), per_layer * len(layers), torch.stack(forced)).view(
                len(layers), *scores[0].shape
            )
        return torch.stack([top(s, per_layer, f).view(s.shape) for s, f in zip(scores, forced)])

    return run


def h2o(recent_share):
    """Sums of the causal softmax over all rows; `recent_share` of the rows are the most recent
    ones."""

    def run(layers, ratio):
        masks = []
        for layer in layers:
            n = kept_rows(layer, ratio)
            recent = int(n * recent_share)
            rest = layer.tokens - recent
            s = layer.by_group(layer.attention_sums).mean(1)
            masks.append(
                torch.stack(
                    [
                        torch.cat(
                            (top(head[:rest], n - recent), torch.ones(recent, dtype=torch.bool))
                        )
                        for head in s
                    ]
                )
            )
        return torch.stack(masks)

    return run
