"""Match of a 128k-token prompt with its lease in an index of a million blocks, during inserts and
evictions; memory per block; a match over four pools."""

import json
import subprocess

from . import row

NAMES = [
    "match_128k_block64",
    "match_128k_block16",
    "index_bytes_per_block",
    "joint_match_150k",
    "joint_match_150k_all",
]


def measured(build, work, program):
    done = subprocess.run(
        [build / "benchmarks" / program, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program}: {done.stderr.strip()}")
    (work / f"{program}.json").write_text(done.stdout)
    return json.loads(done.stdout)


def joint_rows(result):
    return [
        row(
            name,
            result[question]["p50_ms_samples"],
            "ms p50",
            f"budget 1 ms (p99 {result[question]['p99_ms']:.2f} ms)",
            1.0 / result[question]["p50_ms"],
            1.0,
            goal,
        )
        for name, question, goal in (
            ("joint_match_150k", "longest", 1 / 0.3),
            ("joint_match_150k_all", "all", None),
        )
    ]


def run(build, _model, _repeat, work):
    result = measured(build, work, "index_bench")
    rows = []
    for tokens, goal in ((64, None), (16, 3.0)):
        match = result[f"match128k/{tokens}"]
        rows.append(
            row(
                f"match_128k_block{tokens}",
                match["p50_ms_samples"],
                "ms p50",
                f"budget 0.6 ms (p99 {match['p99_ms']:.2f} ms)",
                0.6 / match["p50_ms"],
                1.0,
                goal,
            )
        )
    per_block = result["bytes_per_block"]
    rows.append(
        row(
            "index_bytes_per_block",
            [per_block],
            "bytes",
            "budget 160 bytes",
            160 / per_block,
            1.0,
            None,
        )
    )
    return rows + joint_rows(measured(build, work, "joint_match_bench"))
