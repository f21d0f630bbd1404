"""Several real nodes in a network of their own: cluster_bench of benchmarks/cluster."""

import json
import shutil
import subprocess

from . import row

# Name: floor and goal of the share, which is more-is-better as it stands.
SHARES = {
    "cluster_trace_hits": (0.97, 0.99),
    "cluster_remote_hit": (0.85, 0.95),
    "cluster_bandwidth_8_over_1": (0.9, 0.97),
}
# Name: the most that is allowed, and the most that would be good.
LIMITS = {
    "cluster_directory_bytes": (16, 10),
    "cluster_announce_bytes": (64, 32),
    "cluster_remote_first_slice": (3, 2),
    "cluster_match_remote": (12, 6),
    "cluster_match_local": (1.05, 1.02),
    "cluster_herd_last": (3.5, 2.4),
    "cluster_herd_copies": (4, 3),
}
NAMES = [*SHARES, *LIMITS]


def missing():
    tools = [tool for tool in ("ip", "tc", "nft") if shutil.which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (apt-get install iproute2 nftables)"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "it makes network namespaces, which this user may not"
    return ""


def run(build, _model, repeat, work):
    done = subprocess.run(
        [build / "benchmarks/cluster_bench", "--json", "--rounds", str(repeat)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    (work / "cluster_bench.jsonl").write_text(done.stdout)
    if done.returncode != 0:
        raise RuntimeError(f"cluster_bench: {done.stderr.strip()}")
    return [_row(json.loads(line)) for line in done.stdout.splitlines()]


def _row(measured):
    name, median = measured["name"], measured["median"]
    samples, unit, yardstick = measured["samples"], measured["unit"], measured["yardstick"]
    if name in SHARES:
        floor, goal = SHARES[name]
        return row(name, samples, unit, yardstick, median, floor, goal)
    most, good = LIMITS[name]
    return row(name, samples, unit, f"{yardstick}; at most {most}", most / median, 1.0, most / good)
