"""Blocks hit on the conversation trace by each eviction policy, as the share of the gap between LRU
and the optimum that it closes, and what a replay costs next to LRU's. No node, no bytes."""

import json
import statistics
import subprocess

from . import row

CAPACITIES = [1_000_000, 3_000_000, 6_000_000, 12_000_000]
TRACE = "tests/data/traces/conversation_trace.jsonl"

NAMES = ["placement_gap_closed", "placement_gap_closed_hints", "placement_replay_time"]


def replay(build, policy, capacity, hints=0):
    done = subprocess.run(
        [
            build / "bin/cairn",
            "replay",
            TRACE,
            "--capacity-tokens",
            str(capacity),
            "--policy",
            policy,
            "--hints",
            str(hints),
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cairn replay: {done.stderr.strip()}")
    return json.loads(done.stdout)


def gap_closed(build, lru, optimum, hints):
    shares = []
    for capacity in CAPACITIES:
        hit = replay(build, "cairn", capacity, hints)["hit_rate_blocks"]
        shares.append((hit - lru[capacity]) / (optimum[capacity] - lru[capacity]))
    return statistics.mean(shares)


def run(build, _model, repeat, work):
    results = [
        replay(build, policy, capacity)
        for policy in ["lru", "s3fifo", "gdsf", "cairn", "optimum"]
        for capacity in CAPACITIES
    ]
    (work / "placement.json").write_text(json.dumps(results, indent=1))
    hit = {(r["policy"], r["capacity_tokens"]): r["hit_rate_blocks"] for r in results}
    lru = {c: hit["lru", c] for c in CAPACITIES}
    optimum = {c: hit["optimum", c] for c in CAPACITIES}
    rows = []
    for name, hints, floor, goal in (
        ("placement_gap_closed", 0, 0.15, 0.25),
        ("placement_gap_closed_hints", 50, 0.45, 0.60),
    ):
        samples = [gap_closed(build, lru, optimum, hints) for _ in range(repeat)]
        rows.append(
            row(
                name,
                samples,
                "of the gap",
                "from LRU to the optimum, mean of 1M, 3M, 6M, 12M tokens",
                statistics.median(samples),
                floor,
                goal,
            )
        )
    # In turns, so that both see the same machine.
    ratios = []
    for _ in range(repeat):
        seconds = {"lru": 0.0, "cairn": 0.0}
        for capacity in CAPACITIES:
            for policy in seconds:
                seconds[policy] += replay(build, policy, capacity)["replay_seconds"]
        ratios.append(seconds["cairn"] / seconds["lru"])
    rows.append(
        row(
            "placement_replay_time",
            ratios,
            "of LRU's time",
            "replay with LRU",
            1 / statistics.median(ratios),
            1 / 1.5,
            1 / 1.2,
        )
    )
    return rows
