"""Other routers next to Cairn's, before simulated engines: benchmarks/compare/router does the work,
with the others in an environment of their own."""

import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parents[1] / "compare/router"
MOST_ROUNDS = 3  # A round takes five minutes.
OTHERS = ["smg", "vllm_router"]
NAMES = (
    [f"routers_mean_ttft_{other}" for other in [*OTHERS, "smg_unprotected"]]
    + [f"routers_added_{share}_{other}" for share in ("p50", "p99") for other in OTHERS]
    + ["routers_2000_streams"]
)


def missing():
    done = subprocess.run(
        [HERE / "setup.sh", "--check"], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    return f"{done.stdout.strip()}. Install with: benchmarks/compare/router/setup.sh"


def run(build, _model, repeat, work):
    out = work / "routers.json"
    out.unlink(missing_ok=True)
    subprocess.run(
        [HERE / "run.sh", build, "--rounds", str(min(repeat, MOST_ROUNDS)), "--out", out],
        check=True,
        timeout=3600,
    )
    return json.loads(out.read_text())["rows"]
