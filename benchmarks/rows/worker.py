"""The worker's forward pass next to PyTorch and llama.cpp: benchmarks/compare/worker does the work,
in an environment of its own."""

import json
import pathlib
import subprocess

LENGTHS = (512, 1024, 2048, 4096)
NAMES = [f"{what}_{n}" for what in ("prefill", "decode") for n in LENGTHS] + ["kv_cache_128_tokens"]
SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "compare/worker/run.sh"


def run(build, model, repeat, work):
    out = work / "worker.json"
    out.unlink(missing_ok=True)
    subprocess.run(
        ["sh", SCRIPT, build, model, "--repeat", str(repeat), "--out", out],
        check=True,
        timeout=3600,
    )
    return json.loads(out.read_text())
