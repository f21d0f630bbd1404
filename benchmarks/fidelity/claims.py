#!/usr/bin/env python3
"""What papers claim of each other and of their forms, as questions with paired intervals, from
reports of `cairn fidelity --json`.

    python3 benchmarks/fidelity/claims.py [LABEL=]REPORT.json...

LABEL tells contexts of other lengths apart: rows of one suite with different labels are never
compared. Of a recipe that several reports have, the row with the most texts counts; two recipes are
compared on the texts that both have. A report's rows are those of its day, and what a recipe keeps
depends on nothing else, so rows of different reports may be compared: those that were measured
twice are the same to ten digits.
"""

import argparse
import json
import pathlib

from paired import ANSWERS, Question, difference

# `keep` and the codec of the recipes are left out.
QUESTIONS = (
    Question("Do the first rows help?", "streaming", "streaming:sinks=0", "StreamingLLM"),
    Question("Does it beat a random choice?", "streaming", "random", "StreamingLLM"),
    Question("Does it beat StreamingLLM?", "h2o", "streaming", "H2O"),
    Question("Does it beat H2O?", "tova", "h2o", "TOVA"),
    Question("Does it beat StreamingLLM?", "tova", "streaming", "TOVA"),
    Question("Does it beat H2O?", "snapkv", "h2o", "SnapKV"),
    Question("Do the paper's settings beat kvpress's?", "snapkv-paper", "snapkv", "SnapKV"),
    Question("Does a window of 32 beat one of 64?", "snapkv:window=32", "snapkv", "SnapKV"),
    Question("Does it beat H2O, in the paper's settings?", "snapkv-paper", "h2o", "SnapKV"),
    Question("Does it beat SnapKV, window beside the budget?", "pyramidkv", "snapkv", "PyramidKV"),
    Question("Does it beat SnapKV, kvpress's form?", "pyramidkv:beside=0", "snapkv", "PyramidKV"),
    Question(
        "Does the window beside beat kvpress's form?",
        "pyramidkv",
        "pyramidkv:beside=0",
        "PyramidKV",
    ),
    Question("Do its budgets help SnapKV, kvpress's floor?", "ada-snapkv", "snapkv", "Ada-KV"),
    Question("And the authors' mixture?", "ada-snapkv:mix=1", "snapkv", "Ada-KV"),
    Question(
        "And the floor with a window of 32?", "ada-snapkv:window=32", "snapkv:window=32", "Ada-KV"
    ),
    Question(
        "And in the authors' form and settings?", "ada-snapkv-paper", "snapkv-paper", "Ada-KV"
    ),
    Question("Does the mixture beat the floor?", "ada-snapkv:mix=1", "ada-snapkv", "Ada-KV"),
    Question(
        "Do its budgets help PyramidKV, kvpress's form?",
        "ada-pyramidkv:beside=0",
        "pyramidkv:beside=0",
        "Ada-KV",
    ),
    Question("Do its budgets help CriticalKV?", "ada-criticalkv", "criticalkv", "Ada-KV"),
    Question("Do its budgets help Expected Attention?", "ada-expected", "expected", "Ada-KV"),
    Question("Does it beat SnapKV?", "chunkkv", "snapkv", "ChunkKV"),
    Question("And in both papers' settings?", "chunkkv-paper", "snapkv-paper", "ChunkKV"),
    Question("Do the paper's settings beat kvpress's?", "chunkkv-paper", "chunkkv", "ChunkKV"),
    Question("Do chunks of 3 beat chunks of 20?", "chunkkv:chunk=3", "chunkkv", "ChunkKV"),
    Question("Do chunks of 5 beat chunks of 20?", "chunkkv:chunk=5", "chunkkv", "ChunkKV"),
    Question("Do chunks of 10 beat chunks of 20?", "chunkkv:chunk=10", "chunkkv", "ChunkKV"),
    Question("Do chunks of 30 beat chunks of 20?", "chunkkv:chunk=30", "chunkkv", "ChunkKV"),
    Question(
        "Is scoring each layer better than reuse in pairs?", "chunkkv", "chunkkv:reuse=2", "ChunkKV"
    ),
    Question("Does reuse in pairs beat SnapKV?", "chunkkv:reuse=2", "snapkv", "ChunkKV"),
    Question(
        "Are chunks in the first half of the layers better than in all?",
        "chunkkv:chunked=0.5",
        "chunkkv",
        "ChunkKV",
    ),
    Question("Does it beat SnapKV?", "criticalkv", "snapkv", "CriticalKV"),
    Question("Does it beat SnapKV?", "defensive", "snapkv", "DefensiveKV"),
    Question("Does it beat CriticalKV?", "defensive", "criticalkv", "DefensiveKV"),
    Question(
        "Does it share budgets over layers with gain?",
        "layer-defensive",
        "defensive",
        "DefensiveKV",
    ),
    Question("Does it beat SnapKV with that?", "layer-defensive", "snapkv", "DefensiveKV"),
    Question(
        "Do the authors' shares in stage 1 help?",
        "defensive:relative=1",
        "defensive",
        "DefensiveKV",
    ),
    Question("And over layers?", "layer-defensive:relative=1", "layer-defensive", "DefensiveKV"),
    Question("Does it beat Ada-KV?", "headkv", "ada-snapkv-paper", "HeadKV"),
    Question("Does it beat SnapKV in its settings?", "headkv", "snapkv-paper", "HeadKV"),
    Question("Does it beat H2O?", "prefixkv", "h2o", "PrefixKV"),
    Question("Does it beat StreamingLLM?", "prefixkv", "streaming", "PrefixKV"),
    Question("Does it beat H2O?", "nacl", "h2o", "NACL"),
    Question("Does its lot beat SnapKV?", "nacl", "snapkv", "NACL"),
    Question("Does it beat H2O?", "keyformer", "h2o", "Keyformer"),
    Question("Does it beat SnapKV?", "cake", "snapkv", "CAKE"),
    Question("Does it beat PyramidKV, kvpress's form?", "cake", "pyramidkv:beside=0", "CAKE"),
    Question("Does it beat SnapKV?", "expected", "snapkv", "Expected Attention"),
    Question("Does it beat TOVA?", "expected", "tova", "Expected Attention"),
    Question("Does it beat the L2 norm?", "keydiff", "knorm", "KeyDiff"),
    Question("Does it beat StreamingLLM?", "keydiff", "streaming", "KeyDiff"),
    Question("Does it beat TOVA?", "keydiff", "tova", "KeyDiff"),
    Question("Does it beat the L2 norm?", "lagkv", "knorm", "LagKV"),
    Question("Does it beat StreamingLLM?", "lagkv", "streaming", "LagKV"),
    Question("Does it beat a random choice?", "knorm", "random", "L2 norm"),
    Question(
        "Does it beat StreamingLLM, 128 recent rows?",
        "simlayer:recent=128",
        "streaming",
        "SimLayerKV",
    ),
    Question("Does it beat StreamingLLM?", "sepllm", "streaming", "SepLLM"),
)

# What recipes of that day's reports are called today, where a default has changed since.
RENAMED = {
    "2026-11-22": {
        "pyramidkv": "pyramidkv:beside=0",
        "ada-pyramidkv": "ada-pyramidkv:beside=0",
        "simlayer": "simlayer:queries=1",
    }
}


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
            self._read(label, pathlib.Path(path))
        self.keeps = sorted({key[2] for _, key in self.rows}, reverse=True)

    def _read(self, label, path):
        renamed = RENAMED.get(path.name[: len("2026-11-22")], {})
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            key = parse(row["recipe"])
            if key is None:
                continue
            if not key[1]:
                key = of_question(renamed.get(key[0], key[0]), key[2])
            column = f"{row['suite']}{' ' + label if label else ''}"
            if column not in self.columns:
                self.columns.append(column)
            other = self.rows.get((column, key))
            if other is None or len(other["texts"]) < len(row["texts"]):
                self.rows[column, key] = row

    def compared(self, column, first, second):
        """None where one was not measured."""
        a, b = self.rows.get((column, first)), self.rows.get((column, second))
        return None if a is None or b is None else difference(a, b)


def table(rows):
    """Markdown: a line for each question and each suite that answers it."""
    out = [
        "| paper | question | kept | suite | texts | first against second (95 %) | answer |",
        "|---" * 7 + "|",
    ]
    for question in QUESTIONS:
        for keep in rows.keeps:
            first, second = (of_question(r, keep) for r in (question.first, question.second))
            for column in rows.columns:
                found = rows.compared(column, first, second)
                if found is not None:
                    out.append(
                        f"| {question.paper} | {question.asked} | {100 * keep:g} % | {column} "
                        f"| {found.texts} | {found.words()} | {found.answer()} |"
                    )
    return out


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
                cells.append(f"{row['kl']:.4f}, {len(row['texts'])}")
        text = ",".join([f"keep={key[2]:g}", *sorted(f"{k}={v}" for k, v in key[1])])
        out.append(f"| `{key[0]}:{text}` | " + " | ".join(cells) + " |")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", metavar="[LABEL=]REPORT.json")
    rows = Rows(parser.parse_args().reports)
    for title, lines in (("Claims", table(rows)), ("Values", values(rows))):
        print("\n".join([f"### {title}", *lines, ""]))


if __name__ == "__main__":
    main()
