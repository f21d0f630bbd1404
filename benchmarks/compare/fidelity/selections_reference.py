#!/usr/bin/env python3
"""KL of kvpress's methods, and of own definitions, on the texts and positions of a `cairn fidelity`
run.

    selections_reference.py --model MODEL.gguf --plan build/fidelity/plan-prose.json [--press
    NAME:keep=K...] > reference.json

As reference.py for codecs: the plan holds the tokens, rows are like those of `cairn fidelity
--json`, full KV is binary16, arithmetic is float32. The question is hidden: a method sees the
context alone, what follows attends to the rows that stay. Keys keep the positions they were
computed at, and the next token's position is the context's length. Bits per number are 16 times the
share of rows that stay, counted in the masks; positions and counts of rows are not in them.
"""

import argparse
import json
import pathlib
import sys
import time

import kvpress
import numpy as np
import torch
import torch.nn.functional as F
from captured import Captured
from codecs_reference import half
from definitions import (
    by_lot,
    h2o,
    head_classes,
    in_pairs,
    keyformer,
    prefixkv,
    sepllm,
    simlayer,
)
from definitions_of_windows import cake, defensive, headkv, nacl, snapkv_of_authors
from presses_reference import ranked_by_kvpress, with_kvpress
from reference import Judge, Row, begin, is_needles, with_progress, write_report
from torch_bench import full

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/calibration"))
# Needs the path above.
from tokenizer import Tokenizer  # noqa: E402


def snapkv():
    return kvpress.SnapKVPress(window_size=64, kernel_size=5)


def expected(epsilon):
    return kvpress.ExpectedAttentionPress(
        n_future_positions=512, n_sink=4, use_covariance=True, use_vnorm=True, epsilon=epsilon
    )


def drawn(run):
    """The same draws for every text, others for every layer and head."""

    def again(layers, ratio):
        torch.manual_seed(1)
        return run(layers, ratio)

    return again


def by_calibration(method, make):
    """A method of the scores that calibration/ has for it: make(scores), [layers][kv_heads]."""

    def run(layers, ratio):
        for path in sorted((ROOT / "calibration").glob("*.heads")):
            lines = path.read_text(encoding="ascii").splitlines()
            if f"method {method}" in lines:
                rows = [line.split(" ") for line in lines if line[0] in "-0123456789"]
                return make([[float(s) for s in row] for row in rows])(layers, ratio)
        raise SystemExit(f"calibration/ has no scores for {method}")

    return run


def classes_of(scores):
    return head_classes(4, 128, [s for layer in scores for s in layer])


def headkv_of(scores):
    return headkv(32, 3, "max", 1.2, [[max(0.0, s) for s in layer] for layer in scores])


# Name: Cairn's selection of the same method (docs/methods/selections-methods.md), and the method
# with the parameters that this has by default. Differences: `sink`, by which Cairn keeps the first
# token, and the tie rule of torch.topk. kvpress's `random` draws other numbers.
PRESSES = {
    "kvpress-random": ("random", drawn(with_kvpress(kvpress.RandomPress()))),
    "kvpress-streaming": ("streaming", with_kvpress(kvpress.StreamingLLMPress(n_sink=4))),
    "kvpress-snapkv": ("snapkv", with_kvpress(snapkv())),
    "kvpress-adakv-snapkv": (
        "ada-snapkv",
        with_kvpress(kvpress.AdaKVPress(snapkv(), alpha_safeguard=0.2)),
    ),
    "kvpress-pyramidkv": (
        "pyramidkv:beside=0",
        with_kvpress(kvpress.PyramidKVPress(window_size=64, kernel_size=5, beta=20)),
    ),
    "kvpress-chunkkv": ("chunkkv", with_kvpress(kvpress.ChunkKVPress(snapkv(), chunk_length=20))),
    "kvpress-criticalkv": (
        "criticalkv",
        with_kvpress(kvpress.CriticalKVPress(snapkv(), first_stage_ratio=0.5)),
    ),
    "kvpress-criticaladakv": (
        "ada-criticalkv",
        with_kvpress(
            kvpress.CriticalAdaKVPress(snapkv(), alpha_safeguard=0.2, first_stage_ratio=0.5)
        ),
    ),
    "kvpress-tova": ("tova", with_kvpress(kvpress.TOVAPress())),
    "kvpress-knorm": ("knorm", with_kvpress(kvpress.KnormPress())),
    "kvpress-keydiff": ("keydiff", with_kvpress(kvpress.KeyDiffPress())),
    "kvpress-lagkv": ("lagkv", ranked_by_kvpress(kvpress.LagKVPress(n_sink=4, lag_size=128))),
    "kvpress-expected": ("expected", with_kvpress(expected(0.0))),
    "kvpress-adakv-expected": (
        "ada-expected",
        with_kvpress(kvpress.AdaKVPress(expected(1e-2), alpha_safeguard=0.2)),
    ),
    "own-h2o": ("h2o", h2o(recent_share=0.5)),
    "own-defensive": ("defensive", defensive(window=32, pool=2, mass=0.9, whole=False)),
    "own-layer-defensive": ("layer-defensive", defensive(window=32, pool=2, mass=0.9, whole=True)),
    # The authors' forms.
    "own-defensive-authors": (
        "defensive:relative=1",
        defensive(window=32, pool=2, mass=0.9, whole=False, authors=True),
    ),
    "own-layer-defensive-authors": (
        "layer-defensive:relative=1",
        defensive(window=32, pool=2, mass=0.9, whole=True, authors=True),
    ),
    "own-snapkv-paper": ("snapkv-paper", snapkv_of_authors(32, 3, "max")),
    "own-adakv-paper": ("ada-snapkv-paper", snapkv_of_authors(32, 3, "max-of-group", alpha=200)),
    "own-adakv-mix": ("ada-snapkv:mix=1", snapkv_of_authors(64, 2, "mean", alpha=200)),
    "own-pyramidkv": ("pyramidkv", snapkv_of_authors(64, 2, "mean", beta=20)),
    "own-chunkkv-paper": (
        "chunkkv-paper",
        in_pairs(with_kvpress(kvpress.ChunkKVPress(kvpress.SnapKVPress(window_size=32), 10))),
    ),
    "own-headkv": ("headkv", by_calibration("headkv", headkv_of)),
    "own-prefixkv": ("prefixkv", prefixkv(4)),
    "own-nacl": ("nacl", nacl(32, 0.37, 1)),
    "own-keyformer": ("keyformer", keyformer(0.3, 1)),
    "own-ada-pyramidkv": (
        "ada-pyramidkv:mix=1",
        snapkv_of_authors(64, 2, "mean", alpha=200, beta=20),
    ),
    "own-cake": ("cake", cake(32, 2, 200, 1.6, 0.6)),
    "own-simlayer": ("simlayer:recent=128", simlayer(4, 128, 32)),
    "own-sepllm": ("sepllm", sepllm(4, 0.5)),
    "own-random": ("random", by_lot(1)),
    "own-duo": ("duo", by_calibration("duo", classes_of)),
    "own-razor": ("razor", by_calibration("razor", classes_of)),
}
KEEPS = (0.5, 0.25)  # As many bits as the codecs of 8 and 4 bits.


def separators_of(path):
    """Ids of the tokens of punctuation and line ends, as Cairn's worker has them for sepllm."""
    tokenizer = Tokenizer.of_file(path)
    ends, spaces = (frozenset(tokenizer.letter[b] for b in text) for text in (b".,?!;:\n\t", b" "))
    return torch.tensor(
        [
            i
            for i, token in enumerate(tokenizer.tokens)
            if ends & set(token) and set(token) <= ends | spaces
        ]
    )


def capture(model, ids, separators=None):
    """The layers of a prefill, K and V rounded to binary16 as caches have them."""
    layers = []

    def attend(i, q, k, v):
        layers.append(
            Captured(
                i,
                model.layers,
                half(k),
                half(v),
                q,
                model.w[f"blk.{i}.attn_output.weight"],
                model.cos,
                model.sin,
            )
        )
        return full(i, q, k, v)

    model.states(ids, attend)
    if separators is not None:
        marked = torch.isin(ids, separators)
        for layer in layers:
            layer.separators = marked
    return layers


def score(model, layers, masks, continuations):
    """Logits [tokens, vocab] of each continuation, over the rows of a context that masks [layers,
    kv_heads, tokens] leave.

    All go through the model together, each sees only itself and the context.
    """
    lengths = [len(tokens) for tokens in continuations]
    total = sum(lengths)
    own = torch.block_diag(*(torch.ones(n, n, dtype=torch.bool).tril() for n in lengths))
    # Their own rows first, so that a head sees the first columns, as many as it has rows.
    visible = torch.cat((own, torch.ones(total, layers[0].tokens, dtype=torch.bool)), 1)

    def attend(i, q, k, v):
        heads = []
        for h, queries in enumerate(layers[i].by_group(q)):
            kept = masks[i, h]
            keys, values = (
                torch.cat((k[h], layers[i].k[h, kept])),
                torch.cat((v[h], layers[i].v[h, kept])),
            )
            heads.append(
                F.scaled_dot_product_attention(
                    queries[None],
                    keys.expand(1, len(queries), -1, -1),
                    values.expand(1, len(queries), -1, -1),
                    attn_mask=visible[:, : len(keys)],
                )[0]
            )
        return torch.cat(heads)

    positions = torch.cat([layers[0].tokens + torch.arange(n) for n in lengths])
    states = model.states(torch.tensor(sum(continuations, [])), attend, positions)
    return model.logits(states).split(lengths)


class SelectionRow(Row):
    """A row that names the selection of Cairn that its method stands for."""

    def __init__(self, name, needles, selection, keep):
        super().__init__(name, needles)
        self.method = {"selection": selection, "keep": keep}

    def report(self, suite):
        return super().report(suite) | self.method


def in_hexadecimal(masks):
    """masks [layers, kv_heads, tokens] as `cairn fidelity --kept` writes them: a string a head,
    token t is bit t % 8 of byte t // 8."""
    return [
        np.packbits(head, bitorder="little").tobytes().hex() for head in masks.flatten(0, 1).numpy()
    ]


class Recipe:
    """NAME:keep=K and what it cost: seconds of processor time, of choosing and of scoring."""

    def __init__(self, text, needles):
        name, _, keep = text.partition(":keep=")
        if name not in PRESSES or not keep:
            raise SystemExit(f"'{text}' is not NAME:keep=K; names: {', '.join(PRESSES)}")
        self.ratio = round(1 - float(keep), 6)
        selection, self._run = PRESSES[name]
        self.row = SelectionRow(text, needles, selection, float(keep))
        self.kept = []
        self.choosing = self.scoring = 0.0

    def add(self, model, text, layers, continuations, judges):
        began = time.process_time()
        masks = self._run(layers, self.ratio)
        chosen = time.process_time()
        self.kept.append({"name": text["name"], "kept": in_hexadecimal(masks)})
        self.row.bits.append(16 * float(masks.double().mean()))
        self.row.add(judges, score(model, layers, masks, continuations))
        self.choosing, self.scoring = (
            self.choosing + chosen - began,
            self.scoring + time.process_time() - chosen,
        )


def measure(model, text, recipes, separators):
    """Adds one text to every recipe: the context is computed once and every method chooses among
    the same rows."""
    layers = capture(model, torch.tensor(text["context"]), separators)
    continuations = [c["tokens"] for c in text["continuations"]]
    everything = torch.ones(len(layers), *layers[0].k.shape[:2], dtype=torch.bool)
    judges = [
        Judge(rows, c, recipes[0].row.needles)
        for rows, c in zip(score(model, layers, everything, continuations), text["continuations"])
    ]
    for recipe in recipes:
        recipe.add(model, text, layers, continuations, judges)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--press",
        action="append",
        metavar="NAME:keep=K",
        help=f"every one with keep={KEEPS} when not given",
    )
    parser.add_argument(
        "--kept", help="a file for which rows each one kept, as `cairn fidelity --kept` has it"
    )
    arguments, model, plan, texts = begin(parser)
    wanted = arguments.press or [f"{name}:keep={keep:g}" for name in PRESSES for keep in KEEPS]
    recipes = [Recipe(text, is_needles(plan)) for text in wanted]
    separators = separators_of(arguments.model)
    for text in with_progress(plan["suite"], texts):
        measure(model, text, recipes, separators)
    print("processor seconds a text: choosing, scoring", file=sys.stderr)
    for recipe in recipes:
        print(
            f"{recipe.row.name:36} {recipe.choosing / len(texts):6.2f} "
            f"{recipe.scoring / len(texts):6.2f}",
            file=sys.stderr,
        )
    write_report(arguments.model, plan, [recipe.row for recipe in recipes])
    if arguments.kept:
        with open(arguments.kept, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "suite": plan["suite"],
                    "recipes": [
                        {"recipe": recipe.row.name, **recipe.row.method, "texts": recipe.kept}
                        for recipe in recipes
                    ],
                },
                file,
            )


if __name__ == "__main__":
    main()
