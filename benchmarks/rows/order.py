"""Order, overload and a flooding tenant, in simulated time under the policies of a worker
(benchmarks/model)."""

import json
import subprocess

from . import row

# The yardstick, floor and goal of each row. Ratios are "more is better".
TARGETS = {
    "order_mean_ttft_load_1.17": ("first in first out", 1.6, 2.0),
    "order_p99_ttft_load_1.17": ("first in first out", 1 / 1.1, 1.0),
    "order_mean_ttft_load_0.84": ("first in first out", None, None),
    "order_mean_ttft_load_1.34": ("first in first out", None, None),
    "overload_p99_ttft": ("at saturation", 1 / 1.5, 1 / 1.25),
    "overload_tokens_per_second": ("at saturation", 0.95, 1.0),
    "flood_p99_ttft": ("alone at half the speed", 1 / 1.5, 1 / 1.2),
}
NAMES = list(TARGETS)


def run(build, _model, _repeat, work):
    done = subprocess.run(
        [build / "benchmarks/scheduling_model", "--json"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"scheduling_model: {done.stderr.strip()}")
    (work / "scheduling_model.json").write_text(done.stdout)
    rows = []
    for measured in json.loads(done.stdout)["rows"]:
        if measured["name"] not in TARGETS:
            continue
        yardstick, floor, goal = TARGETS[measured["name"]]
        rows.append(
            row(
                measured["name"],
                [measured["value"]],
                measured["unit"],
                f"{yardstick} {measured['yardstick']:.3g} {measured['unit']}",
                measured["ratio"],
                floor,
                goal,
            )
        )
    return rows
