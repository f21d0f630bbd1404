#!/usr/bin/env python3
"""Prints rows of a report of run.py as a table for docs/operate/performance.md.

python3 benchmarks/markdown.py build/bench/report.json
"""

import json
import sys

from run import number, verdict


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    print(
        "| row | median | spread | yardstick | ratio | floor | goal | |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for r in report["rows"]:
        print(
            f"| `{r['name']}` | {number(r['median'])} {r['unit']} | {r['spread']:.0%} "
            f"| {r['yardstick']} | {number(r['ratio'])} "
            f"| {number(r['floor'])} | {number(r['goal'])} | {verdict(r)} |"
        )
    print(f"\n{report['machine']}; commit {report['commit']}; `{report['command']}`.")


if __name__ == "__main__":
    main()
