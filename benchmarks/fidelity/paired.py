"""Rows of `cairn fidelity --json` compared in pairs, text by text, with intervals.

A row is that of a recipe over a suite. Texts of a suite come in one order, so rows over different
numbers of them are compared over the first ones, which both have. Intervals are 95 %, by percentile
bootstrap over texts: both rows are judged on the texts that were drawn.
"""

import dataclasses
import json
import random

# A recipe takes as many bytes as another one if it takes at most 2 % more.
SLACK = 1.02
ROUNDS = 4000
# Suites of questions; the others are documents.
ANSWERS = ("needles", "multiturn", "keys", "tracking", "aggregation", "sums")


class ReportError(Exception):
    """A file is not the report that it was given as. Says which file, and what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Question:
    """Whether the first of two recipes is better than the second."""

    asked: str
    first: str
    second: str
    paper: str = ""  # The author of the claim.


@dataclasses.dataclass(frozen=True)
class Difference:
    """Percentage points of answers more than the second row's, or KL over the second row's."""

    value: float
    low: float
    high: float
    texts: int
    is_points: bool

    def __str__(self):
        form = "{:+.1f} ({:+.1f} to {:+.1f})" if self.is_points else "{:.3f} ({:.3f} to {:.3f})"
        return form.format(self.value, self.low, self.high)

    def words(self):
        if self.is_points:
            return f"{self.value:+.1f} points ({self.low:+.1f} to {self.high:+.1f})"
        return f"KL x {self}"

    def answer(self):
        """Whether the first row is better, as far as the interval tells."""
        better, worse = self.low > 0, self.high < 0
        if not self.is_points:
            better, worse = self.high < 1, self.low > 1
        return "yes" if better else "no" if worse else "not told apart"


def report_of(path, name, fields):
    """A report with the list `name`, whose entries have at least these fields; else ReportError."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path}: is not JSON: {error}") from error
    found = report.get(name) if isinstance(report, dict) else None
    if not isinstance(found, list):
        raise ReportError(f"{path}: expected an object with the list '{name}'")
    for entry in found:
        missing = [f for f in fields if not isinstance(entry, dict) or f not in entry]
        if missing:
            raise ReportError(f"{path}: an entry of '{name}' lacks '{missing[0]}'")
    return report


def entries(path, name, fields):
    """That list of the report."""
    return report_of(path, name, fields)[name]


def rows_of(paths):
    """Rows of reports of `cairn fidelity --json` or of programs that measure references."""
    return [row for path in paths for row in entries(path, "rows", ("suite", "recipe", "texts"))]


def or_exit(parser, read):
    """The result of `read`. A file that is no report ends the program, as a wrong argument does."""
    try:
        return read()
    except ReportError as error:
        parser.error(str(error))


def interval(groups, statistic):
    draw = random.Random(20260101)
    values = sorted(
        statistic([groups[draw.randrange(len(groups))] for _ in groups]) for _ in range(ROUNDS)
    )
    return values[int(0.025 * ROUNDS)], values[int(0.975 * ROUNDS) - 1]


def difference(row, other):
    """None if the two have no case in common that full KV answers."""
    texts = list(zip(row["texts"], other["texts"], strict=False))
    groups = answers_of_both(texts) if row["suite"] in ANSWERS else kl_of_both(texts)
    if not groups:
        return None
    statistic = points if row["suite"] in ANSWERS else ratio
    return Difference(
        statistic(groups), *interval(groups, statistic), len(texts), row["suite"] in ANSWERS
    )


def kl_of_both(texts):
    """Per document: KL of either, in the mean over its positions."""
    return [(ours[0] / ours[1], theirs[0] / theirs[1]) for ours, theirs in texts]


def ratio(groups):
    return sum(a for a, _ in groups) / sum(b for _, b in groups)


def answers_of_both(texts):
    """Per context: answers of either and the number of cases that full KV answers in both."""
    groups = []
    for ours, theirs in texts:
        cases = [
            (a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None
        ]
        if cases:
            groups.append((sum(a for a, _ in cases), sum(b for _, b in cases), len(cases)))
    return groups


def points(groups):
    return 100 * sum(a - b for a, b, _ in groups) / sum(n for _, _, n in groups)
