"""Redis and Mooncake Store next to Cairn: benchmarks/compare/data_plane does the work, in
environments of its own."""

import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parents[1] / "compare/data_plane"
MOONCAKE = ["64k_x1", "64k_x16", "1m_x16", "4m_x16"]
NAMES = (
    ["redis_get_1m_x8_grpc", "redis_get_1m_x8_local"]
    + [
        f"mooncake_{what}"
        for size in MOONCAKE
        for what in (f"get_{size}_grpc", f"get_{size}_local", f"put_{size}_grpc")
    ]
    + ["mooncake_exists_grpc"]
)
INSTALL = {
    "redis": "benchmarks/compare/data_plane/setup.sh",
    "mooncake": "benchmarks/compare/data_plane/setup.sh",
    "lmcache": "make test-engines",
}


def not_installed(part):
    """The missing part of the comparison, as text for people; empty when it can run."""
    done = subprocess.run(
        [HERE / "setup.sh", "--check", part], capture_output=True, text=True, check=False
    )
    return (
        ""
        if done.returncode == 0
        else f"{'; '.join(done.stdout.strip().splitlines())}. Install with: {INSTALL[part]}"
    )


def compare(build, repeat, out, parts):
    out.unlink(missing_ok=True)
    subprocess.run(
        [HERE / "run.sh", build, "--repeat", str(repeat), "--out", out, "--only", parts],
        check=True,
        timeout=1800,
    )
    return json.loads(out.read_text())


def missing():
    return not_installed("redis") or not_installed("mooncake")


def run(build, _model, repeat, work):
    return compare(build, repeat, work / "peers.json", "redis,mooncake")
