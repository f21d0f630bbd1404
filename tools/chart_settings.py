#!/usr/bin/env python3
"""Writes the programs' settings into the chart's schema, so that Helm checks the values' `config`.

usage: tools/chart_settings.py [--check]

They come from the tables of docs/operate/config*.md, which the programs print and their tests compare. A new
setting is reachable as soon as its table has it.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "helm/cairn/values.schema.json"
PAGES = {"cache": "config.md", "worker": "config-worker.md", "router": "config-router.md"}
ROW = re.compile(r"^\| `([a-z0-9_.]+)` \| `[^`]*` \| (.*?) \| ", re.M)
TIME = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?(us|ms|s|m|h|d)$"}
SIZE = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?([KMGT]i?)?B$"}


def number(text):
    return float(text) if "." in text else int(text)


def schema_of(expected):
    """The schema of what a table's column "expected" says."""
    if expected == "true or false":
        return {"type": "boolean"}
    if expected.startswith("one of "):
        return {"enum": expected.removeprefix("one of ").split(", ")}
    if found := re.match(r"(an integer|a number) from (\S+) to (\S+)", expected):
        kind = "integer" if found[1] == "an integer" else "number"
        return {"type": kind, "minimum": number(found[2]), "maximum": number(found[3])}
    if found := re.match(r"a list of texts of at most (\d+)", expected):
        return {"type": "array", "items": {"type": "string", "maxLength": int(found[1])}}
    if found := re.match(r"text of at most (\d+)", expected):
        return {"type": "string", "maxLength": int(found[1])}
    if "a time from" in expected:
        return TIME
    if "a size from" in expected:
        return SIZE
    raise ValueError(f"no schema for '{expected}'")


def settings(role):
    """{key: what is expected} of a role's program."""
    text = (ROOT / "docs/operate" / PAGES[role]).read_text(encoding="utf-8")
    return dict(ROW.findall(text))


def tree(role):
    """The schema of a role's `config`."""
    root = {"type": "object", "additionalProperties": False, "properties": {}}
    for key, expected in settings(role).items():
        at = root
        *levels, last = key.split(".")
        for level in levels:
            at = at["properties"].setdefault(
                level, {"type": "object", "additionalProperties": False, "properties": {}}
            )
        at["properties"][last] = schema_of(expected)
    return root


def text_of(value, indent=0):
    """JSON with short things in one line."""
    flat = json.dumps(value)
    if len(flat) + indent <= 96 or not isinstance(value, (dict, list)):
        return flat
    space = " " * (indent + 2)
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {text_of(v, indent + 2)}" for k, v in value.items()]
    else:
        items = [text_of(v, indent + 2) for v in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return ends[0] + "\n" + ",\n".join(space + i for i in items) + "\n" + " " * indent + ends[1]


def main(arguments):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema = {"$schema": schema.pop("$schema"), "title": schema.pop("title"), **schema}
    schema["$defs"].update({f"{role}Config": tree(role) for role in PAGES})
    text = text_of(schema) + "\n"
    if arguments == ["--check"]:
        return 0 if text == SCHEMA.read_text(encoding="utf-8") else "run tools/chart_settings.py"
    SCHEMA.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
