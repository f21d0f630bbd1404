#!/usr/bin/env python3
"""Draws the time to first token over the load, for all policies of a router, from the model.

python3 benchmarks/model/routing_svg.py --model build/release/benchmarks/scheduling_model
--out benchmarks/results/DATE-routing.json --svg docs/images/routing.svg
"""

import argparse
import json
import math
import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIOS = "routing,fifo,engines,replicas,shedding,unequal,generated"
LINES = [
    ("cost", "#0b6e4f"),
    ("affinity", "#30638e"),
    ("least_load", "#8d6a9f"),
    ("round_robin", "#888888"),
    ("sglang", "#e09f3e"),
    ("dynamo", "#d1495b"),
    ("llm-d", "#7f4f24"),
    ("least_ttft", "#2a9d6f"),
]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 150, 30, 50
LEAST, MOST = 0.1, 1000.0  # Seconds.
FROM, TO = 0.5, 1.34  # Loads.


def play(model):
    done = subprocess.run(
        [model, "--only", SCENARIOS, "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def x_of(load):
    return LEFT + (WIDTH - LEFT - RIGHT) * (load - FROM) / (TO - FROM)


def y_of(seconds):
    share = math.log(seconds / LEAST) / math.log(MOST / LEAST)
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def draw(runs):
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16">seconds to the first token: median (line), p99 (dashes)</text>',
    ]
    for seconds in (0.1, 1, 10, 100, 1000):
        y = y_of(seconds)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{seconds:g}</text>')
    routing = [run for run in runs if run["scenario"] == "routing"]
    for load in sorted({run["load"] for run in routing}):
        y = HEIGHT - BOTTOM + 18
        out.append(f'<text x="{x_of(load):.1f}" y="{y}" text-anchor="middle">{load:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">load</text>')
    for at, (policy, colour) in enumerate(LINES):
        for key, dashes in (("p50", ""), ("p99", ' stroke-dasharray="4 4"')):
            points = " ".join(
                f"{x_of(run['load']):.1f},{y_of(run[key]):.1f}"
                for run in routing
                if run["policy"] == policy
            )
            out.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="2"{dashes}/>'
            )
        y = TOP + 20 * at + 10
        x = WIDTH - RIGHT + 15
        out.append(f'<path d="M{x} {y}h20" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{x + 26}" y="{y + 4}">{policy}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--model", default="build/release/benchmarks/scheduling_model", type=pathlib.Path
    )
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the runs, as JSON")
    parser.add_argument("--svg", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    played = play(arguments.model.resolve())
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}"
    report = {
        "machine": f"{machine} (simulated time: the figures do not depend on it)",
        "commit": commit.stdout.strip(),
        "command": " ".join(sys.argv),
        **played,
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    arguments.svg.write_text(draw(played["runs"]))


if __name__ == "__main__":
    main()
