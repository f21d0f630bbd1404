#!/usr/bin/env python3
"""Tables and plot of selections, alone and before a codec, from reports of `cairn fidelity --json`.

    python3 benchmarks/fidelity/selections.py --cairn REPORT.json... [--reference REPORT.json...]
    [--svg FILE]

References are reports of compare/fidelity/selections_reference.py on the same tokens, set next to
Cairn's selection of the same method and share, with the codec raw. Differences are paired by text
(paired.py).
"""

import argparse

from compare import Plot, number
from paired import ANSWERS, SLACK, difference, or_exit, rows_of


class Recipe:
    """The parts of a row's name: what selects, how much stays, and the codec; a name without `+` is
    a codec."""

    def __init__(self, row):
        selection, plus, codec = row["recipe"].partition("+")
        self.codec = codec if plus else selection
        self.selection, _, parameters = (selection if plus else "").partition(":")
        values = dict(p.split("=", 1) for p in parameters.split(",") if p)
        self.keep = float(values.get("keep", 1))

    @property
    def is_pure_selection(self):
        return bool(self.selection) and self.codec == "raw"

    @property
    def is_mixture(self):
        return bool(self.selection) and self.codec != "raw"


def find(rows, suite, selection, keep):
    for row in rows:
        recipe = Recipe(row)
        if (
            row["suite"] == suite
            and recipe.is_pure_selection
            and (recipe.selection, recipe.keep) == (selection, keep)
        ):
            return row
    return None


def reference_of(row, references):
    """The reference row of the same method and share, or None."""
    recipe = Recipe(row)
    for reference in references:
        if reference["suite"] == row["suite"] and (reference["selection"], reference["keep"]) == (
            recipe.selection,
            recipe.keep,
        ):
            return reference
    return None


def judged(row):
    if row["suite"] in ANSWERS:
        return f"{row['needles_ok']}/{row['needles_n']}"
    return f"{number(row['kl'])} ({number(row['kl_ci'][0])} to {number(row['kl_ci'][1])})"


def paired(row, other):
    """Ratio of KL, or points of answers more, with its interval."""
    found = difference(row, other)
    return found.words() if found.is_points else str(found)


def selections_table(suite, rows, references):
    alone = [row for row in rows if row["suite"] == suite and Recipe(row).is_pure_selection]
    keeps = sorted({Recipe(row).keep for row in alone}, reverse=True)
    keeps = [
        keep for keep in keeps if sum(Recipe(row).keep == keep for row in alone) > 2
    ]  # The others are for mixtures.
    if not keeps:
        return []
    alone = [row for row in alone if Recipe(row).keep in keeps]
    beside = [
        keep
        for keep in keeps
        if any(reference_of(row, references) for row in alone if Recipe(row).keep == keep)
    ]
    names = sorted(
        {Recipe(row).selection for row in alone}, key=lambda name: order(suite, alone, keeps, name)
    )
    out = [
        "| selection | "
        + " | ".join(
            [f"{100 * keep:.0f} % kept" for keep in keeps]
            + [f"the reference, {100 * keep:.0f} % | against it" for keep in beside]
        )
        + " |",
        "|---" * (1 + len(keeps) + 2 * len(beside)) + "|",
    ]
    for name in names:
        cells = [judged(row) if (row := find(rows, suite, name, keep)) else "-" for keep in keeps]
        for keep in beside:
            row = find(rows, suite, name, keep)
            other = reference_of(row, references) if row else None
            cells += [judged(other).split(" ")[0], paired(row, other)] if other else ["-", "-"]
        out.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return out


def order(suite, rows, keeps, name):
    """Best first, by the share of which most rows were measured; those that lack it by name."""
    keep = max(keeps, key=lambda k: sum(Recipe(row).keep == k for row in rows))
    row = find(rows, suite, name, keep)
    if row is None:
        return (1, 0, name)
    return (0, -row["needles_ok"] if suite in ANSWERS else row["kl"], name)


def best(rows, suite, bits, accept):
    """The best of the accepted rows of at most that size; where all are larger, the best of the
    smallest size there is. None if there is none."""
    accepted = [row for row in rows if row["suite"] == suite and accept(Recipe(row))]
    if not accepted:
        return None
    bits = max(bits, min(row["bits_per_number"] for row in accepted))
    fit = [row for row in accepted if row["bits_per_number"] <= SLACK * bits]
    return (
        max(fit, key=lambda row: row["needles_ok"])
        if suite in ANSWERS
        else min(fit, key=lambda row: row["kl"])
    )


def mixtures_table(suite, rows):
    out = [
        "| recipe | bits | "
        + ("answers kept" if suite in ANSWERS else "KL, nats (95 %)")
        + " | best codec alone | against it | best selection alone | against it |",
        "|---|---|---|---|---|---|---|",
    ]
    mixtures = sorted(
        (row for row in rows if row["suite"] == suite and Recipe(row).is_mixture),
        key=lambda row: -row["bits_per_number"],
    )
    if not mixtures:
        return []
    for row in mixtures:
        cells = []
        for accept in (
            lambda r: not r.selection and r.codec != "raw",
            lambda r: r.is_pure_selection,
        ):
            other = best(rows, suite, row["bits_per_number"], accept)
            cells += (
                ["-", "-"]
                if other is None
                else [
                    f"`{other['recipe'].removesuffix('+raw')}`: "
                    f"{other['bits_per_number']:.2f} bits, {judged(other).split(' ')[0]}",
                    paired(row, other),
                ]
            )
        out.append(
            f"| `{row['recipe']}` | {row['bits_per_number']:.2f} | {judged(row)} | "
            + " | ".join(cells)
            + " |"
        )
    return out


def show(title, lines):
    if lines:
        print("\n".join([f"### {title}", *lines, ""]))


class MixturePlot(Plot):
    """The plot of small sizes, where selections and codecs meet. It has some of the selections
    alone, for room."""

    FIRST_BIT, LAST_BIT = 1, 5
    HEIGHT = 620
    ALONE = ("layer-defensive", "h2o", "snapkv", "chunkkv", "random")

    def __init__(self, rows):
        named = [
            (row | {"recipe": row["recipe"].removesuffix("+raw")}, Recipe(row)) for row in rows
        ]
        super().__init__(
            [
                (
                    "selection alone",
                    "#c06020",
                    Plot.CROSS,
                    [
                        row
                        for row, recipe in named
                        if recipe.is_pure_selection and recipe.selection in self.ALONE
                    ],
                ),
                (
                    "codec alone",
                    "#2a8a4a",
                    Plot.CIRCLE,
                    [
                        row
                        for row, recipe in named
                        if not recipe.selection and ">" not in row["recipe"]
                    ],
                ),
                (
                    "selection and codec",
                    "#3050c0",
                    Plot.CIRCLE,
                    [row for row, recipe in named if recipe.is_mixture],
                ),
            ]
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cairn",
        nargs="+",
        required=True,
        help="reports of cairn fidelity --json, of codecs alone among them",
    )
    parser.add_argument(
        "--reference", nargs="*", default=[], help="reports of selections_reference.py"
    )
    parser.add_argument("--svg", help="where the plot of the prose suite goes")
    arguments = parser.parse_args()
    rows, references = or_exit(
        parser, lambda: (rows_of(arguments.cairn), rows_of(arguments.reference))
    )
    for suite in dict.fromkeys(row["suite"] for row in rows):
        show(f"{suite}: selections", selections_table(suite, rows, references))
        show(f"{suite}: mixtures", mixtures_table(suite, rows))
    if arguments.svg:
        MixturePlot([row for row in rows if row["suite"] == "prose"]).write(arguments.svg)


if __name__ == "__main__":
    main()
