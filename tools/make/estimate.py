#!/usr/bin/env python3
"""Says at once how long `make demo` or `make build` will take on this machine.

  tools/make/estimate.py demo --jobs 2

It compiles a small file to see how fast the compiler is here, and asks ninja how much of the
product is there already. The constants are those of one machine (CONTRIBUTING.md, "Where the time
goes"). The contents of a compiler cache are not looked at: with them it is quicker.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"

# Times of the machine that was measured: one compilation of YARDSTICK, all of the product's
# compilations in one after the other, the demo's workload, and Debian's packages.
YARDSTICK = "#include <functional>\n#include <map>\n#include <regex>\n#include <string>\n"
YARDSTICK_SECONDS = 1.0
PRODUCT_SECONDS = 900
DEMO_SECONDS = 240
PACKAGE_SECONDS = 60
CONFIGURE_SECONDS = 15


def minutes(seconds):
    return f"{max(1, round(seconds / 60))} min"


def slowness():
    """How much longer a compilation takes here than on the machine that was measured; None if there
    is no compiler yet."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return None
    began = time.monotonic()
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
        input=YARDSTICK,
        text=True,
        capture_output=True,
        check=False,
    )
    return (time.monotonic() - began) / YARDSTICK_SECONDS if done.returncode == 0 else None


def part_left():
    """The part of the product that is not built yet, from 0 to 1."""
    if not (BUILD / "build.ninja").is_file() or shutil.which("ninja") is None:
        return 1.0

    def steps(*words):
        done = subprocess.run(
            ["ninja", "-C", str(BUILD), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
        return done.stdout.splitlines() if done.returncode == 0 else []

    found = [re.match(r"\[\d+/(\d+)\]", line) for line in steps("-n", "cairn", "cairn-cache")]
    left = max((int(one[1]) for one in found if one), default=0)
    whole = sum("CXX_COMPILER" in line for line in steps("-t", "targets", "all"))
    return min(1.0, left / whole) if whole else 1.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("goal", choices=["demo", "build"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    slow = slowness()
    parts = []
    if slow is None:
        parts.append(f"packages {minutes(PACKAGE_SECONDS)}")
    left = part_left()
    build = PRODUCT_SECONDS * left * (slow or 1.0) / options.jobs
    if left > 0:
        parts.append(f"build {minutes(build + CONFIGURE_SECONDS)}")
    total = build + (PACKAGE_SECONDS if slow is None else 0) + CONFIGURE_SECONDS
    if options.goal == "demo":
        # Computing a prompt slows down as compiling does, more or less.
        work = DEMO_SECONDS * (slow or 1.0) * 2 / min(options.jobs, 2)
        parts.append(f"the demo itself {minutes(work)}")
        total += work
    print(
        f"make {options.goal}: about {minutes(total)} on these {options.jobs} processors "
        f"({', '.join(parts) or 'all is built'})",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
