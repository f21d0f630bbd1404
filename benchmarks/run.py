#!/usr/bin/env python3
"""Runs the benchmarks, each with its yardstick from the same run, prints a table and writes a
report.

    python3 benchmarks/run.py --build build/release --out build/bench/report.json
    python3 benchmarks/run.py --only ttft,node          # some groups; the report then holds these
    alone

Exit status: 0 every row is there and at or above its floor; 1 otherwise. `ratio` is always "more is
better". A group whose peers are not installed is left out, and said so with the command that
installs them; it does not count as missing.
"""

import argparse
import json
import pathlib
import platform
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rows import (
    apart,
    batch,
    chooser,
    codecs,
    clients,
    cluster,
    cluster_simulated,
    data_path,
    disk,
    http,
    index,
    node,
    order,
    peers,
    peers_lmcache,
    placement,
    push,  # noqa: E402  (needs the path above)
    routers,
    routing,
    selection_memory,
    ttft,
    ttft_recipes,
    wheel,
    worker,
)

GROUPS = {
    "codecs": codecs,
    "node": node,
    "index": index,
    "data": data_path,
    "disk": disk,
    "clients": clients,
    "cluster": cluster,
    "cluster_simulated": cluster_simulated,
    "peers": peers,
    "peers_lmcache": peers_lmcache,
    "ttft": ttft,
    "ttft_recipes": ttft_recipes,
    "placement": placement,
    "push": push,
    "selection_memory": selection_memory,
    "chooser": chooser,
    "worker": worker,
    "batch": batch,
    "apart": apart,
    "order": order,
    "routing": routing,
    "http": http,
    "routers": routers,
    "wheel": wheel,
}


def machine():
    """CPU model, cores, memory, kernel: what the figures depend on."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in open("/proc/cpuinfo", encoding="utf-8")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    cores = sum(
        1 for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("processor")
    )
    memory = next(
        int(line.split()[1])
        for line in open("/proc/meminfo", encoding="utf-8")
        if line.startswith("MemTotal")
    )
    return f"{cpu}, {cores} cores, {memory / 2**20:.0f} GiB, Linux {platform.release()}"


def commit():
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def number(value):
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def table(rows):
    head = ["row", "median", "unit", "n", "spread", "yardstick", "ratio", "floor", "goal", ""]
    lines = [
        [
            r["name"],
            number(r["median"]),
            r["unit"],
            str(r["n"]),
            f"{r['spread']:.0%}",
            r["yardstick"],
            number(r["ratio"]),
            number(r["floor"]),
            number(r["goal"]),
            verdict(r),
        ]
        for r in rows
    ]
    widths = [max(len(line[i]) for line in [head] + lines) for i in range(len(head))]
    for line in [head] + lines:
        print(
            "  ".join(
                cell.ljust(width) if i in (0, 2, 5, 9) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
        )


def verdict(row):
    if row["floor"] is not None and row["ratio"] < row["floor"]:
        return "BELOW FLOOR"
    if row["goal"] is not None and row["ratio"] >= row["goal"]:
        return "goal reached"
    return "ok"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--build", default="build/release", help="build directory with the programs"
    )
    parser.add_argument("--out", default="build/bench/report.json")
    parser.add_argument("--model", default="build/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument(
        "--only", default=",".join(GROUPS), help=f"groups to run, of {', '.join(GROUPS)}"
    )
    parser.add_argument("--repeat", type=int, default=5, help="samples per row, at least 3")
    args = parser.parse_args()
    if args.repeat < 3:
        parser.error(f"--repeat: got {args.repeat}, expected at least 3")
    chosen = args.only.split(",")
    for name in chosen:
        if name not in GROUPS:
            parser.error(f"--only: got {name!r}, expected some of {', '.join(GROUPS)}")

    out = ROOT / args.out
    out.parent.mkdir(parents=True, exist_ok=True)
    rows, missing, left_out = [], [], []
    for name in chosen:
        absent = GROUPS[name].missing() if hasattr(GROUPS[name], "missing") else ""
        if absent:
            left_out.append(f"{name}: {absent}")
            continue
        started = time.monotonic()
        print(f"{name}: running", file=sys.stderr, flush=True)
        wanted = GROUPS[name].NAMES
        try:
            made = GROUPS[name].run(ROOT / args.build, ROOT / args.model, args.repeat, out.parent)
        except (subprocess.SubprocessError, OSError, RuntimeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            made = []
        missing += [row for row in wanted if row not in {r["name"] for r in made}]
        rows += made
        print(f"{name}: done in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    report = {
        "machine": machine(),
        "commit": commit(),
        "command": " ".join(sys.argv),
        "rows": rows,
        "left_out": left_out,
    }
    out.write_text(json.dumps(report, indent=1) + "\n")
    table(rows)
    print(f"\n{args.out} written", file=sys.stderr)
    for name in missing:
        print(f"missing row: {name}")
    for group in left_out:
        print(f"NOT COMPARED  {group}")
    return 1 if missing or any(verdict(r) == "BELOW FLOOR" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
