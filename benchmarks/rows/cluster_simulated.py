"""Clusters of up to a thousand members in one thread: the targets of cairn_cluster_simulation.
Counts and simulated times, so the machine does not matter, and one sample says all."""

import json
import subprocess

from . import row

MEMBERS = 1000
NAMES = [
    "simulated_balance",
    "simulated_churn_hits",
    "simulated_herd_last",
    "simulated_herd_copies",
    "simulated_large_herd_last",
    "simulated_large_herd_copies",
    "simulated_sleeping_discovery",
]


def run(build, _model, _repeat, work):
    done = subprocess.run(
        [build / "bin/cairn_cluster_simulation", "--targets", "--json", "--nodes", str(MEMBERS)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    (work / "cluster_simulated.jsonl").write_text(done.stdout)
    # 1: a target is missed, which the rows show.
    if done.returncode not in (0, 1):
        raise RuntimeError(f"cairn_cluster_simulation: {done.stderr.strip()}")
    targets = [json.loads(line) for line in done.stdout.splitlines()]
    return [_row(target) for target in targets if target["name"] in NAMES]


def _row(target):
    got, limit, goal = target["got"], target["limit"], target["goal"]
    if target["at_most"]:
        return row(
            target["name"],
            [got],
            "times",
            f"{target['what']}; at most {limit:g}",
            limit / got,
            1.0,
            limit / goal,
        )
    return row(target["name"], [got], "share", target["what"], got, limit, goal)
