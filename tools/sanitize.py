#!/usr/bin/env python3
"""Builds and runs the unit and conformance tests that a change reaches, under sanitizers.

    tools/sanitize.py --preset asan [--base COMMIT]

A program is reached if a source of it or of a library that it links differs from the commit, or
includes a file that differs (tools/changes.py). CMake says what is in a program (its file API).
Only these programs are built, and run with ctest.

An entry of ctest counts as a program. One that passed is not run again while the program, its
arguments and its environment stay as they were: the SHA-256 of them is in build/PRESET/passed/.
`--again` runs it all the same.

Files that reach no program, so that a change of a line does not run everything:
- CMake files and presets: whatever they change, `make check-all` builds all with it. The result of
  a build is read as it is now.
- data (tests/data, corpora of fuzz targets): `make test` runs the tests with it.

Exit status: 0 passed or nothing is reached, 1 a build or a test failed, or a test was skipped
without a rule, 2 the tests cannot run.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

import changes as differences
import presets

ROOT = pathlib.Path(__file__).resolve().parents[1]
LABELS = {"unit", "conformance"}
API = pathlib.Path(".cmake/api/v1")
CLIENT = "client-sanitize"
QUERY = "codemodel-v2"
# A line of CTestTestfile.cmake: the test, its program, its arguments.
COMMAND = re.compile(r'^add_test\(\[=*\[(.+?)\]=*\] "([^"]*)"(.*)\)$', re.MULTILINE)


def fail(message):
    print(f"sanitize: {message}", file=sys.stderr)
    sys.exit(2)


class Model:
    """The targets of a configured build folder, and what is in them."""

    def __init__(self, build):
        self._targets = {}  # By id.
        reply = build / API / "reply"
        # CMake removes what an earlier run wrote, and the last index is the current one.
        index = json.loads(max(reply.glob("index-*.json")).read_text(encoding="utf-8"))
        model = json.loads((reply / index["reply"][CLIENT][QUERY]["jsonFile"]).read_text())
        for entry in model["configurations"][0]["targets"]:
            self._targets[entry["id"]] = json.loads((reply / entry["jsonFile"]).read_text())
        self._by_artifact = {
            artifact["path"]: id_
            for id_, target in self._targets.items()
            for artifact in target.get("artifacts", ())
        }

    def program(self, path):
        """The id of the target that makes a file, a path relative to the build folder, or None."""
        return self._by_artifact.get(path)

    def _needed(self, target):
        """Ids of the targets that a target links, or that must be built before it."""
        graph = target["backtraceGraph"]
        for dependency in target.get("dependencies", ()):
            node = graph["nodes"][dependency.get("backtrace", 0)]
            command = graph["commands"][node["command"]] if "command" in node else ""
            # The owner of a precompiled header, nothing of which is in the program.
            if command != "target_precompile_headers":
                yield dependency["id"]
        # The same library may be linked too.
        for fragment in target.get("link", {}).get("commandFragments", ()):
            if fragment["fragment"] in self._by_artifact:
                yield self._by_artifact[fragment["fragment"]]

    def sources(self, id_):
        """Names of all sources of a target and of the targets that it needs. Relative to the
        repository if they are in it."""
        seen, waiting, found = {id_}, [id_], set()
        while waiting:
            target = self._targets[waiting.pop()]
            found.update(source["path"] for source in target.get("sources", ()))
            more = set(self._needed(target)) - seen
            seen |= more
            waiting += more
        return found


@dataclasses.dataclass
class Test:
    """An entry of ctest: a program, and how it is called. Two may call the same program."""

    target: str  # The program's id.
    path: pathlib.Path
    call: str  # Its arguments and its environment.


class Suite:
    """The tests of a preset that run a program which it builds."""

    def __init__(self, preset, jobs):
        self.jobs = jobs
        self.build = presets.folder(preset)
        query = self.build / API / "query" / CLIENT / QUERY
        query.parent.mkdir(parents=True, exist_ok=True)
        query.touch()
        presets.configure(preset, needs=self.build / API / "reply")
        self._model = Model(self.build)
        self.tests = dict(self._labelled())

    def _labelled(self):
        """(name, Test)"""
        commands = {}
        # ctest itself names no command of a program that is not built.
        for file in self.build.rglob("CTestTestfile.cmake"):
            for name, program, arguments in COMMAND.findall(file.read_text(encoding="utf-8")):
                commands[name] = program, arguments
        listed = subprocess.run(
            ["ctest", "--test-dir", str(self.build), "--show-only=json-v1"],
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode != 0:
            fail(f"ctest cannot list the tests of {self.build}:\n{listed.stdout}{listed.stderr}")
        for test in json.loads(listed.stdout)["tests"]:
            properties = {p["name"]: p["value"] for p in test.get("properties", ())}
            if not LABELS & set(properties.get("LABELS", ())):
                continue
            name = test["name"]
            if name not in commands:
                fail(f"test: got '{name}', expected its command in a CTestTestfile.cmake")
            program, arguments = commands[name]
            target = self._model.program(os.path.relpath(program, self.build))
            # Without one it is a script: nothing in it is compiled for sanitizers.
            if target:
                call = f"{arguments} {sorted(properties.get('ENVIRONMENT', ()))}"
                yield name, Test(target, pathlib.Path(program), call)

    def reached(self, changes):
        """Names of the tests that the changes reach."""
        if changes.everything:
            return sorted(self.tests)
        affected = changes.affected
        known = {}

        def differs(source):
            """Whether a source differs; it may be one that includes those of a group."""
            if source not in known:
                known[source] = source in affected or (
                    source not in changes.tree.names
                    and bool(
                        changes.tree.included(source, differences.read(ROOT / source)) & affected
                    )
                )
            return known[source]

        return sorted(
            name
            for name, test in self.tests.items()
            if any(differs(source) for source in self._model.sources(test.target))
        )

    def compile(self, names):
        programs = {os.path.relpath(self.tests[name].path, self.build) for name in names}
        return presets.compile_targets(self.build, sorted(programs), self.jobs)

    def digest(self, name):
        """The SHA-256 of a test's program, which is built, and of its call."""
        test = self.tests[name]
        return hashlib.sha256(test.call.encode() + test.path.read_bytes()).hexdigest()

    def run(self, names):
        """(names of those that passed, whether all is well)"""
        shutil.rmtree(self.build / "test-results", ignore_errors=True)
        results = self.build / "Testing" / "sanitize.xml"
        results.unlink(missing_ok=True)
        pattern = "|".join(re.escape(name) for name in names)
        command = ["ctest", "--test-dir", str(self.build), "--output-on-failure"]
        command += ["-j", str(self.jobs), "-R", f"^({pattern})$", "--output-junit", str(results)]
        well = subprocess.run(command, check=False).returncode == 0
        passed = []
        if results.is_file():
            for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
                if case.get("status") == "run" and case.find("failure") is None:
                    passed.append(case.get("name"))
        wrote = any((self.build / "test-results").glob("*.xml"))
        if wrote and self._tool("skipped_tests.py") != 0:
            # A skip without a rule must be told of again.
            passed, well = [], False
        if not well:
            self._tool("failed_tests.py")
        return passed, well

    def _tool(self, name):
        command = [sys.executable, str(ROOT / "tools" / name), str(self.build)]
        sys.stdout.flush()
        return subprocess.run(command, check=False).returncode


class Passed:
    """The record of programs that passed."""

    def __init__(self, build):
        self._folder = build / "passed"

    def has(self, name, digest):
        path = self._folder / name
        return path.is_file() and path.read_text().strip() == digest

    def add(self, name, digest):
        self._folder.mkdir(exist_ok=True)
        (self._folder / name).write_text(digest + "\n")

    def forget(self, name):
        (self._folder / name).unlink(missing_ok=True)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", required=True, choices=("asan", "tsan"))
    differences.add_base(parser)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    parser.add_argument("--list", action="store_true", help="print the programs, build nothing")
    return parser.parse_args()


def build_and_run(suite, names, again, preset):
    begin = time.monotonic()
    if not suite.compile(names):
        print(f"{preset}: the build failed")
        return 1
    built_seconds = time.monotonic() - begin
    begin = time.monotonic()
    passed = Passed(suite.build)
    digests = {name: suite.digest(name) for name in names}
    waiting = [name for name in names if again or not passed.has(name, digests[name])]
    well = True
    if waiting:
        for name in waiting:
            passed.forget(name)
        done, well = suite.run(waiting)
        for name in done:
            passed.add(name, digests[name])
    print(
        f"{preset}: {len(names)} programs built in {built_seconds:.1f} s, {len(waiting)} run in"
        f" {time.monotonic() - begin:.1f} s, {len(names) - len(waiting)} unchanged since they"
        f" passed{'' if well else ': FAILED'}"
    )
    return 0 if well else 1


def main():
    arguments = parse()
    preset = arguments.preset
    try:
        changes = differences.find(arguments.base, arguments.most)
    except differences.Error as error:
        fail(str(error))
    if not changes.everything and not any(
        name.endswith(differences.SOURCES) for name in changes.affected
    ):
        print(f"{preset}: no program is reached by {changes}")
        return 0
    try:
        suite = Suite(preset, arguments.jobs)
    except presets.Error as error:
        fail(str(error))
    names = suite.reached(changes)
    print(
        f"{preset}: {len(names)} of {len(suite.tests)} programs are reached by {changes}",
        flush=True,
    )
    if arguments.list:
        print("\n".join(names))
        return 0
    return build_and_run(suite, names, arguments.again, preset) if names else 0


if __name__ == "__main__":
    sys.exit(main())
