"""Redis and Mooncake Store beside Cairn: benchmarks/compare/data_plane does the work, in an environment of its own."""

import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parents[1] / "compare/data_plane"
MOONCAKE = ["64k_x1", "64k_x16", "1m_x16", "4m_x16"]
NAMES = (["redis_get_1m_x8_grpc", "redis_get_1m_x8_local"]
         + [f"mooncake_{what}" for size in MOONCAKE for what in (f"get_{size}_grpc", f"get_{size}_local", f"put_{size}_grpc")]
         + ["mooncake_exists_grpc"])


def missing():
    """What is not installed, as text for people; empty when the group can run."""
    done = subprocess.run([HERE / "setup.sh", "--check"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return f"{'; '.join(done.stdout.strip().splitlines())}. Install with: benchmarks/compare/data_plane/setup.sh"


def run(build, _model, repeat, work):
    out = work / "peers.json"
    out.unlink(missing_ok=True)
    subprocess.run([HERE / "run.sh", build, "--repeat", str(repeat), "--out", out], check=True, timeout=1800)
    return json.loads(out.read_text())
