#!/usr/bin/env python3
"""Draws what a worker's scheduling brings, from kept results: tokens per second over chats
(`batch_bench counts`), and time to first token over load (`scheduling_model --json`).

python3 docs/images/scheduling_svg.py --chats benchmarks/results/DATE-batch-counts.json
--load benchmarks/results/DATE-order-load.json --out docs/images
"""

import argparse
import json
import math
import pathlib
import re
import statistics

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 60, 190, 24, 50


class Axis:
    """Places values between two ends, evenly or by their logarithm."""

    def __init__(self, first, last, begin, end, log=False):
        self._scale = math.log if log else float
        self._first, self._last = self._scale(first), self._scale(last)
        self._begin, self._end = begin, end

    def __call__(self, value):
        share = (self._scale(value) - self._first) / (self._last - self._first)
        return self._begin + (self._end - self._begin) * share


def plot(x_label, y_label, x_ticks, y_ticks, lines, log_x, log_y):
    """`lines`: name, colour, dash, points."""
    x_of = Axis(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT, log_x)
    y_of = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP, log_y)
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="8" y="14">{y_label}</text>',
        (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" '
            f'text-anchor="middle">{x_label}</text>'
        ),
    ]
    for tick in y_ticks:
        y = y_of(tick)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        y = HEIGHT - BOTTOM + 18
        out.append(f'<text x="{x_of(tick):.1f}" y="{y}" text-anchor="middle">{tick:g}</text>')
    for at, (name, colour, dash, points) in enumerate(lines):
        stroke = f'stroke="{colour}" stroke-width="2"' + (' stroke-dasharray="5 4"' if dash else "")
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(points))
        out.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        y, x = TOP + 20 * at + 10, WIDTH - RIGHT + 15
        out.append(f'<path d="M{x} {y}h20" {stroke}/>')
        out.append(f'<text x="{x + 26}" y="{y + 4}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def steps(most):
    """Five ticks from 0 to at least `most`."""
    size = 10 ** math.floor(math.log10(most / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if 4 * size * factor >= most)
    return [step * at for at in range(5)]


def chats(trials):
    speeds = {}
    for trial in trials:
        speeds.setdefault(trial["chats"], []).append(trial["tokens_per_second"])
    measured = [(count, statistics.median(values)) for count, values in speeds.items()]
    one = min(measured)[1]
    lines = [
        ("all chats together", "#0b6e4f", False, measured),
        ("one at a time", "#30638e", True, [(count, one) for count, _ in measured]),
    ]
    ticks = sorted(count for count, _ in measured)
    most = max(speed for _, speed in measured)
    return plot("chats at once", "tokens per second", ticks, steps(most), lines, True, False)


def load(rows):
    points = {}
    for row in rows:
        found = re.fullmatch(r"order_(p50|p99)_ttft_load_([0-9.]+)", row["name"])
        if not found:
            continue
        at = float(found[2])
        points.setdefault((found[1], "order"), []).append((at, row["value"]))
        points.setdefault((found[1], "fifo"), []).append((at, row["yardstick"]))
    lines = [
        ("p99, first in first out", "#d1495b", True, points["p99", "fifo"]),
        ("p99, in order", "#d1495b", False, points["p99", "order"]),
        ("p50, first in first out", "#30638e", True, points["p50", "fifo"]),
        ("p50, in order", "#30638e", False, points["p50", "order"]),
    ]
    ticks = sorted(x for x, _ in points["p50", "order"])
    y_ticks = [0.1, 1, 10, 100]
    return plot("load", "seconds to the first token", ticks, y_ticks, lines, False, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--chats", type=pathlib.Path, help="draws batch.svg")
    parser.add_argument("--load", type=pathlib.Path, help="draws order.svg")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the pictures")
    arguments = parser.parse_args()
    if arguments.chats:
        trials = json.loads(arguments.chats.read_text())["trials"]
        (arguments.out / "batch.svg").write_text(chats(trials))
    if arguments.load:
        rows = json.loads(arguments.load.read_text())["rows"]
        (arguments.out / "order.svg").write_text(load(rows))


if __name__ == "__main__":
    main()
