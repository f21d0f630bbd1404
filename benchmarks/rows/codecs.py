"""Encoding and decoding of KV slices from memory to memory, one thread, next to libc's memcpy in
the same process."""

import json
import statistics
import subprocess

from . import row

# label: floor and goal of encoding, of decoding.
TARGETS = {
    "int8": (0.9, 1.3, 1.6, 2.1),
    "int4": (0.7, 1.1, 1.8, 2.3),
    "turbo4": (0.3, 0.6, 0.5, 1.0),
    "cachegen": (0.03, 0.08, 0.05, 0.12),
}
NAMES = [f"codec_{label}_{way}" for label in TARGETS for way in ("encode", "decode")]


def run(build, _model, _repeat, work):
    done = subprocess.run(
        [build / "benchmarks/codec_bench", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"codec_bench: {done.stderr.strip()}")
    (work / "codec_bench.json").write_text(done.stdout)
    result = json.loads(done.stdout)
    rows = []
    for label, targets in TARGETS.items():
        measured = result[label]
        for i, way in enumerate(("encode", "decode")):
            rows.append(
                row(
                    f"codec_{label}_{way}",
                    measured[f"{way}_gbps"],
                    "GB/s",
                    f"memcpy {result['memref_gbps']:.1f} GB/s, {measured['bits']:.2f} bits",
                    statistics.median(measured[f"{way}_x_memref"]),
                    targets[2 * i],
                    targets[2 * i + 1],
                )
            )
    return rows
