"""The HTTP edge of the router, before workers that cost nothing: memory with 2,000 open streams."""

import json
import subprocess

from . import row

NAMES = ["http_2000_streams"]
STREAMS = 2000
BUDGET_MIB = 64


def run(build, _model, repeat, _work):
    runs = []
    for _ in range(max(1, repeat)):
        done = subprocess.run(
            [build / "benchmarks/http_streams_bench", str(STREAMS)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"http_streams_bench: {done.stderr.strip()}")
        runs.append(json.loads(done.stdout))
    memory = sorted(r["resident_mib"] for r in runs)
    last = runs[-1]
    note = (
        f"{last['kib_per_stream']:.1f} KiB each; the router has a request after "
        f"{last['handed_on_us_p50']:.0f} us p50, {last['handed_on_us_p99']:.0f} us p99"
    )
    middle = memory[len(memory) // 2]
    return [
        row(
            NAMES[0],
            memory,
            "MiB resident",
            f"budget {BUDGET_MIB} MiB ({note})",
            BUDGET_MIB / middle,
            1.0,
            None,
        )
    ]
