#!/usr/bin/env python3
"""Claims of papers about each other and about their forms, as questions with paired intervals, from
reports of `cairn fidelity --json`.

    python3 benchmarks/fidelity/claims.py [LABEL=]REPORT.json ...

LABEL tells contexts of other lengths apart: rows of one suite with different labels are never
compared. If several reports have a recipe, the row with the most texts counts; two recipes are
compared on the texts that both have. A report's rows are those of its day, and what a recipe keeps
depends on nothing else, so rows of different reports may be compared: those that were measured
twice are the same to ten digits.
"""

import argparse
import pathlib

from paired import ANSWERS, difference, or_exit, rows_of
from questions import CODECS, READING, SELECTIONS, name_of

QUESTIONS = SELECTIONS + CODECS + READING

# The present names of recipes in that day's reports, where a default has changed since.
RENAMED = {
    "2026-11-22": {
        "pyramidkv": "pyramidkv:beside=0",
        "ada-pyramidkv": "ada-pyramidkv:beside=0",
        "simlayer": "simlayer:queries=1",
    }
}


def parse(recipe):
    """Selection, its parameters but `keep` and `heads`, the share kept; None with another codec,
    and of what is no selection."""
    selection, plus, codec = recipe.partition("+")
    if not plus or codec != "raw":
        return None
    name, _, text = selection.partition(":")
    values = dict(pair.split("=", 1) for pair in text.split(",") if pair)
    keep = float(values.pop("keep", 1))
    values.pop("heads", None)
    return name, frozenset(values.items()), keep


def of_question(recipe, keep):
    name, _, text = recipe.partition(":")
    return name, frozenset(tuple(p.split("=", 1)) for p in text.split(",") if p), keep


def sizes(first, second):
    """How large two rows are in bits a number: of a policy what a step reads of the whole KV, of a
    recipe what is stored. The word stands only where policies are compared."""
    pair = [
        (row["read_bits_per_number"], "read")
        if row.get("read_bits_per_number")
        else (row["bits_per_number"], "stored")
        for row in (first, second)
    ]
    (a, of_first), (b, of_second) = pair
    if of_first != of_second:
        return f"{a:.2f} bits {of_first}, {b:.2f} bits {of_second}"
    return f"{a:.2f}, {b:.2f} bits" + (" read" if of_first == "read" else "")


class Rows:
    def __init__(self, reports):
        self.columns = []
        # By column and parse(); by column and name.
        self.rows, self.named = {}, {}
        for report in reports:
            label, equals, path = report.partition("=")
            label, path = (label, path) if equals else ("", report)
            self._read(label, pathlib.Path(path))
        self.keeps = sorted({key[2] for _, key in self.rows}, reverse=True)

    def _read(self, label, path):
        renamed = RENAMED.get(path.name[: len("2026-11-22")], {})
        for row in rows_of([path]):
            column = f"{row['suite']}{' ' + label if label else ''}"
            if column not in self.columns:
                self.columns.append(column)
            self._take(self.named, (column, name_of(row["recipe"])), row)
            key = parse(row["recipe"])
            if key is None:
                continue
            if not key[1]:
                key = of_question(renamed.get(key[0], key[0]), key[2])
            self._take(self.rows, (column, key), row)

    @staticmethod
    def _take(rows, key, row):
        if key not in rows or len(rows[key]["texts"]) < len(row["texts"]):
            rows[key] = row

    def answers(self, question):
        """Column, what is kept or how large both are in bits a number, and the difference; None
        where full KV answers nothing."""
        for column in self.columns:
            first, second = (self.named.get((column, r)) for r in (question.first, question.second))
            if first and second:
                yield column, sizes(first, second), difference(first, second)
        for keep in self.keeps:
            keys = [of_question(r, keep) for r in (question.first, question.second)]
            for column in self.columns:
                first, second = (self.rows.get((column, key)) for key in keys)
                if first and second:
                    yield column, f"{100 * keep:g} %", difference(first, second)


def table(rows):
    """Markdown: a line for each question and each suite that answers it."""
    out = [
        "| paper | question | kept | suite | texts | first against second (95 %) | answer |",
        "|---" * 7 + "|",
    ]
    for question in QUESTIONS:
        for column, kept, found in rows.answers(question):
            if found is not None:
                out.append(
                    f"| {question.paper} | {question.asked} | {kept} | {column} | {found.texts} "
                    f"| {found.words()} | {found.answer()} |"
                )
    return out


def values(rows):
    """Markdown: a line for each selection, with a column for each suite that has one."""
    columns = [c for c in rows.columns if any(column == c for column, _ in rows.rows)]
    out = ["| recipe | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for key in sorted({key for _, key in rows.rows}, key=lambda k: (-k[2], k[0], sorted(k[1]))):
        cells = []
        for column in columns:
            row = rows.rows.get((column, key))
            if row is None:
                cells.append("")
            elif row["suite"] in ANSWERS:
                cells.append(f"{row['needles_ok']}/{row['needles_n']}")
            else:
                cells.append(f"{row['kl']:.4f}, {len(row['texts'])}")
        text = ",".join([f"keep={key[2]:g}", *sorted(f"{k}={v}" for k, v in key[1])])
        out.append(f"| `{key[0]}:{text}` | " + " | ".join(cells) + " |")
    return out


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "reports",
        nargs="+",
        metavar="[LABEL=]REPORT.json",
        help="reports of cairn fidelity --json; those of other context lengths with a label",
    )
    arguments = parser.parse_args()
    rows = or_exit(parser, lambda: Rows(arguments.reports))
    for title, lines in (("Claims", table(rows)), ("Values", values(rows))):
        print("\n".join([f"### {title}", *lines, ""]))


if __name__ == "__main__":
    main()
