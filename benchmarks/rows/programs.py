"""Benchmark programs that print their rows as JSON (benchmarks/model, scheduling_bench)."""

import json
import subprocess

from . import row


def measure(command, work):
    """The output of the program, which is kept in the folder `work`, too."""
    done = subprocess.run(
        command + ["--json"], capture_output=True, text=True, timeout=900, check=False
    )
    name = command[0].name
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr.strip()}")
    (work / f"{name}.json").write_text(done.stdout)
    return json.loads(done.stdout)


def model_rows(measured, table):
    """The rows of a model's results. `table` has the yardstick, floor and goal of each name."""
    rows = []
    for one in measured:
        yardstick, floor, goal = table[one["name"]]
        shown = f"{yardstick} {one['yardstick']:.3g} {one['unit']}"
        rows.append(row(one["name"], [one["value"]], one["unit"], shown, one["ratio"], floor, goal))
    return rows
