#!/usr/bin/env python3
"""Clang's checks of the product's C++ files that differ from a commit, or include one that does.

1. It compiles them with the preset `clang` (-Werror, -Wthread-safety): every affected source, and
   every affected header alone (cmake/StaticChecks.cmake). A file that includes a changed one is
   part of it, because a header's annotation of a lock is broken by those that use it.
2. It runs clang-tidy (.clang-tidy) on the files that differ. A header is checked through a source
   that includes it.

Tests, examples and benchmarks are not checked. A change of CMake files or of .clang-tidy reaches no
source: it may mean anything, and `--base all` compiles and checks everything.

The native module of the Python package (clients/python/src) is compiled if the virtual environment
build/venv has nanobind. If it does not and that module is affected, this fails.

Exit status: 0 nothing found, 1 findings, 2 the checks cannot run.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

import changes as differences
import presets

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRESET = "clang"
PROGRAM = "clang-tidy-14"
PRODUCT = ("clients/", "common/", "kernels/", "model/", "protocol/", "services/", "tools/")
NATIVE = "clients/python/src/"
PYTHON = ROOT / "build/venv/bin/python"
# Lines of every clang-tidy run about findings that it did not show.
CHATTER = re.compile(
    r"^(\d+ warnings? (treated as|generated)|Suppressed|Use -header-filter).*\n?", re.MULTILINE
)


def fail(message):
    print(f"lint: {message}", file=sys.stderr)
    sys.exit(2)


def cpp_of_product(names, under):
    """The product's C++ files of `names`; with `under` only those in these folders."""
    return sorted(
        name
        for name in names
        if name.startswith(PRODUCT)
        and name.endswith((".h", ".cc"))
        and (ROOT / name).is_file()
        and (not under or any(name == u or name.startswith(u + "/") for u in under))
    )


def python_definitions(native):
    """Settings of CMake for the native module of Python. `native` names a reason to compile it."""
    has_nanobind = [str(PYTHON), "-c", "import nanobind"]
    quiet = subprocess.DEVNULL
    if PYTHON.exists() and subprocess.run(has_nanobind, stderr=quiet, check=False).returncode == 0:
        return [("CAIRN_PYTHON", "ON"), ("Python_EXECUTABLE", str(PYTHON))]
    if native:
        fail(
            f"build/venv: got no Python with nanobind, expected one because {native}: run"
            " `python3 -m venv build/venv && build/venv/bin/pip install -r tests/requirements.txt`"
        )
    return [("CAIRN_PYTHON", "OFF")]


def configure(changes, affected):
    if changes.everything:
        native = "everything is compiled"
    else:
        native = next((f"{n} is affected" for n in affected if n.startswith(NATIVE)), None)
    try:
        return presets.configure(PRESET, python_definitions(native))
    except presets.Error as error:
        fail(str(error))


class Sources:
    """The sources that the preset compiles, and the source through which a file is checked."""

    def __init__(self, build):
        self._alone = os.path.relpath(build, ROOT) + "/header_checks/"
        self.objects = {}  # The object that ninja makes of each source.
        commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
        for command in commands:
            folder = pathlib.Path(command["directory"])
            name = os.path.relpath(folder / command["file"], ROOT)
            words = shlex.split(command["command"])
            if name.startswith((*PRODUCT, self._alone)) and name.endswith(".cc"):
                made = folder / words[words.index("-o") + 1]
                self.objects.setdefault(name, []).append(os.path.relpath(made, build))
        self.written = [name for name in sorted(self.objects) if name.startswith(PRODUCT)]

    def compiling(self, name):
        """A source itself, and of a header the source that compiles it alone. None: this build has
        none."""
        source = name.removesuffix(".h") + ".cc" if name.endswith(".h") else name
        return next((n for n in (source, self._alone + source) if n in self.objects), None)

    def including(self, name, tree):
        """As `compiling`, and of a part of a source (*.inc.h) a source that it is a part of."""
        found = self.compiling(name)
        if found is None and name.endswith(".h"):
            found = next((n for n in sorted(tree.including([name])) if n in self.objects), None)
        return found


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


def check_all(build, sources, jobs):
    """How many of the sources have findings."""
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(check, build, source) for source in sources]
        for run in concurrent.futures.as_completed(runs):
            source, seconds, said = run.result()
            print(f"lint: {source}: {seconds:.1f} s", flush=True)
            if said:
                wrong += 1
                print(said, flush=True)
    return wrong


def choose(changes, under, affected, sources):
    """(sources to compile, sources to check)"""
    if changes.everything:
        chosen = cpp_of_product(sources.written, under)
        return chosen if under else sorted(sources.objects), chosen
    compiled = {sources.compiling(name) for name in affected} - {None}
    through = {
        name: sources.including(name, changes.tree)
        for name in cpp_of_product(changes.differing, under)
    }
    left_out = [name for name, source in through.items() if source is None]
    if left_out:
        print("lint: not built by this preset, so not checked: " + " ".join(left_out))
    return sorted(compiled), sorted(set(through.values()) - {None})


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    differences.add_base(parser)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--list", action="store_true", help="print the sources, check nothing")
    parser.add_argument("under", nargs="*", help="only files in these folders, and these files")
    return parser.parse_args()


def main():
    arguments = parse()
    under = [folder.rstrip("/") for folder in arguments.under]
    try:
        changes = differences.find(arguments.base, arguments.most)
    except differences.Error as error:
        fail(str(error))
    affected = cpp_of_product(changes.affected, under)
    if not affected and not changes.everything:
        print(f"lint: no C++ file of the product is affected by {changes}")
        return 0
    if not shutil.which(PROGRAM):
        fail(f"{PROGRAM} is not installed: run tools/setup/setup.sh")
    begin = time.monotonic()
    build = configure(changes, affected)
    sources = Sources(build)
    compiled, checked = choose(changes, under, affected, sources)
    print(
        f"lint: {len(compiled)} sources to compile and {len(checked)} to check,"
        f" affected by {changes}",
        flush=True,
    )
    if arguments.list:
        for kind, some in (("compile", compiled), ("check", checked)):
            for source in some:
                print(f"{kind} {source}")
        return 0

    targets = [made for source in compiled for made in sources.objects[source]]
    if changes.everything and not under:
        targets.append("static_checks")
    if targets and not presets.compile_targets(build, targets, arguments.jobs):
        print("lint: Clang's compilation failed")
        return 1
    compile_seconds = time.monotonic() - begin
    begin = time.monotonic()
    wrong = check_all(build, checked, arguments.jobs)
    print(
        f"lint: {len(compiled)} sources compiled in {compile_seconds:.1f} s,"
        f" {len(checked)} checked in {time.monotonic() - begin:.1f} s, {wrong} with findings"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
