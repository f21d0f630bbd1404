"""The forward pass beside PyTorch and llama.cpp, and the KV cache against recomputing: compare/worker does the work."""

import json
import pathlib
import subprocess

LENGTHS = (512, 1024, 2048, 4096)
NAMES = ([f"prefill_{n}" for n in LENGTHS] + [f"decode_{n}" for n in LENGTHS] + ["kv_cache_128_tokens"])
SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "compare/worker/run.sh"


def run(build, model, repeat, work):
    out = pathlib.Path(work) / "worker_rows.json"
    subprocess.run([SCRIPT, build, model, "--repeat", str(repeat), "--out", out], check=True)
    return json.loads(out.read_text(encoding="utf-8"))
