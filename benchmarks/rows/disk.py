"""The disk tier next to raw io_uring, and what a node makes of it for its clients."""

import json
import subprocess

from . import row
from .bench import run as bench, speed_row

SIZE = 1 << 20
WRITE_CPU_GOAL = 0.15  # core-s per GB, checksums included.

NAMES = [
    "disk_write_1m",
    "disk_read_1m",
    "disk_write_cpu",
    "disk_write_amplification",
    "node_disk_write",
    "node_disk_read",
    "node_prefetch",
]


def run(build, _model, repeat, _work):
    done = subprocess.run(
        [
            str(build / "benchmarks/disk_bench"),
            "--json",
            "--sizes",
            str(SIZE),
            "--rounds",
            str(repeat),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"disk_bench: {done.stderr.strip()}")
    tier = json.loads(done.stdout)
    rows = []
    for what in ("write", "read"):
        measured = next(r for r in tier["rows"] if r["name"] == what)
        rows.append(
            row(
                f"disk_{what}_1m",
                measured["tier_samples"],
                "GB/s",
                f"raw io_uring {measured['raw_gb_per_s']:.2f} GB/s ({tier['io_mode']})",
                measured["ratio"],
                0.8,
                0.95,
            )
        )
        if what == "write":
            rows.append(
                row(
                    "disk_write_cpu",
                    measured["cpu_samples"],
                    "core-s/GB",
                    f"budget {WRITE_CPU_GOAL} core-s/GB",
                    WRITE_CPU_GOAL / measured["cpu_s_per_gb"],
                    None,
                    1.0,
                )
            )
    amplification = tier["churn"]["write_amplification"]
    rows.append(
        row(
            "disk_write_amplification",
            [amplification],
            "x",
            "budget 1.2 at 90 % full",
            1.2 / amplification,
            1.0,
            1.2 / 1.05,
        )
    )

    node = bench(build, repeat, "disk")
    raw = "uring" if "uring_write" in node["yardsticks"] else None
    for what in ("write", "read"):
        yardstick = f"{raw}_{what}" if raw else "memref"
        rows.append(speed_row(f"node_disk_{what}", node, yardstick, None, None, metric=what))
    hinted = bench(build, repeat, "prefetch")
    rows.append(
        speed_row(
            "node_prefetch",
            hinted,
            "uring_read" if raw else "memref",
            None,
            None,
            metric="prefetch",
        )
    )
    return rows
