"""Rows and machine facts of both programs."""

import datetime
import json
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/engines")]

from rows import row  # noqa: E402,F401
from rows.load import ForeignLoad  # noqa: E402,F401
from rows.processes import Server, node_command, wait_until  # noqa: E402,F401


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def commit():
    """With a `+` if files differ from it."""
    git = ["git", "-C", ROOT]
    name = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def report(rows, foreign, out):
    """Prints rows, and keeps them with what the machine was and what others took of it."""
    for r in rows:
        ratio = (
            ""
            if r["ratio"] is None
            else f"  {r['ratio']:.3f} of {r['yardstick']}, goal {r['goal']}"
        )
        print(
            f"{r['name']:34} {r['median']:12.4g} {r['unit']:7} "
            f"spread {r['spread']:.0%} n {r['n']}{ratio}"
        )
    print(f"others used {foreign:.2f} cores meanwhile")
    if out:
        facts = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "processor": processor(),
            "commit": commit(),
            "foreign_cores": foreign,
            "command": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]],
        }
        pathlib.Path(out).write_text(
            json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )
