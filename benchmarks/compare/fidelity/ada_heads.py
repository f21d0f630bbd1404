#!/usr/bin/env python3
"""Whether Ada-KV's budgets help, by form, window and number of heads that compete.

    build/kvpress-venv/bin/python benchmarks/compare/fidelity/ada_heads.py --model MODEL.gguf \\
        --plan build/fidelity/plan-needles.json [--limit N] [--keep 0.5] > ada-heads.json

Rows are like those of selections_reference.py. The model has three KV heads a layer, the papers'
have 8 to 32. To see what their number does, heads of neighbouring layers compete here as if they
were one layer's: of 1, 3 and 10 layers, so 3, 9 and 30 heads. Attention is softmaxed, so scores of
layers can be compared as much as those of heads.
"""

import argparse

import torch
from captured import kept_rows, top
from definitions_of_windows import best_beside_window, mixed_budgets, window_scores
from reference import Judge, begin, is_needles, with_progress, write_report
from selections_reference import SelectionRow, capture, score

SNAPKV = {"kvpress": (64, 2, "mean"), "authors": (32, 3, "max-of-group")}  # Window, reach, pooling.
ALPHA = 200


def floored_budgets(scores, even):
    """kvpress's form: each head its best ALPHA thousandths of an even share, then the best of
    all."""
    forced = torch.stack([top(s, even * ALPHA // 1000) for s in scores])
    return top(scores, even * len(scores), forced).view(scores.shape).sum(-1)


def budgets(form, scores, even):
    if form == "even":
        return [even] * len(scores)
    if form == "floor":
        return floored_budgets(scores, even)
    return mixed_budgets(scores, even, ALPHA)


def ada(form, layers_together, snapkv):
    window, reach, pooling = SNAPKV[snapkv]

    def run(layers, ratio):
        even = kept_rows(layers[0], ratio) - window
        scores = [window_scores(layer, window, reach, pooling) for layer in layers]
        masks = []
        for first in range(0, len(layers), layers_together):
            together = torch.cat(scores[first : first + layers_together])
            best = best_beside_window(together, budgets(form, together, even), window)
            masks += best.split(layers[0].kv_heads)
        return torch.stack(masks)

    return run


METHODS = {
    f"{form}-{layers}-{snapkv}": (form, layers, snapkv)
    for snapkv in SNAPKV
    for form, layers in (
        ("even", 1),
        *((form, layers) for form in ("floor", "mix") for layers in (1, 3, 10)),
    )
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=float, default=0.5)
    arguments, model, plan, texts = begin(parser)
    rows = {
        name: SelectionRow(
            f"{name}:keep={arguments.keep:g}", is_needles(plan), name, arguments.keep
        )
        for name in METHODS
    }
    for text in with_progress(plan["suite"], texts):
        layers = capture(model, torch.tensor(text["context"]))
        continuations = [c["tokens"] for c in text["continuations"]]
        everything = torch.ones(len(layers), *layers[0].k.shape[:2], dtype=torch.bool)
        full = score(model, layers, everything, continuations)
        judges = [
            Judge(logits, c, rows[next(iter(rows))].needles)
            for logits, c in zip(full, text["continuations"])
        ]
        for name, (form, together, snapkv) in METHODS.items():
            masks = ada(form, together, snapkv)(layers, round(1 - arguments.keep, 6))
            rows[name].bits.append(16 * float(masks.double().mean()))
            rows[name].add(judges, score(model, layers, masks, continuations))
    write_report(arguments.model, plan, list(rows.values()))


if __name__ == "__main__":
    main()
