"""Match of a 128k-token prompt with its lease in an index of a million blocks, during inserts and
evictions; memory per block."""

import json
import subprocess

from . import row

NAMES = ["match_128k_block64", "match_128k_block16", "index_bytes_per_block"]


def run(build, _model, _repeat, work):
    report = work / "index_bench.json"
    done = subprocess.run(
        [build / "benchmarks/index_bench", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"index_bench: {done.stderr.strip()}")
    report.write_text(done.stdout)
    result = json.loads(done.stdout)
    rows = []
    for tokens, goal in ((64, None), (16, 3.0)):
        measured = result[f"match128k/{tokens}"]
        rows.append(
            row(
                f"match_128k_block{tokens}",
                measured["p50_ms_samples"],
                "ms p50",
                f"budget 0.6 ms (p99 {measured['p99_ms']:.2f} ms)",
                0.6 / measured["p50_ms"],
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
    return rows
