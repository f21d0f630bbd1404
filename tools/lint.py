#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) on the product's C++ files that differ from a commit.

It needs the compile commands and the generated sources of the preset `clang`, which `make lint`
builds first. Tests, examples and benchmarks are not checked: that preset does not build them. A
changed header is checked through a source that includes it.

Exit status: 0 nothing found, 1 findings, 2 clang-tidy cannot run.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = "clang-tidy-14"
LAST = "HEAD~1"
PRODUCT = ("clients/", "common/", "kernels/", "model/", "protocol/", "services/", "tools/")
# Of every clang-tidy run, about what it did not show.
CHATTER = re.compile(
    r"^(\d+ warnings? (treated as|generated)|Suppressed|Use -header-filter).*\n?", re.M
)


def fail(message):
    print(f"lint: {message}", file=sys.stderr)
    sys.exit(2)


def git(*arguments):
    """The lines that git prints; None if it fails."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed(base):
    """Names of the product's C++ files that differ from the commit `base`, committed or not."""
    differing = git("diff", "--name-only", "--diff-filter=d", base, "--")
    if differing is None:
        return None
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted(
        {
            name
            for name in differing + new
            if name.startswith(PRODUCT) and name.endswith((".h", ".cc"))
        }
    )


def compiled(build):
    """Names, relative to the repository, of all sources with a compile command."""
    try:
        commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{error}; run `cmake --preset clang` first")
    names = (os.path.relpath(os.path.join(c["directory"], c["file"]), ROOT) for c in commands)
    return sorted(n for n in set(names) if not n.startswith("..") and n.endswith(".cc"))


class Sources:
    """Finds the source through which a file is checked."""

    def __init__(self, build):
        self.generated = os.path.relpath(build, ROOT) + "/"
        self.all = compiled(build)
        self.by_name = set(self.all)
        self.written = [n for n in self.all if n.startswith(PRODUCT)]

    def of(self, name):
        """None if no source of this build includes the file."""
        source = name.removesuffix(".h") + ".cc" if name.endswith(".h") else name
        for candidate in (source, f"{self.generated}header_checks/{source}"):
            if candidate in self.by_name:
                return candidate
        if not name.endswith(".h"):
            return None
        # A part of a source (*.inc.h). Parts may include each other.
        return self._that_includes(name, set())

    def _that_includes(self, name, seen):
        seen.add(name)
        line = re.compile(rf'^\s*#\s*include\s*"{re.escape(name)}"', re.M)
        including = git("grep", "--untracked", "-lF", f'"{name}"', "--", "*.h", "*.cc") or []
        including = [n for n in including if line.search((ROOT / n).read_text(encoding="utf-8"))]
        for candidate in including:
            if candidate in self.by_name:
                return candidate
        for candidate in including:
            if candidate.endswith(".h") and candidate not in seen:
                found = self._that_includes(candidate, seen)
                if found:
                    return found
        return None


def check(build, source):
    """(source, seconds, what clang-tidy says; empty if it finds nothing)."""
    begin = time.monotonic()
    done = subprocess.run(
        [PROGRAM, "-p", str(build), "--quiet", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = ""
    if done.returncode != 0:
        said = CHATTER.sub("", done.stdout + done.stderr).strip() or f"status {done.returncode}"
    return source, time.monotonic() - begin, said


def choose(base, under, sources):
    """The sources to check."""
    if base == "all":
        names = sources.written
    else:
        names = changed(base)
        if names is None:
            if base != LAST:
                fail(f"base: got '{base}', expected a commit of this clone, or 'all'")
            print(f"lint: this clone has no {LAST} (it is shallow, or has one commit): no checks")
            return []
    if under:
        names = [n for n in names if any(n == u or n.startswith(u + "/") for u in under)]
    chosen = {name: sources.of(name) for name in names}
    left_out = [name for name, source in chosen.items() if source is None]
    if left_out:
        print("lint: not built by this preset, so not checked: " + " ".join(left_out))
    return sorted({source for source in chosen.values() if source})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--base",
        default=LAST,
        metavar="COMMIT",
        help="check the files that differ from it; `all`: every source (default: %(default)s)",
    )
    parser.add_argument(
        "--build", default="build/clang", metavar="DIR", help="(default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--list", action="store_true", help="print the sources, check nothing")
    parser.add_argument("under", nargs="*", help="only files in these folders, and these files")
    arguments = parser.parse_args()

    build = (ROOT / arguments.build).resolve()
    under = [folder.rstrip("/") for folder in arguments.under]
    chosen = choose(arguments.base, under, Sources(build))
    if arguments.list:
        for source in chosen:
            print(source)
        return 0
    if chosen and not shutil.which(PROGRAM):
        fail(f"{PROGRAM} is not installed: run tools/setup/setup.sh")
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(check, build, source) for source in chosen]
        for run in concurrent.futures.as_completed(runs):
            source, seconds, said = run.result()
            print(f"lint: {source}: {seconds:.1f} s", flush=True)
            if said:
                wrong += 1
                print(said, flush=True)
    print(f"lint: {len(chosen)} sources checked, {wrong} with findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
