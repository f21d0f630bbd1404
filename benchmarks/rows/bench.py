"""Runs `cairn bench` for rows: its trials are interleaved with its yardsticks, and its ratios are
medians of the trials' ratios."""

import json
import subprocess

from . import row


def run(build, repeat, workload, **flags):
    """The report of one workload. depth=4 becomes --depth 4, lookup=True --lookup, verify=False
    --no-verify."""
    command = [str(build / "bin/cairn"), "bench", workload, "--json", "--repeat", str(repeat)]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is True:
            command.append(f"--{flag}")
        elif value is False:
            command.append(f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["noisy"]:
        print(f"{workload} {flags}: too few quiet trials, the quietest were taken")
    return report


def yardstick_name(report, name):
    value = report["yardsticks"][name]["median"]
    shown = f"tcp ({report['facts']['tcp_congestion_control']})" if name == "tcp" else name
    return f"{shown} {value:.2f} GB/s"


def speed_row(name, report, yardstick, floor, goal, metric="throughput"):
    """A row of GB/s over a yardstick of the same run."""
    measured = report["metrics"][metric]
    return row(
        name,
        measured["samples"],
        "GB/s",
        yardstick_name(report, yardstick),
        measured[f"x_{yardstick}"]["median"],
        floor,
        goal,
    )


def budget_row(name, report, metric, budget, floor, goal):
    """A row over a fixed number: `budget` per measured value, or the other way round for keys/s, so
    that more is better."""
    measured = report["metrics"][metric]
    unit = measured["unit"]
    more = unit == "keys/s"
    ratio = measured["median"] / budget if more else budget / measured["median"]
    shown = f"{budget / 1e6:g} M keys/s" if more else f"{budget:g} {unit}"
    return row(name, measured["samples"], unit, f"budget {shown}", ratio, floor, goal)
