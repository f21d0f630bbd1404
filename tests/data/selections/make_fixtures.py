#!/usr/bin/env python3
"""Keys, values and queries of SmolLM2, and what kvpress and independent definitions keep of them.

    pip install torch kvpress==0.5.5 gguf
    python3 tests/data/selections/make_fixtures.py SmolLM2-135M-Instruct.Q4_1.gguf

Writes kv.f16, queries.f16, projection.f16 (inputs), kept.bin (one mask per case, layer and KV head) and fixtures.inc, the
list of cases for the C++ test. Everything that a method reads is rounded to binary16 before it is used, so that the C++
side sees the same numbers. The three layers below stand for a whole model of three layers.

kvpress's presses are called on the captured tensors, without hooks. Where it has no press, the method is defined here, from
the papers' formulas, in plain torch; those cases are marked "own".
"""

import json
import math
import pathlib
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "benchmarks/compare/worker"))
from torch_bench import Llama  # noqa: E402  (needs the path above)

import kvpress  # noqa: E402
from kvpress.presses import expected_attention_press, snapkv_press  # noqa: E402

LAYERS = (3, 15, 27)
FULL = 1             # Index of the layer whose queries are kept for all rows.
TOKENS = 512
WINDOW = 64          # Rows of queries kept in the other layers.
HIDDEN = 192         # Columns of the output projection that stand for the hidden size.
HEADS, KV_HEADS, DIM = 9, 3, 64
GROUP = HEADS // KV_HEADS


def capture(model, ids):
    """Per layer of LAYERS: k, v [KV_HEADS, TOKENS, DIM], q [HEADS, TOKENS, DIM], after RoPE, and the projection
    [HEADS * DIM, HIDDEN], all rounded to binary16."""
    rotated = []
    rotate = model.rotate

    def spy(x, start):
        out = rotate(x, start)
        rotated.append(out)
        return out

    model.rotate = spy
    cache = model.cache(TOKENS)
    model.forward(ids, cache, 0)
    model.rotate = rotate
    half = lambda x: x.half().float()
    out = []
    for layer in LAYERS:
        k, q = rotated[2 * layer], rotated[2 * layer + 1]
        projection = model.w[f"blk.{layer}.attn_output.weight"].T[:, :HIDDEN].contiguous()
        out.append((half(k), half(cache[layer, 1]), half(q), half(projection)))
    return out


class Module:
    """What the presses read of an attention layer."""

    def __init__(self, index, tensors, model):
        self.k, self.v, self.q, projection = tensors
        self.layer_idx = index
        self.head_dim = DIM
        self.num_key_value_groups = GROUP
        self.config = types.SimpleNamespace(
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM, hidden_size=HIDDEN,
            num_hidden_layers=len(LAYERS), _attn_implementation="sdpa")
        self.o_proj = types.SimpleNamespace(weight=projection.T)
        self.model = model
        self.masked_key_indices = None

    def rotary_emb(self, _, positions):
        return self.model.cos[positions], self.model.sin[positions]

    # Rows of the hidden state are their numbers: queries come from the capture.
    def hidden(self):
        return torch.arange(TOKENS, dtype=torch.float32).view(1, TOKENS, 1)

    def rotated_queries(self, hidden):
        return self.q[:, hidden[0, :, 0].long()][None]

    def plain_queries(self, hidden):
        rows = hidden[0, :, 0].long()
        q = self.q[:, rows]
        turned = torch.cat((q[..., DIM // 2:], -q[..., :DIM // 2]), -1)
        return (q * self.model.cos[rows] + turned * self.model.sin[rows])[None]


# The window's queries are captured after RoPE, so the presses rotate them by nothing; the expected ones are turned back.
snapkv_press.get_prerope_query_states = lambda module, hidden: module.rotated_queries(hidden)
expected_attention_press.get_prerope_query_states = lambda module, hidden: module.plain_queries(hidden)


def with_kvpress(press):
    """Masks [layers, KV_HEADS, TOKENS]."""
    def run(modules, ratio):
        masks = []
        for module in modules:
            press.compression_ratio = ratio
            module.masked_key_indices = None
            no_turn = (torch.ones(1, TOKENS, DIM), torch.zeros(1, TOKENS, DIM))
            keys, _ = press.compress(module, module.hidden(), module.k[None], module.v[None], None,
                                     {"position_embeddings": no_turn})
            if module.masked_key_indices is None:
                # Kept keys come in any order; no two rows have the same key.
                kept = (keys[0, :, :, None] == module.k[:, None]).all(-1).any(1)
                assert int(kept.sum()) == keys.shape[1] * keys.shape[2]
            else:
                kept = torch.ones(KV_HEADS, TOKENS, dtype=torch.bool)
                _, heads, rows = module.masked_key_indices
                kept[heads, rows] = False
            masks.append(kept)
        return torch.stack(masks)
    return run


def ranked_by_kvpress(press):
    """As with_kvpress, but of equal scores the earlier row is taken: torch leaves that open."""
    def run(modules, ratio):
        press.compression_ratio = ratio
        masks = []
        for module in modules:
            scores = press.score(module, module.hidden(), module.k[None], module.v[None], None, {})[0]
            masks.append(torch.stack([top(s, kept_rows(ratio)) for s in scores]))
        return torch.stack(masks)
    return run


# --- Definitions of what kvpress has not ---

def attention(module, rows):
    """Causal softmax of the last `rows` queries: [HEADS, rows, TOKENS]."""
    k = module.k.repeat_interleave(GROUP, 0)
    logits = module.q[:, TOKENS - rows:] @ k.transpose(1, 2) / math.sqrt(DIM)
    future = torch.arange(TOKENS)[None, :] > torch.arange(TOKENS - rows, TOKENS)[:, None]
    return logits.masked_fill(future, -math.inf).softmax(-1)


def by_group(x):
    return x.view(KV_HEADS, GROUP, *x.shape[1:])


def kept_rows(ratio):
    return max(1, int(TOKENS * (1 - ratio)))


def top(scores, count, forced=None):
    """Marks of the `count` largest of a flat tensor, the forced ones among them."""
    scores = scores.flatten().clone()
    if forced is not None:
        scores[forced.flatten()] = math.inf
    marks = torch.zeros(scores.numel(), dtype=torch.bool)
    marks[torch.sort(scores, descending=True, stable=True).indices[:count]] = True
    return marks


def projected_norm(module):
    w = module.o_proj.weight.T.reshape(HEADS, DIM, HIDDEN)
    v = module.v.repeat_interleave(GROUP, 0)
    return by_group((v @ w).abs().sum(-1)).mean(1)


def defensive_layer(module, ratio, window, pool, mass):
    """Scores and forced marks [KV_HEADS, TOKENS]; the window is forced."""
    p = attention(module, window)
    a = p[..., :TOKENS - window]
    pooled = F.avg_pool1d(a, 2 * pool + 1, 1, pool)
    pooled = pooled * (a.sum(-1, keepdim=True) / pooled.sum(-1, keepdim=True))
    s = by_group(pooled).amax(dim=(1, 2))
    s = torch.maximum(s, s.mean(-1, keepdim=True))
    norm = projected_norm(module)
    s = s * (norm / norm.sum(0, keepdim=True))[:, :TOKENS - window]
    mean = by_group(a).mean(dim=(1, 2))
    share = 1 - mean.sum(-1)
    forced = torch.zeros(KV_HEADS, TOKENS, dtype=torch.bool)
    forced[:, TOKENS - window:] = True
    for h in range(KV_HEADS):
        order = torch.sort(mean[h], descending=True, stable=True).indices
        total = mean[h][order].cumsum(0)
        reach = torch.nonzero(total >= mass - share[h])
        count = int(reach[0]) if len(reach) else 0
        forced[h, order[:min(count, kept_rows(ratio) - window)]] = True
    return F.pad(s, (0, window)), forced


def defensive(window, pool, mass, whole):
    def run(modules, ratio):
        scores, forced = zip(*(defensive_layer(m, ratio, window, pool, mass) for m in modules))
        per_layer = KV_HEADS * kept_rows(ratio)
        if whole:
            marks = top(torch.stack(scores), per_layer * len(modules), torch.stack(forced))
            return marks.view(len(modules), KV_HEADS, TOKENS)
        return torch.stack([top(s, per_layer, f).view(KV_HEADS, TOKENS) for s, f in zip(scores, forced)])
    return run


def h2o(recent_share):
    """Sums of the causal softmax over all rows; `recent_share` of the rows are the most recent ones."""
    def run(modules, ratio):
        n = kept_rows(ratio)
        recent = int(n * recent_share)
        masks = torch.zeros(len(modules), KV_HEADS, TOKENS, dtype=torch.bool)
        s = by_group(attention(modules[FULL], TOKENS).sum(1)).mean(1)
        for h in range(KV_HEADS):
            masks[FULL, h, :TOKENS - recent] = top(s[h, :TOKENS - recent], n - recent)
            masks[FULL, h, TOKENS - recent:] = True
        return masks
    return run


def cake(window, pool, gamma, tau_space, tau_time):
    def run(modules, ratio):
        scores, taste = [], []
        for module in modules:
            a = attention(module, window)[..., :TOKENS - window]
            s = a.mean(1) + gamma * a.var(1)
            scores.append(by_group(F.avg_pool1d(s, 2 * pool + 1, 1, pool)).mean(1))
            entropy = -(a * a.clamp_min(1e-37).log()).sum().double()
            taste.append(entropy ** (1 / tau_space) * a.var(1).sum().double() ** (1 / tau_time))
        taste = torch.stack(taste)
        rest = TOKENS - window
        total = (kept_rows(ratio) - window) * len(modules)
        # Floors first; then what a clamp at the top or rounding left, one row a layer in turn.
        budget = [min(rest, max(1, int(total * float(t / taste.sum())))) for t in taste]
        layer = 0
        while sum(budget) != total:
            step = 1 if sum(budget) < total else -1
            if 1 <= budget[layer] + step <= rest:
                budget[layer] += step
            layer = (layer + 1) % len(modules)
        masks = torch.ones(len(modules), KV_HEADS, TOKENS, dtype=torch.bool)
        for i, b in enumerate(budget):
            for h in range(KV_HEADS):
                masks[i, h, :rest] = top(scores[i][h], b)
        return masks
    return run


def pyramid_in_layers(press_of):
    """Ada-KV inside the layer budgets of PyramidKV."""
    def run(modules, ratio):
        masks = []
        for module in modules:
            pyramid = kvpress.PyramidKVPress(compression_ratio=ratio, window_size=8)
            n = pyramid.get_layer_budget(module, TOKENS)
            masks.append(with_kvpress(press_of())([module], 1 - (n + 0.5) / TOKENS)[0])
        return torch.stack(masks)
    return run


def chunk_reuse(press):
    def run(modules, ratio):
        masks = with_kvpress(press)(modules, ratio)
        for layer in range(1, len(modules), 2):
            masks[layer] = masks[layer - 1]
        return masks
    return run


def simlayer(sinks, recent):
    """The laziest layers keep sinks and recent rows, as many layers as the budget asks for."""
    def run(modules, ratio):
        layers = len(modules)
        lazy = []
        for module in modules:
            a = attention(module, 1).mean((0, 1))
            lazy.append(float(a[:sinks].sum() + a[TOKENS - recent:].sum()))
        total = layers * kept_rows(ratio)
        short = min(sinks + recent, kept_rows(ratio))
        full = (total - layers * short) // (TOKENS - short)
        spare = total - layers * short - full * (TOKENS - short)
        order = sorted(range(layers), key=lambda i: (lazy[i], i))
        masks = torch.ones(layers, KV_HEADS, TOKENS, dtype=torch.bool)
        for rank, layer in enumerate(order):
            if rank < full:
                continue
            n = short + (spare if rank == full else 0)
            masks[layer, :, sinks:TOKENS - (n - sinks)] = False
        return masks
    return run


def head_classes(sinks, recent):
    """Heads of the largest scores keep all; the test gives the C++ side the same scores (ScoresFor in case.h)."""
    def run(modules, ratio):
        heads = len(modules) * KV_HEADS
        scores = [(i * 7 + 11) % 12 for i in range(heads)]
        few = min(sinks + recent, kept_rows(ratio))
        left = heads * kept_rows(ratio)
        masks = torch.zeros(heads, TOKENS, dtype=torch.bool)
        for head in sorted(range(heads), key=lambda i: (-scores[i], i)):
            # All if the heads after it still get their few, else what they leave.
            later = int((~masks.any(-1)).sum()) - 1
            n = min(TOKENS, left - few * later)
            masks[head, :sinks] = True
            masks[head, TOKENS - (n - sinks):] = True
            left -= n
        return masks.view(len(modules), KV_HEADS, TOKENS)
    return run


def cases():
    """(source, name, parameters in the catalogue's order, layers compared, ratio, masks)."""
    snap = lambda **o: kvpress.SnapKVPress(**o)
    every = 0b111
    for keep in (750, 500, 200):
        yield "kvpress", "snapkv", [keep, 0, 64, 2, 0], every, with_kvpress(snap())
        yield "kvpress", "ada-snapkv", [keep, 0, 64, 2, 0, 200], every, with_kvpress(kvpress.AdaKVPress(snap()))
        yield "kvpress", "pyramidkv", [keep, 0, 8, 2, 0, 20], every, with_kvpress(kvpress.PyramidKVPress(window_size=8))
        yield "kvpress", "chunkkv", [keep, 0, 64, 2, 20, 1], every, with_kvpress(kvpress.ChunkKVPress(snap()))
        yield "kvpress", "criticalkv", [keep, 0, 16, 2, 500], every, with_kvpress(kvpress.CriticalKVPress(snap(window_size=16)))
        yield ("kvpress", "ada-criticalkv", [keep, 0, 16, 2, 200, 500], every,
               with_kvpress(kvpress.CriticalAdaKVPress(snap(window_size=16))))
        yield "kvpress", "knorm", [keep, 0], every, with_kvpress(kvpress.KnormPress())
        yield "kvpress", "keydiff", [keep, 0], every, with_kvpress(kvpress.KeyDiffPress())
        lag = 16 if keep == 200 else 64
        yield "kvpress", "lagkv", [keep, 4, lag], every, ranked_by_kvpress(kvpress.LagKVPress(lag_size=lag))
        yield "kvpress", "tova", [keep, 0], every, with_kvpress(kvpress.TOVAPress())
        yield "kvpress", "expected", [keep, 4, 512], 1 << FULL, with_kvpress(kvpress.ExpectedAttentionPress())
        yield ("kvpress", "ada-expected", [keep, 4, 512, 200], 1 << FULL,
               with_kvpress(kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(epsilon=1e-2))))
        yield "own", "defensive", [keep, 0, 32, 2, 900], every, defensive(32, 2, 0.9, False)
        yield "own", "layer-defensive", [keep, 0, 32, 2, 900], every, defensive(32, 2, 0.9, True)
        yield "own", "h2o", [keep, 0, 500], 1 << FULL, h2o(0.5)
        yield "own", "cake", [keep, 0, 32, 2, 200, 16, 6], every, cake(32, 2, 200, 1.6, 0.6)
        yield "own", "simlayer", [keep, 4, 64], every, simlayer(4, 64)
    yield "kvpress", "snapkv", [500, 0, 8, 0, 0], every, with_kvpress(snap(window_size=8, kernel_size=1))
    yield "kvpress", "snapkv", [300, 0, 33, 7, 0], every, with_kvpress(snap(window_size=33, kernel_size=15))
    yield "kvpress", "ada-snapkv", [300, 0, 16, 2, 0, 0], every, with_kvpress(
        kvpress.AdaKVPress(snap(window_size=16), alpha_safeguard=0))
    yield "kvpress", "pyramidkv", [200, 0, 64, 2, 0, 20], every, with_kvpress(kvpress.PyramidKVPress())
    yield "kvpress", "chunkkv", [500, 0, 32, 2, 10, 1], every, with_kvpress(kvpress.ChunkKVPress(snap(window_size=32), 10))
    yield "own", "chunkkv", [500, 0, 64, 2, 20, 2], every, chunk_reuse(kvpress.ChunkKVPress(snap()))
    yield ("own", "ada-pyramidkv", [500, 0, 8, 2, 0, 20, 200], every,
           pyramid_in_layers(lambda: kvpress.AdaKVPress(snap(window_size=8))))
    yield "kvpress", "lagkv", [500, 4, 128], every, ranked_by_kvpress(kvpress.LagKVPress())
    yield "kvpress", "lagkv", [500, 4, 300], every, ranked_by_kvpress(kvpress.LagKVPress(lag_size=300))
    for keep in (750, 500, 200):
        yield "own", "duo", [keep, 0, 4, 64], every, head_classes(4, 64)
    yield "own", "razor", [400, 0, 0, 33], every, head_classes(0, 33)
    yield "own", "razor", [400, 0, 4, 400], every, head_classes(4, 400)


def main():
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    reference = json.loads((HERE.parent / "smollm2/reference.json").read_text(encoding="utf-8"))
    ids = torch.tensor((reference["prose"]["ids"] + reference["code"]["ids"])[:TOKENS])
    model = Llama(sys.argv[1])
    captured = capture(model, ids)
    modules = [Module(i, t, model) for i, t in enumerate(captured)]

    halves = lambda tensors: b"".join(t.contiguous().half().numpy().tobytes() for t in tensors)
    (HERE / "kv.f16").write_bytes(halves([x for m in modules for x in (m.k, m.v)]))
    first = [0 if i == FULL else TOKENS - WINDOW for i in range(len(LAYERS))]
    (HERE / "queries.f16").write_bytes(halves([m.q[:, at:].transpose(0, 1) for m, at in zip(modules, first)]))
    (HERE / "projection.f16").write_bytes(halves([m.o_proj.weight.T for m in modules]))

    lines, blob = [], b""
    for source, name, values, layers, run in cases():
        ratio = round(1 - values[0] / 1000, 6)
        masks = run(modules, ratio).numpy()
        assert masks.shape == (len(LAYERS), KV_HEADS, TOKENS)
        lines.append(f'{{"{source}", "{name}", {{{", ".join(map(str, values))}}}, {layers}, {len(blob)}}},')
        blob += np.packbits(masks, axis=-1, bitorder="little").tobytes()
        print(name, values, [[int(h.sum()) for h in layer] for layer in masks])
    (HERE / "kept.bin").write_bytes(blob)
    (HERE / "fixtures.inc").write_text("// Made by make_fixtures.py.\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
