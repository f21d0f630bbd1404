#!/usr/bin/env python3
"""Sets reports of `cairn fidelity --json` next to those of compare/fidelity/reference.py on the
same tokens: tables and a plot.

    python3 benchmarks/fidelity/compare.py --cairn REPORT.json... --reference REPORT.json... [--svg
    FILE]

The reference of a recipe is the one with the least KL among those that take at most 2 % more bytes.
Differences are paired (paired.py).
"""

import argparse
import math

from label_places import LabelPlaces
from paired import ANSWERS, SLACK, difference, or_exit, rows_of


def reference_of(row, references):
    fit = [
        r
        for r in references
        if r["suite"] == row["suite"] and r["bits_per_number"] <= SLACK * row["bits_per_number"]
    ]
    if row["suite"] in ANSWERS:
        return max(fit, key=lambda r: r["needles_ok"] / r["needles_n"], default=None)
    return min(fit, key=lambda r: r["kl"], default=None)


def number(value):
    """Two significant digits, never as a power of ten above 1e-4."""
    return (
        "0"
        if value == 0
        else f"{value:.2g}"
        if value < 1e-4
        else f"{float(f'{value:.2g}'):f}".rstrip("0").lstrip("0")
    )


def documents_table(suite, ours, references):
    out = [
        "| recipe | bits | KL, nats | 95 % | perplexity | top 1 | error K, V | "
        "best reference of that size | KL over it, 95 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(
        (r for r in ours if r["suite"] == suite), key=lambda r: -r["bits_per_number"]
    ):
        best = reference_of(row, references)
        beside = ["-", "-"]
        if best is not None and row["kl"] > 0:
            beside = [
                f"{best['recipe']}: {best['bits_per_number']:.2f} bits, {number(best['kl'])}",
                str(difference(row, best)),
            ]
        out.append(f"| `{row['recipe']}` | {cells(row)} | {' | '.join(beside)} |")
    return out


def cells(row):
    return (
        f"{row['bits_per_number']:.2f} | {number(row['kl'])} | "
        f"{number(row['kl_ci'][0])} to {number(row['kl_ci'][1])} | "
        f"{100 * row['ppl_delta']:+.2f} % | {100 * row['top1']:.1f} % | "
        f"{number(row['err_k'])}, {number(row['err_v'])}"
    )


def references_table(suite, references):
    out = [
        "| reference | bits | KL, nats | 95 % | perplexity | top 1 | error K, V |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(
        (r for r in references if r["suite"] == suite), key=lambda r: -r["bits_per_number"]
    ):
        out.append(f"| {row['recipe']} | {cells(row)} |")
    return out


def needles_table(suite, ours, references):
    out = [
        "| recipe | bits | answers kept | 95 % | best reference of that size | points more, 95 % |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(
        (r for r in ours if r["suite"] == suite), key=lambda r: -r["bits_per_number"]
    ):
        best = reference_of(row, references)
        beside = ["-", "-"]
        if best is not None:
            beside = [
                f"{best['recipe']}: {best['bits_per_number']:.2f} bits, "
                f"{best['needles_ok']}/{best['needles_n']}",
                str(difference(row, best)),
            ]
        low, high = (100 * x for x in row["needles_ci"])
        out.append(
            f"| `{row['recipe']}` | {row['bits_per_number']:.2f} | "
            f"{row['needles_ok']}/{row['needles_n']} | {low:.0f} to {high:.0f} % | "
            f"{' | '.join(beside)} |"
        )
    return out


class Plot:
    """KL over bits, logarithmic."""

    LEFT, TOP, WIDTH, HEIGHT = 70, 20, 800, 460
    FIRST_BIT, LAST_BIT = 2, 9
    CROSS = '<path d="M{x:.1f} {y:.1f}m-4 -4l8 8m0 -8l-8 8" stroke="{color}" stroke-width="2"/>'
    CIRCLE = '<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>'

    def __init__(self, groups):
        """groups: (legend, colour, mark, rows) each."""
        self._groups = [
            (
                *group[:3],
                [r for r in group[3] if r["kl"] > 0 and r["bits_per_number"] <= self.LAST_BIT],
            )
            for group in groups
        ]
        self._labels = LabelPlaces(self.LEFT, self.TOP, self.WIDTH, self.HEIGHT, most_lines=12)
        rows = [row for group in self._groups for row in group[3]]
        self._low = math.floor(math.log10(min(r["kl_ci"][0] for r in rows)))
        self._high = math.ceil(math.log10(max(r["kl_ci"][1] for r in rows)))

    def x(self, bits):
        return self.LEFT + self.WIDTH * (bits - self.FIRST_BIT) / (self.LAST_BIT - self.FIRST_BIT)

    def y(self, kl):
        return self.TOP + self.HEIGHT * (self._high - math.log10(kl)) / (self._high - self._low)

    def _axes(self):
        bottom = self.TOP + self.HEIGHT
        for power in range(self._low, self._high + 1):
            y = self.y(10.0**power)
            yield (
                f'<line x1="{self.LEFT}" y1="{y:.1f}" '
                f'x2="{self.LEFT + self.WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
                f'<text x="{self.LEFT - 8}" y="{y + 4:.1f}" '
                f'text-anchor="end">{10.0**power:g}</text>'
            )
        for bits in range(self.FIRST_BIT, self.LAST_BIT + 1):
            yield (
                f'<text x="{self.x(bits):.1f}" y="{bottom + 18}" text-anchor="middle">{bits}</text>'
            )
        yield (
            f'<text x="{self.LEFT + self.WIDTH / 2}" y="{bottom + 40}" '
            'text-anchor="middle">bits per number</text>'
            f'<text transform="translate(16 {self.TOP + self.HEIGHT / 2}) rotate(-90)" '
            'text-anchor="middle">KL, nats per token</text>'
        )

    def _point(self, row, color, mark):
        x, y = self.x(row["bits_per_number"]), self.y(row["kl"])
        low, high = (self.y(v) for v in row["kl_ci"])
        yield (
            f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" '
            f'stroke="{color}" opacity="0.5"/>'
        )
        yield mark.format(x=x, y=y, color=color)

    def write(self, path):
        width, height = self.LEFT + self.WIDTH + 30, self.TOP + self.HEIGHT + 60
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *self._axes(),
        ]
        for _, color, mark, rows in self._groups:
            for row in rows:
                out += self._point(row, color, mark)
                self._labels.take_point(self.x(row["bits_per_number"]), self.y(row["kl"]))
        for _, color, _, rows in self._groups:
            for row in rows:
                x, y = self.x(row["bits_per_number"]), self.y(row["kl"])
                out.append(self._labels.label(row["recipe"], color, x, y))
        for line, (legend, color, _, _) in enumerate(reversed(self._groups)):
            out.append(
                f'<text x="{self.LEFT + self.WIDTH}" y="{self.TOP + 14 + 18 * line}" '
                f'text-anchor="end" fill="{color}">{legend}</text>'
            )
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cairn", nargs="+", required=True, help="reports of cairn fidelity --json"
    )
    parser.add_argument("--reference", nargs="*", default=[], help="reports of reference.py")
    parser.add_argument("--svg", help="where the plot of the prose suite goes")
    arguments = parser.parse_args()
    ours, references = or_exit(
        parser, lambda: (rows_of(arguments.cairn), rows_of(arguments.reference))
    )
    for suite in dict.fromkeys(r["suite"] for r in ours):
        print(f"### {suite}")
        if suite in ANSWERS:
            print("\n".join(needles_table(suite, ours, references)))
        else:
            print(
                "\n".join(
                    documents_table(suite, ours, references)
                    + [""]
                    + references_table(suite, references)
                )
            )
        print()
    if arguments.svg:
        prose = [[r for r in rows if r["suite"] == "prose"] for rows in (references, ours)]
        Plot(
            [
                ("published methods in torch", "#c06020", Plot.CROSS, prose[0]),
                ("Cairn, through push and fetch", "#3050c0", Plot.CIRCLE, prose[1]),
            ]
        ).write(arguments.svg)


if __name__ == "__main__":
    main()
