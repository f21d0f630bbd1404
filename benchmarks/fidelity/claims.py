#!/usr/bin/env python3
"""What papers claim of each other and of their forms, as questions with paired intervals, from
reports of `cairn fidelity --json`.

    python3 benchmarks/fidelity/claims.py [LABEL=]REPORT.json...

Rows of one suite in reports of different labels (contexts of other lengths) stand in columns of
their own. A cell has KL of the first recipe over that of the second, or points of answers more,
with a 95 % interval over the texts; empty where a recipe was not measured.
"""

import argparse
import json

from compare import ANSWERS, kl_ratio, needle_points

# Question: (what is asked, first recipe, second recipe); `keep` and the codec are left out.
FORMS = (
    ("Do the authors' shares in stage 1 help DefensiveKV?", "defensive:relative=1", "defensive"),
    ("And Layer-DefensiveKV?", "layer-defensive:relative=1", "layer-defensive"),
    ("Does Ada-KV's mixture beat its floor?", "ada-snapkv:mix=1", "ada-snapkv"),
    ("Does PyramidKV beat SnapKV, window beside?", "pyramidkv", "snapkv"),
    ("Does the window beside beat kvpress's PyramidKV?", "pyramidkv", "pyramidkv:beside=0"),
    ("Do SnapKV's settings of the papers beat kvpress's?", "snapkv-paper", "snapkv"),
    ("Does a window of 32 help SnapKV?", "snapkv:window=32", "snapkv"),
    ("Do Ada-KV's budgets help with it?", "ada-snapkv:window=32", "snapkv:window=32"),
    ("Do ChunkKV's settings of the paper beat kvpress's?", "chunkkv-paper", "chunkkv"),
    ("Do chunks of 10 beat chunks of 20?", "chunkkv:chunk=10", "chunkkv"),
    ("Do chunks of 3 beat chunks of 20?", "chunkkv:chunk=3", "chunkkv"),
    ("Does reusing rows in pairs of layers cost ChunkKV?", "chunkkv:reuse=2", "chunkkv"),
    ("Do single rows in the deeper half help ChunkKV?", "chunkkv:chunked=0.5", "chunkkv"),
    ("Does SimLayerKV (128 recent) beat StreamingLLM?", "simlayer:recent=128", "streaming"),
)
CLAIMS = (
    ("Do Ada-KV's budgets help SnapKV?", "ada-snapkv", "snapkv"),
    ("And in the authors' form and settings?", "ada-snapkv-paper", "snapkv-paper"),
    ("Do Ada-KV's budgets help CriticalKV?", "ada-criticalkv", "criticalkv"),
    ("Does ChunkKV beat SnapKV?", "chunkkv", "snapkv"),
    ("And in the papers' settings?", "chunkkv-paper", "snapkv-paper"),
    ("Does SnapKV beat H2O?", "snapkv", "h2o"),
    ("Does CriticalKV beat SnapKV?", "criticalkv", "snapkv"),
    ("Does DefensiveKV beat SnapKV?", "defensive", "snapkv"),
    ("Does Layer-DefensiveKV beat DefensiveKV?", "layer-defensive", "defensive"),
    ("Does Layer-DefensiveKV beat SnapKV?", "layer-defensive", "snapkv"),
    ("Does HeadKV beat Ada-KV?", "headkv", "ada-snapkv-paper"),
    ("Does HeadKV beat SnapKV in its settings?", "headkv", "snapkv-paper"),
    ("Does PrefixKV beat H2O?", "prefixkv", "h2o"),
    ("Does NACL beat H2O?", "nacl", "h2o"),
    ("Does NACL's lot beat SnapKV?", "nacl", "snapkv"),
    ("Does Keyformer beat H2O?", "keyformer", "h2o"),
)


def parse(recipe):
    """Selection, its parameters but `keep` and `heads`, the share kept; None with another codec."""
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


class Rows:
    def __init__(self, reports):
        self.columns, self.rows = [], {}
        for report in reports:
            label, equals, path = report.partition("=")
            label, path = (label, path) if equals else ("", report)
            with open(path, encoding="utf-8") as file:
                for row in json.load(file)["rows"]:
                    key = parse(row["recipe"])
                    if key is None:
                        continue
                    column = f"{row['suite']}{' ' + label if label else ''}"
                    if column not in self.columns:
                        self.columns.append(column)
                    self.rows[column, key] = row
        self.keeps = sorted({key[2] for _, key in self.rows}, reverse=True)

    def cell(self, column, first, second):
        a, b = self.rows.get((column, first)), self.rows.get((column, second))
        if a is None or b is None:
            return ""
        if a["suite"] in ANSWERS:
            return "{:+.1f} ({:+.1f} to {:+.1f})".format(*needle_points(a, b))
        return "{:.2f} ({:.2f} to {:.2f})".format(*kl_ratio(a, b))


def table(questions, rows):
    """Markdown; columns in which no question has an answer are left out."""
    found = []
    for question, first, second in questions:
        for keep in rows.keeps:
            cells = [
                rows.cell(c, of_question(first, keep), of_question(second, keep))
                for c in rows.columns
            ]
            if any(cells):
                found.append((f"{question} | {100 * keep:g} %", cells))
    used = [i for i in range(len(rows.columns)) if any(cells[i] for _, cells in found)]
    names = [f"{c}: {'points' if c.split()[0] in ANSWERS else 'KL over it'}" for c in rows.columns]
    return [
        "| question | kept | " + " | ".join(names[i] for i in used) + " |",
        "|---" * (2 + len(used)) + "|",
        *(f"| {begin} | " + " | ".join(cells[i] for i in used) + " |" for begin, cells in found),
    ]


def values(rows):
    out = ["| recipe | " + " | ".join(rows.columns) + " |", "|---" * (1 + len(rows.columns)) + "|"]
    for key in sorted({key for _, key in rows.rows}, key=lambda k: (-k[2], k[0], sorted(k[1]))):
        cells = []
        for column in rows.columns:
            row = rows.rows.get((column, key))
            if row is None:
                cells.append("")
            elif row["suite"] in ANSWERS:
                cells.append(f"{row['needles_ok']}/{row['needles_n']}")
            else:
                cells.append(f"{row['kl']:.4f}")
        text = ",".join([f"keep={key[2]:g}", *sorted(f"{k}={v}" for k, v in key[1])])
        out.append(f"| `{key[0]}:{text}` | " + " | ".join(cells) + " |")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", metavar="[LABEL=]REPORT.json")
    rows = Rows(parser.parse_args().reports)
    for title, lines in (
        ("Forms", table(FORMS, rows)),
        ("Claims", table(CLAIMS, rows)),
        ("Values", values(rows)),
    ):
        print("\n".join([f"### {title}", *lines, ""]))


if __name__ == "__main__":
    main()
