#!/usr/bin/env python3
"""Tables of read policies, from reports of `cairn fidelity --json --read-policy ...`.

    python3 benchmarks/fidelity/reading.py --cairn REPORT.json... --against REPORT.json...
    [--bench REPORT.json]

`--against`: reports of the same split with the recipes to compare with, the best selection and the
best recipe of about the same bytes. They may have more texts: differences are paired by text, over
the first texts that both have. `--bench`: a report of reading_bench.
"""

import argparse
import json

from compare import interval, number, rows_of

# Of half precision: 16 bits.
RIVALS = ("layer-defensive:keep=0.2+raw", "layer-defensive:keep=0.18+raw")
RECIPES = ("layer-defensive:keep=0.65+cachegen:k=8,v=8",)


def name(row):
    return row["recipe"].removesuffix("+raw")


def is_policy(row):
    return "read_bits_per_number" in row and row["read_bits_per_number"] > 0


def rival(rows, suite, names):
    """The row of the first of these recipes that was measured."""
    for wanted in names:
        for row in rows:
            if row["suite"] == suite and name(row) == wanted.removesuffix("+raw"):
                return row
    return None


def kl_over(row, other):
    """KL over the other's, with its interval, over the texts that both have."""
    pairs = [(a[0] / a[1], b[0] / b[1]) for a, b in zip(row["texts"], other["texts"], strict=False)]

    def ratio(drawn):
        return sum(a for a, _ in drawn) / sum(b for _, b in drawn)

    low, high = interval(pairs, ratio)
    return f"{ratio(pairs):.3f} ({low:.3f} to {high:.3f})"


def answers(row, texts):
    cases = [a for text in row["texts"][:texts] for a in text if a is not None]
    return f"{sum(cases)}/{len(cases)}"


def document_table(suite, rows, against):
    print(
        "| policy | near | read a step | late | KL, nats | 95 % | top 1 | KL over the best "
        "selection | KL over the best recipe |\n|---|---|---|---|---|---|---|---|---|"
    )
    rivals = [rival(against, suite, names) for names in (RIVALS, RECIPES)]
    for row in rows:
        beside = ["-" if other is None else kl_over(row, other) for other in rivals]
        print(
            f"| `{row['recipe']}` | {row['bits_per_number'] / 16:.1%} | "
            f"{row['read_bits_per_number'] / 16:.2%} | {row['late_share']:.1%} | "
            f"{number(row['kl'])} | {number(row['kl_ci'][0])} to {number(row['kl_ci'][1])} | "
            f"{row['top1']:.1%} | {' | '.join(beside)} |"
        )
    for other in filter(None, rivals):
        kl = sum(t[0] for t in other["texts"]) / sum(t[1] for t in other["texts"])
        print(
            f"| {name(other)}, {len(other['texts'])} texts | "
            f"{other['bits_per_number'] / 16:.1%} | - | - | {number(kl)} | "
            f"{number(other['kl_ci'][0])} to {number(other['kl_ci'][1])} | "
            f"{other['top1']:.1%} | - | - |"
        )


def answer_table(suite, rows, against):
    texts = min(len(row["texts"]) for row in rows)
    print("| policy | near | read a step | late | answers kept |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| `{row['recipe']}` | {row['bits_per_number'] / 16:.1%} | "
            f"{row['read_bits_per_number'] / 16:.2%} | {row['late_share']:.1%} | "
            f"{answers(row, texts)} |"
        )
    for names in (RIVALS, RECIPES):
        other = rival(against, suite, names)
        if other is not None:
            print(
                f"| {name(other)}, the same texts | {other['bits_per_number'] / 16:.1%} | - | - | "
                f"{answers(other, texts)} |"
            )


def bench_table(path):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    resident, fetched = (row["step_ms"] for row in report["rows"][:2])
    print(
        f"{report['tokens']} tokens, {report['threads']} thread(s), far tier of "
        f"{report['far_gbps']:g} GB/s:\n\n"
        "| mode | ms a step | speed of resident | over fetch-all | near | hit | late |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in report["rows"]:
        near = f"{row['near_share']:.1%}" if "near_share" in row else "-"
        hit = f"{row['hit_share']:.0%}" if "hit_share" in row else "-"
        late = f"{row['late_share']:.1%}" if "late_share" in row else "-"
        print(
            f"| `{row['mode']}` | {row['step_ms']:.1f} | {resident / row['step_ms']:.2f} | "
            f"{fetched / row['step_ms']:.2f} | {near} | {hit} | {late} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cairn", nargs="*", default=[])
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--bench")
    args = parser.parse_args()
    rows = [row for row in rows_of(args.cairn) if is_policy(row)]
    against = rows_of(args.against)
    for suite in dict.fromkeys(row["suite"] for row in rows):
        print(f"\n{suite}\n")
        of_suite = [row for row in rows if row["suite"] == suite]
        table = answer_table if of_suite[0]["needles_n"] > 0 else document_table
        table(suite, of_suite, against)
    if args.bench:
        print()
        bench_table(args.bench)


if __name__ == "__main__":
    main()
