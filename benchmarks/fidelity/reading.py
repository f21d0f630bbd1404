#!/usr/bin/env python3
"""Tables of read policies, from reports of `cairn fidelity --json --read-policy ...`.

    python3 benchmarks/fidelity/reading.py --cairn REPORT.json... --against REPORT.json...
    [--reference REPORT.json...] [--bench REPORT.json] [--svg FILE]

`--cairn`: where several have the same policy, the one with the most texts counts. `--against`:
reports of the same split with the recipes to compare with, the best selection and the best recipe
of about the same bytes. They may have more texts: differences are paired by text, over the first
texts that both have. `--reference`: reports of compare/fidelity/reading_reference.py, those of
neighbouring texts in their order; the questions are asked of them, too. `--bench`: a report of
reading_bench. `--svg`: where the plot of the prose suite goes, all points of which are of the same
texts: of as many as the report with the fewest has.
"""

import argparse

import reading_plot
from compare import number
from paired import difference, interval, or_exit, ratio, report_of, rows_of
from questions import READING, name_of

# Shares of half precision: 16 bits.
RIVALS = ("layer-defensive:keep=0.2+raw", "layer-defensive:keep=0.18+raw")
RECIPES = ("layer-defensive:keep=0.65+cachegen:k=8,v=8",)


def name(row):
    return row["recipe"].removesuffix("+raw")


def is_policy(row):
    return "read_bits_per_number" in row and row["read_bits_per_number"] > 0


def of_most_texts(rows):
    """One row for each policy and suite: of the report with the most texts."""
    best = {}
    for row in rows:
        of_same = best.setdefault((row["suite"], row["recipe"]), row)
        if len(row["texts"]) > len(of_same["texts"]):
            best[row["suite"], row["recipe"]] = row
    return list(best.values())


def rival(rows, suite, names):
    """The row of the first of these recipes that was measured."""
    for wanted in names:
        for row in rows:
            if row["suite"] == suite and name(row) == wanted.removesuffix("+raw"):
                return row
    return None


def over(row, other):
    """KL over the other's, or percentage points of answers more."""
    found = difference(row, other)
    if found.is_points:
        return str(found)
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def of_first_texts(row, count):
    """The row as if only its first texts had been measured: sums of KL, and positions."""
    texts = row["texts"][:count]
    return dict(row, texts=texts, kl=ratio(texts), kl_ci=interval(texts, ratio))


def question_table(suite, rows, against):
    known = {name_of(row["recipe"]): row for row in against + rows if row["suite"] == suite}
    answers_count = any(row.get("needles_n") for row in rows)
    unit = "points more" if answers_count else "KL over the second's"
    lines = []
    for question in READING:
        first, second = known.get(question.first), known.get(question.second)
        if first and second:
            lines.append(
                f"| {question.asked} | `{question.first}` | `{question.second}` "
                f"| {over(first, second)} |"
            )
    if lines:
        print(f"\n| question | first | second | {unit} |\n|---|---|---|---|")
        print("\n".join(lines))


def merged(rows):
    """Rows of one recipe and suite, of reports over neighbouring texts, as one."""
    found = {}
    for row in rows:
        whole = found.setdefault((row["suite"], row["recipe"]), dict(row, texts=[]))
        whole["texts"] = whole["texts"] + row["texts"]
    for whole in found.values():
        if "kl" in whole:
            whole["kl"] = ratio(whole["texts"])
    return list(found.values())


def reference_table(suite, rows, references):
    pairs = [
        (row, other)
        for row in rows
        for other in references
        if other["suite"] == suite and other["recipe"] == row["recipe"]
    ]
    if pairs:
        print("\n| policy | texts | KL | KL in torch | over it |\n|---|---|---|---|---|")
    for row, other in pairs:
        count = min(len(row["texts"]), len(other["texts"]))
        both = [ratio(r["texts"][:count]) for r in (row, other)]
        beside = over(row, other) if count > 1 else f"{both[0] / both[1]:.3f}"
        print(f"| `{row['recipe']}` | {count} | {number(both[0])} | {number(both[1])} | {beside} |")


def answers(row, texts):
    cases = [a for text in row["texts"][:texts] for a in text if a is not None]
    return f"{sum(cases)}/{len(cases)}"


def document_table(suite, rows, against):
    print(
        "| policy | texts | near | read a step | late | KL, nats | 95 % | top 1 | KL over the best "
        "selection | KL over the best recipe |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    rivals = [rival(against, suite, names) for names in (RIVALS, RECIPES)]
    for row in rows:
        beside = ["-" if other is None else over(row, other) for other in rivals]
        print(
            f"| `{row['recipe']}` | {len(row['texts'])} | {row['bits_per_number'] / 16:.1%} | "
            f"{row['read_bits_per_number'] / 16:.2%} | {row['late_share']:.1%} | "
            f"{number(row['kl'])} | {number(row['kl_ci'][0])} to {number(row['kl_ci'][1])} | "
            f"{row['top1']:.1%} | {' | '.join(beside)} |"
        )
    for other in filter(None, rivals):
        print(
            f"| {name(other)} | {len(other['texts'])} | "
            f"{other['bits_per_number'] / 16:.1%} | - | - | {number(ratio(other['texts']))} | "
            f"{number(other['kl_ci'][0])} to {number(other['kl_ci'][1])} | "
            f"{other['top1']:.1%} | - | - |"
        )


def answer_table(suite, rows, against):
    texts = min(len(row["texts"]) for row in rows)
    print(
        "| policy | near | read a step | late | answers kept | points over the best selection | "
        "points over the best recipe |\n|---|---|---|---|---|---|---|"
    )
    rivals = [rival(against, suite, names) for names in (RIVALS, RECIPES)]
    for row in rows:
        beside = ["-" if other is None else over(row, other) for other in rivals]
        print(
            f"| `{row['recipe']}` | {row['bits_per_number'] / 16:.1%} | "
            f"{row['read_bits_per_number'] / 16:.2%} | {row['late_share']:.1%} | "
            f"{answers(row, texts)} | {' | '.join(beside)} |"
        )
    for other in filter(None, rivals):
        print(
            f"| {name(other)}, the same texts | {other['bits_per_number'] / 16:.1%} | - | - | "
            f"{answers(other, texts)} | - | - |"
        )


def bench_table(report):
    resident, fetched = (row["step_ms"] for row in report["rows"][:2])
    print(
        f"{report['tokens']} tokens, {report['threads']} thread(s), far tier of "
        f"{report['far_gbps']:g} GB/s:\n\n"
        "| mode | ms a step | speed of resident | over fetch-all | processor ms | near | hit "
        "| late |\n|---|---|---|---|---|---|---|---|"
    )
    for row in report["rows"]:
        near = f"{row['near_share']:.1%}" if "near_share" in row else "100%"
        hit = f"{row['hit_share']:.0%}" if "hit_share" in row else "-"
        late = f"{row['late_share']:.1%}" if "late_share" in row else "-"
        used = f"{row['processor_ms']:.1f}" if "processor_ms" in row else "-"
        print(
            f"| `{row['mode']}` | {row['step_ms']:.1f} | {resident / row['step_ms']:.2f} | "
            f"{fetched / row['step_ms']:.2f} | {used} | {near} | {hit} | {late} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cairn", nargs="*", default=[])
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--reference", nargs="*", default=[])
    parser.add_argument("--bench")
    parser.add_argument("--svg")
    args = parser.parse_args()
    measured, against, references, bench = or_exit(
        parser,
        lambda: (
            rows_of(args.cairn),
            rows_of(args.against),
            merged(rows_of(args.reference)),
            report_of(args.bench, "rows", ("mode", "step_ms")) if args.bench else None,
        ),
    )
    rows = of_most_texts(row for row in measured if is_policy(row))
    for suite in dict.fromkeys(row["suite"] for row in rows):
        print(f"\n{suite}\n")
        of_suite = [row for row in rows if row["suite"] == suite]
        table = answer_table if of_suite[0]["needles_n"] > 0 else document_table
        table(suite, of_suite, against)
        question_table(suite, of_suite, against)
        reference_table(suite, of_suite, references)
    for suite in dict.fromkeys(row["suite"] for row in references):
        of_suite = [row for row in references if row["suite"] == suite]
        if len(of_suite[0]["texts"]) < 2:
            continue  # There is no interval.
        print(f"\n{suite}, in torch, {len(of_suite[0]['texts'])} texts")
        question_table(suite, of_suite, against)
    if bench is not None:
        print()
        bench_table(bench)
    if args.svg:
        shown = [row for row in rows if row["suite"] == "prose"]
        rivals = filter(None, (rival(against, "prose", names) for names in (RIVALS, RECIPES)))
        count = min(len(row["texts"]) for row in shown)
        reading_plot.write(
            args.svg,
            [of_first_texts(row, count) for row in shown],
            [of_first_texts(row, count) for row in rivals],
            bench,
        )


if __name__ == "__main__":
    main()
