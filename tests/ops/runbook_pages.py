"""The pages that say what to do when an alert fires or the hit rate is down, and their commands."""

import functools
import itertools
import re
import shlex

import yaml

from conftest import ROOT

RULES = ROOT / "helm/cairn/files/rules"
FOLDER = ROOT / "docs/operate/runbooks"
PAGES = {p.stem: p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("Cairn*.md"))}
HIT_RATE = (ROOT / "docs/operate/hit-rate.md").read_text(encoding="utf-8")
METRICS = [f"operate/metrics{role}.md" for role in ("", "-worker", "-router")] + [
    "program/engines/vllm.md"
]


def alerts():
    """(file, rule) of each alert."""
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield path, rule


@functools.cache
def metric_rows():
    """The row of each metric in the tables of the pages of metrics."""
    rows = {}
    for page in METRICS:
        for row in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
            if row.startswith("|"):
                rows |= dict.fromkeys(re.findall(r"`(\w+)`", row.split(" | ")[0]), row)
    return rows


def series_of(name):
    """The metric of a name, which may be one of the series of a histogram."""
    return re.sub("_(bucket|count|sum)$", "", name)


def commands(text):
    """Lines of the shell blocks of a page."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.S)
    return [line for block in blocks for line in block.splitlines()]


def quoted(text, program):
    """Commands of a program between backquotes."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    return [" ".join(c.split()) for c in re.findall(rf"`({program} [^`]+)`", prose)]


def patterns(command):
    """All that the greps of a command look for, each alternative by itself."""
    found = []
    for part in command.split(" | ")[1:]:
        words = shlex.split(part)
        if words[0] == "grep":
            found += alternatives(words[-1])
    return found


def alternatives(pattern):
    """A pattern without `|`, once for each way through its groups. Groups do not nest."""
    parts = re.split(r"\(([^()]*)\)", pattern)
    if len(parts) == 1:
        return pattern.split("|")
    choices = [p.split("|") if n % 2 else [p] for n, p in enumerate(parts)]
    return ["".join(one) for one in itertools.product(*choices)]
