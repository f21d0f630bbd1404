#!/usr/bin/env python3
"""How alike the rows are that neighbouring layers keep: what reusing a layer's rows for the next
one rests on.

    python3 benchmarks/fidelity/kept_neighbours.py build/fidelity/kept-needles.json [--kv-heads 3]

For a file of `cairn fidelity --kept`: for each recipe the Jaccard index (rows that both keep over
rows that one keeps) of layer l and l + 1, head by head, in the mean over texts, layers and heads;
next to it the index that would result if each kept as many rows at random.
"""

import argparse

from paired import entries, or_exit


def jaccard(a, b):
    return (a & b).bit_count() / max(1, (a | b).bit_count())


def by_chance(a, b, tokens):
    """The index of two random sets of these sizes, roughly: expected overlap over expected
    union."""
    overlap = a.bit_count() * b.bit_count() / tokens
    return overlap / max(1.0, a.bit_count() + b.bit_count() - overlap)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kept", metavar="KEPT.json", help="file of cairn fidelity --kept")
    parser.add_argument(
        "--kv-heads", type=int, default=3, help="KV heads of a layer of the model (%(default)s)"
    )
    arguments = parser.parse_args()
    recipes = or_exit(parser, lambda: entries(arguments.kept, "recipes", ("recipe", "texts")))
    print("| recipe | texts | Jaccard of neighbours | by chance |\n|---|---|---|---|")
    for recipe in recipes:
        found, chance = [], []
        for text in recipe["texts"]:
            masks = [int.from_bytes(bytes.fromhex(mask), "little") for mask in text["kept"]]
            tokens = 4 * len(text["kept"][0])  # Four bits a digit.
            for a, b in zip(masks, masks[arguments.kv_heads :]):
                found.append(jaccard(a, b))
                chance.append(by_chance(a, b, tokens))
        print(
            f"| `{recipe['recipe']}` | {len(recipe['texts'])} | {sum(found) / len(found):.2f} | "
            f"{sum(chance) / len(chance):.2f} |"
        )


if __name__ == "__main__":
    main()
