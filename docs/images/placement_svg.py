#!/usr/bin/env python3
"""Draws blocks hit over capacity for all eviction policies, from real replays.

python3 docs/images/placement_svg.py --cairn build/release/bin/cairn
--out benchmarks/results/DATE-placement.json --svg docs/images/placement.svg
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
TRACE = "tests/data/traces/conversation_trace.jsonl"
CAPACITIES = [500_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 6_000_000, 8_000_000, 12_000_000]
LINES = [
    ("optimum", 0, "#888888"),
    ("cairn", 100, "#0b6e4f"),
    ("cairn", 50, "#2a9d6f"),
    ("cairn", 0, "#d1495b"),
    ("s3fifo", 0, "#8d6a9f"),
    ("gdsf", 0, "#e09f3e"),
    ("lru", 0, "#30638e"),
]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 180, 20, 50
MOST = 0.4


def replay(cairn, policy, hints, capacity):
    done = subprocess.run(
        [cairn, "replay", TRACE, "--capacity-tokens", str(capacity), "--policy", policy]
        + ["--hints", str(hints), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def x_of(capacity):
    first, last = math.log(CAPACITIES[0]), math.log(CAPACITIES[-1])
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(capacity) - first) / (last - first)


def y_of(rate):
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate / MOST)


def draw(results):
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for step in range(5):
        rate = step / 10
        y = y_of(rate)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:.1f}</text>')
    for capacity in CAPACITIES:
        label = f"{capacity / 1e6:g}M"
        y = HEIGHT - BOTTOM + 18
        out.append(f'<text x="{x_of(capacity):.1f}" y="{y}" text-anchor="middle">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">tokens that fit</text>'
    )
    out.append(f'<text x="{LEFT}" y="14" text-anchor="middle">blocks hit</text>')
    for at, (policy, hints, colour) in enumerate(LINES):
        points = " ".join(
            f"{x_of(r['capacity_tokens']):.1f},{y_of(r['hit_rate_blocks']):.1f}"
            for r in results
            if r["policy"] == policy and r["hints_percent"] == hints
        )
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 20 * at + 10
        x = WIDTH - RIGHT + 15
        out.append(f'<path d="M{x} {y}h20" stroke="{colour}" stroke-width="2"/>')
        name = policy if hints == 0 else f"{policy}, {hints} % hinted"
        out.append(f'<text x="{x + 26}" y="{y + 4}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cairn", default="build/release/bin/cairn", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the replays, as JSON")
    parser.add_argument("--svg", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    results = [
        replay(arguments.cairn.resolve(), policy, hints, capacity)
        for policy, hints, _ in LINES
        for capacity in CAPACITIES
    ]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    report = {
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}",
        "commit": commit.stdout.strip(),
        "command": " ".join(sys.argv),
        "replays": results,
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    arguments.svg.write_text(draw(results))


if __name__ == "__main__":
    main()
