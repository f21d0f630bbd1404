#!/usr/bin/env python3
"""Writes the chart's README from its values and their comments, for `helm show readme`.

usage: tools/chart_readme.py [--check]
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHART = ROOT / "helm/cairn"
README = CHART / "README.md"
HEAD = """# The Cairn chart

For operators: all values of this chart, with their defaults. How to install it, let it grow and
upgrade it: `docs/operate/kubernetes.md` of the same version. Unknown and misspelt values are
refused with their names.

`templates/` makes the objects. `files/` has rules of alerts, `files/dashboards/` the dashboards.

<!-- Written by tools/chart_readme.py out of values.yaml: change it there. -->
"""
LINE = re.compile(r"^( *)([A-Za-z_]+):(?: (.*))?$")


def values(text):
    """(path, default as written or "" for a group, comment) of each value."""
    path, comment = [], []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
            continue
        if found := LINE.match(line):
            depth = len(found[1]) // 2
            path = [*path[:depth], found[2]]
            yield ".".join(path), found[3] or "", " ".join(comment)
        comment = []


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def readme():
    lines, part = [HEAD.rstrip()], None
    # The head of the file speaks of the file.
    text = (CHART / "values.yaml").read_text(encoding="utf-8").split("\n\n", 1)[1]
    for path, default, comment in values(text):
        top = path.split(".")[0]
        if top != part:
            part = top
            lines += ["", f"## {top}"]
            if not default and comment:
                lines.append(textwrap.fill(comment, 100))
            lines += ["", "| value | default | |", "|---|---|---|"]
            if not default:
                continue
        shown = f"`{cell(default)}`" if default else ""
        if default or comment:
            lines.append(f"| `{path}` | {shown} | {cell(comment)} |")
    return "\n".join(lines) + "\n"


def main(arguments):
    text = readme()
    if arguments == ["--check"]:
        same = README.exists() and README.read_text(encoding="utf-8") == text
        return 0 if same else "run tools/chart_readme.py"
    README.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
