#!/usr/bin/env python3
"""Keys, values and queries of SmolLM2, and what kvpress and independent definitions keep of them.

    pip install torch kvpress==0.5.5 gguf
    python3 tests/data/selections/make_fixtures.py SmolLM2-135M-Instruct.Q4_1.gguf

Writes kv.f16, queries.f16, projection.f16 (inputs), kept.bin (one mask per case, layer and KV head)
and fixtures.inc, the list of cases for the C++ test. Everything that a method reads is rounded to
binary16 before it is used, so that the C++ side sees the same numbers. The three layers below stand
for a whole model of three layers.

kvpress's presses are called on the captured tensors, without hooks. Where it has no press, the
method is defined in benchmarks/compare/fidelity/definitions.py or definitions_of_windows.py, from
the papers' formulas, in plain torch; those cases are marked "own".
"""

import json
import pathlib
import sys

import kvpress
import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [
    str(HERE.parents[2] / "benchmarks/compare" / folder) for folder in ("worker", "fidelity")
]
from captured import Captured
from definitions import first_layers, h2o, head_classes, in_pairs, keyformer, prefixkv, simlayer
from definitions_of_windows import cake, defensive, headkv, nacl, snapkv_of_authors
from presses_reference import in_pyramid, ranked_by_kvpress, with_kvpress
from torch_bench import Llama, full  # noqa: E402

LAYERS = (3, 15, 27)
FULL = 1  # Index of the layer whose queries are kept for all rows.
TOKENS = 512
WINDOW = 64  # Rows of queries kept in the other layers.
HIDDEN = 192  # Columns of the output projection that stand for the hidden size.
HEADS, KV_HEADS, DIM = 9, 3, 64


def capture(model, ids):
    """The layers of LAYERS, all rounded to binary16, with a hidden size of HIDDEN."""
    half = lambda x: x.half().float()
    seen = {}

    def attend(i, q, k, v):
        if i in LAYERS:
            projection = model.w[f"blk.{i}.attn_output.weight"][:HIDDEN]
            seen[i] = Captured(
                LAYERS.index(i),
                len(LAYERS),
                half(k),
                half(v),
                half(q),
                half(projection),
                model.cos,
                model.sin,
            )
        return full(i, q, k, v)

    model.states(ids, attend)
    return [seen[i] for i in LAYERS]


def only(index, run):
    """Nothing kept in the other layers, whose queries the files lack."""

    def masks(layers, ratio):
        out = torch.zeros(len(layers), KV_HEADS, TOKENS, dtype=torch.bool)
        out[index] = run(layers[index : index + 1], ratio)[0]
        return out

    return masks


def as_in_files(run):
    """The queries that the C++ test sees where layers compete: in the layers but FULL, queries of
    zeros before the window's."""

    def masks(layers, ratio):
        seen = []
        for i, m in enumerate(layers):
            q = m.q.clone()
            if i != FULL:
                q[:, : TOKENS - WINDOW] = 0
            projection = m.o_proj.weight
            seen.append(Captured(i, len(layers), m.k, m.v, q, projection, m.cos, m.sin))
        return run(seen, ratio)

    return masks


def cases():
    """(source, name, parameters in the catalogue's order, layers compared, ratio, masks)."""
    snap = lambda **o: kvpress.SnapKVPress(**o)
    every = 0b111
    for keep in (750, 500, 200):
        yield "kvpress", "snapkv", [keep, 0, 64, 2, 0], every, with_kvpress(snap())
        yield (
            "kvpress",
            "ada-snapkv",
            [keep, 0, 64, 2, 0, 200, 0],
            every,
            with_kvpress(kvpress.AdaKVPress(snap())),
        )
        yield (
            "kvpress",
            "pyramidkv",
            [keep, 0, 8, 2, 0, 20, 0],
            every,
            with_kvpress(kvpress.PyramidKVPress(window_size=8)),
        )
        yield (
            "kvpress",
            "chunkkv",
            [keep, 0, 64, 2, 20, 1, 1000],
            every,
            with_kvpress(kvpress.ChunkKVPress(snap())),
        )
        yield (
            "kvpress",
            "criticalkv",
            [keep, 0, 16, 2, 500],
            every,
            with_kvpress(kvpress.CriticalKVPress(snap(window_size=16))),
        )
        yield (
            "kvpress",
            "ada-criticalkv",
            [keep, 0, 16, 2, 200, 0, 500],
            every,
            with_kvpress(kvpress.CriticalAdaKVPress(snap(window_size=16))),
        )
        yield "kvpress", "knorm", [keep, 0], every, with_kvpress(kvpress.KnormPress())
        yield "kvpress", "keydiff", [keep, 0], every, with_kvpress(kvpress.KeyDiffPress())
        lag = 16 if keep == 200 else 64
        yield (
            "kvpress",
            "lagkv",
            [keep, 4, lag],
            every,
            ranked_by_kvpress(kvpress.LagKVPress(lag_size=lag)),
        )
        yield "kvpress", "tova", [keep, 0], every, with_kvpress(kvpress.TOVAPress())
        yield (
            "kvpress",
            "expected",
            [keep, 4, 512],
            1 << FULL,
            with_kvpress(kvpress.ExpectedAttentionPress()),
        )
        yield (
            "kvpress",
            "ada-expected",
            [keep, 4, 512, 200, 0],
            1 << FULL,
            with_kvpress(kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(epsilon=1e-2))),
        )
        yield "own", "defensive", [keep, 0, 32, 2, 900, 0], every, defensive(32, 2, 0.9, False)
        yield "own", "layer-defensive", [keep, 0, 32, 2, 900, 0], every, defensive(32, 2, 0.9, True)
        for name, whole in (("defensive", False), ("layer-defensive", True)):
            run = defensive(32, 2, 0.9, whole, authors=True)
            yield "own", name, [keep, 0, 32, 2, 900, 1], every, run
        yield "own", "h2o", [keep, 0, 500], 1 << FULL, only(FULL, h2o(0.5))
        yield "own", "cake", [keep, 0, 32, 2, 200, 16, 6], every, cake(32, 2, 200, 1.6, 0.6)
        yield "own", "simlayer", [keep, 4, 64, 32], every, simlayer(4, 64, 32)
    yield (
        "kvpress",
        "snapkv",
        [500, 0, 8, 0, 0],
        every,
        with_kvpress(snap(window_size=8, kernel_size=1)),
    )
    yield (
        "kvpress",
        "snapkv",
        [300, 0, 33, 7, 0],
        every,
        with_kvpress(snap(window_size=33, kernel_size=15)),
    )
    yield (
        "kvpress",
        "ada-snapkv",
        [300, 0, 16, 2, 0, 0, 0],
        every,
        with_kvpress(kvpress.AdaKVPress(snap(window_size=16), alpha_safeguard=0)),
    )
    yield (
        "kvpress",
        "pyramidkv",
        [200, 0, 64, 2, 0, 20, 0],
        every,
        with_kvpress(kvpress.PyramidKVPress()),
    )
    yield (
        "kvpress",
        "chunkkv",
        [500, 0, 32, 2, 10, 1, 1000],
        every,
        with_kvpress(kvpress.ChunkKVPress(snap(window_size=32), 10)),
    )
    yield (
        "own",
        "chunkkv",
        [500, 0, 64, 2, 20, 2, 1000],
        every,
        in_pairs(with_kvpress(kvpress.ChunkKVPress(snap()))),
    )
    yield (
        "own",
        "ada-pyramidkv",
        [500, 0, 8, 2, 0, 20, 0, 200, 0],
        every,
        in_pyramid(8, kvpress.AdaKVPress(snap(window_size=8))),
    )
    yield "kvpress", "lagkv", [500, 4, 128], every, ranked_by_kvpress(kvpress.LagKVPress())
    yield (
        "kvpress",
        "lagkv",
        [500, 4, 300],
        every,
        ranked_by_kvpress(kvpress.LagKVPress(lag_size=300)),
    )
    # The authors' programs: window 32 and a kernel of 7 by the maximum, in both orders.
    for keep in (500, 200):
        for maxpool, pooling in ((1, "max"), (2, "max-of-group")):
            run = snapkv_of_authors(32, 3, pooling)
            yield "own", "snapkv", [keep, 0, 32, 3, maxpool], every, run
        run = snapkv_of_authors(32, 3, "max-of-group", alpha=200)
        yield "own", "ada-snapkv", [keep, 0, 32, 3, 2, 200, 1], every, run
        run = snapkv_of_authors(8, 3, "max-of-group", alpha=200, beta=20)
        yield "own", "ada-pyramidkv", [keep, 0, 8, 3, 2, 20, 1, 200, 1], every, run
    # 20 % of 512 rows are fewer than 20 windows of 64: kvpress's form is even there. The steps of
    # these budgets are whole rows.
    for keep, window in ((200, 64), (500, 8), (750, 32)):
        run = snapkv_of_authors(window, 2, "mean", beta=20)
        yield "own", "pyramidkv", [keep, 0, window, 2, 0, 20, 1], every, run
    chunks = kvpress.ChunkKVPress(snap(window_size=32), 10)
    yield (
        "own",
        "chunkkv",
        [500, 0, 32, 2, 10, 1, 500],
        every,
        first_layers(2, with_kvpress(chunks), with_kvpress(snap(window_size=32))),
    )
    # Scores as for duo and razor.
    scores = [[(3 * i * 7 + 7 * h + 11) % 12 for h in range(KV_HEADS)] for i in range(3)]
    for keep, beta in ((500, 1200), (200, 1005), (800, 2000)):
        run = headkv(32, 3, "max", beta / 1000, scores)
        yield "own", "headkv", [keep, 0, 0, 32, 3, 1, beta], every, run
    for keep in (500, 200):
        yield "own", "prefixkv", [keep, 4], every, as_in_files(prefixkv(4))
        yield "own", "nacl", [keep, 0, 32, 370, 1], every, nacl(32, 0.37, 1)
        yield "own", "keyformer", [keep, 0, 300, 1], 1 << FULL, only(FULL, keyformer(0.3, 1))
    # The test gives the C++ side the same scores (ScoresFor in case.h).
    classes = [(i * 7 + 11) % 12 for i in range(len(LAYERS) * KV_HEADS)]
    for keep in (750, 500, 200):
        yield "own", "duo", [keep, 0, 4, 64], every, head_classes(4, 64, classes)
    yield "own", "razor", [400, 0, 0, 33], every, head_classes(0, 33, classes)
    yield "own", "razor", [400, 0, 4, 400], every, head_classes(4, 400, classes)


def main():
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    reference = json.loads((HERE.parent / "smollm2/reference.json").read_text(encoding="utf-8"))
    ids = torch.tensor((reference["prose"]["ids"] + reference["code"]["ids"])[:TOKENS])
    model = Llama(sys.argv[1])
    modules = capture(model, ids)

    halves = lambda tensors: b"".join(t.contiguous().half().numpy().tobytes() for t in tensors)
    (HERE / "kv.f16").write_bytes(halves([x for m in modules for x in (m.k, m.v)]))
    first = [0 if i == FULL else TOKENS - WINDOW for i in range(len(LAYERS))]
    (HERE / "queries.f16").write_bytes(
        halves([m.q[:, at:].transpose(0, 1) for m, at in zip(modules, first)])
    )
    (HERE / "projection.f16").write_bytes(halves([m.o_proj.weight.T for m in modules]))

    lines, blob = [], b""
    for source, name, values, layers, run in cases():
        ratio = round(1 - values[0] / 1000, 6)
        masks = run(modules, ratio).numpy()
        assert masks.shape == (len(LAYERS), KV_HEADS, TOKENS)
        lines.append(
            f'{{"{source}", "{name}", {{{", ".join(map(str, values))}}}, {layers}, {len(blob)}}},'
        )
        blob += np.packbits(masks, axis=-1, bitorder="little").tobytes()
        print(name, values, [[int(h.sum()) for h in layer] for layer in masks])
    (HERE / "kept.bin").write_bytes(blob)
    (HERE / "fixtures.inc").write_text(
        "// Made by make_fixtures.py.\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
