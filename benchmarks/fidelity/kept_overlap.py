#!/usr/bin/env python3
"""Shares of rows that Cairn and a reference both keep of the same tokens, end to end: each computes
its own KV.

    python3 benchmarks/fidelity/kept_overlap.py --cairn build/fidelity/kept-prose.json --reference
    kept-reference.json

Files of `cairn fidelity --kept` and of compare/fidelity/selections_reference.py --kept. The overlap
of a head is the number of rows that both keep over the larger of the two numbers; printed are the
mean over texts, layers and heads, and the least head.
"""

import argparse

from paired import entries, or_exit


def method(recipe, keep=None):
    """Selection, share and form of a recipe's name, `NAME:keep=K,...+CODEC`. The rows that `sink`
    keeps and the calibration that it reads are not its form."""
    name, _, parameters = recipe.partition("+")[0].partition(":")
    values = dict(p.split("=", 1) for p in parameters.split(",") if p)
    keep = float(values.pop("keep", keep))
    form = frozenset(pair for pair in values.items() if pair[0] not in ("sink", "heads"))
    return name, keep, form


def overlaps(ours, theirs):
    """The kept rows of each head of each text of ours."""
    others = {text["name"]: text["kept"] for text in theirs["texts"]}
    for text in ours["texts"]:
        for a, b in zip(text["kept"], others[text["name"]], strict=True):
            a, b = (int.from_bytes(bytes.fromhex(mask), "little") for mask in (a, b))
            most = max(a.bit_count(), b.bit_count())
            yield (a & b).bit_count() / most if most else 1.0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cairn", required=True, metavar="KEPT.json", help="file of cairn fidelity --kept"
    )
    parser.add_argument(
        "--reference",
        required=True,
        metavar="KEPT.json",
        help="file of selections_reference.py --kept",
    )
    arguments = parser.parse_args()
    recipes, kept = or_exit(
        parser,
        lambda: (
            entries(arguments.cairn, "recipes", ("recipe", "texts")),
            entries(arguments.reference, "recipes", ("recipe", "texts", "selection", "keep")),
        ),
    )
    references = {method(r["selection"], r["keep"]): r for r in kept}
    print("| recipe | reference | texts | overlap, mean | least head |\n|---|---|---|---|---|")
    for recipe in recipes:
        reference = references.get(method(recipe["recipe"]))
        if reference is None:
            continue
        found = list(overlaps(recipe, reference))
        print(
            f"| `{recipe['recipe']}` | {reference['recipe']} | {len(recipe['texts'])} | "
            f"{sum(found) / len(found):.4f} | {min(found):.3f} |"
        )


if __name__ == "__main__":
    main()
