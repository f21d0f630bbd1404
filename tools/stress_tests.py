#!/usr/bin/env python3
"""Runs test programs of a build again and again under adverse conditions.

    tools/stress_tests.py 'http_*' --rounds 40
    tools/stress_tests.py --label unit --mode busy,fifth
    tools/stress_tests.py common_http_test --filter 'HttpClientTest.*' --mode bursts --seed 7

It finds tests that fail because a machine is busy. A program is an entry of the build's ctest; it
runs with that entry's command, environment and folder, and with a TMPDIR of its own that is
removed afterwards. The conditions (--mode):

    busy    busy loops next to it, one more than there are processors
    fifth   all its processes together get a fifth of one processor
    bursts  from time to time all its processes stop, for 50 to 500 ms
    disk    a slow disk

The output of each failed run is kept in BUILD/stress/NAME.MODE.ROUND.log.
Entries that ctest runs alone (RUN_SERIAL) run alone here too, after the others.

Exit status: 0 all runs passed; 1 some failed; 2 it could not run, or was stopped before the end.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import failed_tests  # noqa: E402
import stress_conditions  # noqa: E402
from stress_conditions import CONDITIONS, CannotRun  # noqa: E402

# ctest's, of an entry that names none.
DEFAULT_TIMEOUT_S = 3000.0
# They say when an entry passes, or what it needs: ignoring one would make a wrong verdict.
UNKNOWN_PROPERTIES = {
    "DISABLED",
    "ENVIRONMENT_MODIFICATION",
    "FAIL_REGULAR_EXPRESSION",
    "FIXTURES_REQUIRED",
    "PASS_REGULAR_EXPRESSION",
    "REQUIRED_FILES",
    "SKIP_REGULAR_EXPRESSION",
    "SKIP_RETURN_CODE",
    "WILL_FAIL",
}


@dataclasses.dataclass
class Program:
    """An entry of ctest."""

    name: str
    command: list
    environment: dict
    folder: str
    labels: list
    timeout_s: float
    alone: bool
    unknown: list

    @staticmethod
    def of(entry, build):
        values = {p["name"]: p["value"] for p in entry.get("properties", ())}
        return Program(
            name=entry["name"],
            command=entry.get("command", []),
            environment=dict(e.split("=", 1) for e in values.get("ENVIRONMENT", ())),
            folder=values.get("WORKING_DIRECTORY", str(build)),
            labels=values.get("LABELS", []),
            timeout_s=values.get("TIMEOUT", DEFAULT_TIMEOUT_S),
            alone=bool(values.get("RUN_SERIAL", False)),
            unknown=sorted(UNKNOWN_PROPERTIES & values.keys()),
        )

    def kind(self):
        if "GTEST_OUTPUT" in self.environment:
            return "gtest"
        return "pytest" if "pytest" in self.command else "other"

    def built(self):
        return bool(self.command) and shutil.which(self.command[0]) is not None

    def filtered(self, pattern):
        """Its command for the cases of a filter only."""
        if pattern is None:
            return self.command
        if self.kind() == "gtest":
            return [*self.command, f"--gtest_filter={pattern}"]
        return [*self.command, "-k", pattern]

    def has_cases(self, pattern):
        """Whether the filter leaves any: a run without one would pass."""
        # A list is no result: the one of the last ctest stays.
        no_result = f"--junitxml={os.devnull}"
        gtest = self.kind() == "gtest"
        more = ["--gtest_list_tests"] if gtest else ["--collect-only", no_result]
        listed = subprocess.run(
            [*self.filtered(pattern), *more],
            env={**os.environ, **self.environment, "GTEST_OUTPUT": ""},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return listed.returncode == 0 and bool(listed.stdout.strip())


def entries(build):
    """The programs of a build, by ctest."""
    if not (build / "CTestTestfile.cmake").is_file():
        raise CannotRun(f"--build: {build} has no tests; expected a build folder: run cmake first")
    done = subprocess.run(
        ["ctest", "--test-dir", str(build), "--show-only=json-v1"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return [Program.of(entry, build) for entry in json.loads(done.stdout)["tests"]]
    except (ValueError, KeyError) as error:
        last = (done.stderr.strip().splitlines() or [str(error)])[-1]
        raise CannotRun(f"--build: ctest cannot list the tests of {build}: {last}") from None


def choose(programs, patterns, labels, pattern_of_cases):
    """Those that match one of the patterns, and have one of the labels."""
    if labels:
        known = {label for p in programs for label in p.labels}
        if wrong := sorted(set(labels) - known):
            raise CannotRun(f"--label: got {wrong[0]!r}, expected {', '.join(sorted(known))}")
        programs = [p for p in programs if set(labels) & set(p.labels)]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(p.name, pattern) for p in programs):
            raise CannotRun(
                f"NAME-PATTERN: {pattern!r} matches no test"
                f"{' of these labels' if labels else ''}; expected a shell pattern on a name of "
                "ctest -N"
            )
    chosen = [p for p in programs if any(fnmatch.fnmatchcase(p.name, n) for n in patterns)]
    if missing := [p.name for p in chosen if not p.built()]:
        raise CannotRun(f"NAME-PATTERN: not built: {' '.join(missing)}; expected built programs")
    for p in chosen:
        if p.unknown:
            raise CannotRun(f"{p.name}: has {p.unknown[0]} in ctest, which is not supported here")
    if pattern_of_cases is not None:
        if other := [p.name for p in chosen if p.kind() == "other"]:
            raise CannotRun(f"--filter: {other[0]} is neither of GoogleTest nor of pytest")
        chosen = [p for p in chosen if p.has_cases(pattern_of_cases)]
        if not chosen:
            raise CannotRun(f"--filter: {pattern_of_cases!r} matches no case of these programs")
    return chosen


def shares(rounds, modes):
    """Rounds by mode: evenly, the first modes have the rest."""
    each, rest = divmod(rounds, len(modes))
    counts = {mode: each + (1 if i < rest else 0) for i, mode in enumerate(modes)}
    return {mode: count for mode, count in counts.items() if count > 0}


class Guard:
    """A process that outlives this one, however it ends, and then removes what is left: processes,
    cgroups, and the folder of temporary files."""

    def __init__(self, base, cgroups):
        reader, self.writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid > 0:
            os.close(reader)
            return
        try:
            os.close(self.writer)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.read(reader, 1)
            self._clean(base, cgroups)
        finally:
            os._exit(0)

    @staticmethod
    def _clean(base, cgroups):
        cgroups.remove()
        deadline = time.monotonic() + stress_conditions.KILL_S
        while time.monotonic() < deadline:
            left = stress_conditions.marked_processes(base)
            if not left:
                break
            for process in left:
                stress_conditions.send(process.pid, signal.SIGKILL)
            stress_conditions.wait_a_moment()
        shutil.rmtree(base, ignore_errors=True)

    def end(self):
        os.close(self.writer)
        os.waitpid(self.pid, 0)


class Results:
    """The record of each program and mode. Any thread may add to it."""

    def __init__(self, head, path):
        self._head, self._path = head, path
        self._mutex = threading.Lock()
        self._runs = {}  # (program, mode): list of runs
        self._rounds = {}

    def plan(self, program, mode, rounds):
        self._runs[program, mode] = []
        self._rounds[program, mode] = rounds

    def add(self, program, mode, run):
        with self._mutex:
            self._runs[program, mode].append(run)
            self._save(False)

    def _save(self, complete):
        if self._path is None:
            return
        rows = [
            {"program": program, "mode": mode, **self._row(program, mode), "runs": runs}
            for (program, mode), runs in self._runs.items()
        ]
        # Whole or not at all: whoever reads it may do so while this runs.
        beside = self._path.with_name(self._path.name + ".new")
        text = json.dumps({**self._head, "complete": complete, "results": rows}, indent=1)
        beside.write_text(text + "\n")
        beside.replace(self._path)

    def _row(self, program, mode):
        runs = self._runs[program, mode]
        return {
            "rounds": self._rounds[program, mode],
            "passed": sum(run["passed"] for run in runs),
            "failed": sum(not run["passed"] for run in runs),
            "slowest_s": max((run["seconds"] for run in runs), default=None),
        }

    def finish(self, complete):
        with self._mutex:
            self._save(complete)

    def any_failed(self):
        return any(not run["passed"] for runs in self._runs.values() for run in runs)

    def line(self, program, mode):
        row = self._row(program, mode)
        slowest = "-" if row["slowest_s"] is None else f"{row['slowest_s']:.1f} s"
        failed = f"  {row['failed']} FAILED" if row["failed"] else ""
        passed = f"{row['passed']} of {row['rounds']}"
        return f"{program:<36} {mode:<7} {passed:>10} {slowest:>10}{failed}"

    def table(self):
        head = f"{'program':<36} {'mode':<7} {'passed':>10} {'slowest':>10}"
        return "\n".join([head, *(self.line(*key) for key in self._runs)])


class Screen:
    """One line that moves on a terminal; elsewhere only what is said for good."""

    def __init__(self):
        self._mutex = threading.Lock()
        self._moves = sys.stdout.isatty()
        self._line = ""

    def _clear(self):
        if self._line:
            print("\r\033[K", end="")

    def move(self, line):
        if not self._moves:
            return
        with self._mutex:
            self._clear()
            self._line = line[: shutil.get_terminal_size().columns - 1]
            print(self._line, end="", flush=True)

    def say(self, text):
        with self._mutex:
            self._clear()
            self._line = ""
            print(text, flush=True)


class Stopped(Exception):
    """By Ctrl-C or SIGTERM."""


class Stress:
    """The runs of one call."""

    def __init__(self, options, build, base, cgroups):
        self.options, self.base, self.cgroups = options, base, cgroups
        self.logs = build / "stress"
        self.screen = Screen()
        self.results = Results({"build": str(build), "seed": options.seed}, options.json)
        # Readable from the moment on when all is to stop: each wait for a run waits for it too.
        self.wake, self._stop = os.pipe()
        self._mutex = threading.Lock()
        self._count = 0

    def run_all(self, programs, conditions, rounds):
        """A condition at a time: what it does to the machine would disturb the others."""
        for condition in conditions:
            for program in programs:
                self.results.plan(program.name, condition.name, rounds[condition.name])
        for condition in conditions:
            condition.begin()
            try:
                count = rounds[condition.name]
                for alone, width in ((False, self.options.jobs), (True, 1)):
                    some = [p for p in programs if p.alone == alone]
                    self._run_some(some, condition, count, width)
            finally:
                condition.end()

    def _run_some(self, programs, condition, rounds, width):
        pool = concurrent.futures.ThreadPoolExecutor(max_workers=width)
        try:
            for future in [pool.submit(self._rounds, p, condition, rounds) for p in programs]:
                future.result()
        except BaseException:
            os.write(self._stop, b"x")
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _rounds(self, program, condition, rounds):
        label = program.name.replace("/", "_") + "." + condition.name
        for old in self.logs.glob(f"{label}.*.log"):
            old.unlink()
        for number in range(1, rounds + 1):
            self.screen.move(f"{condition.name}: {program.name}, {number} of {rounds}")
            run, notes = self._run(program, condition, number, self.logs / f"{label}.{number}.log")
            self.results.add(program.name, condition.name, run)
            if notes:
                self.screen.say("\n".join(notes))
        self.screen.say(self.results.line(program.name, condition.name))

    def _run(self, program, condition, number, log):
        """A run's result, and lines about it."""
        with self._mutex:
            self._count += 1
            place = self.base / str(self._count)
        place.mkdir()
        output, xml = place.with_suffix(".out"), place.with_suffix(".xml")
        group = self.cgroups.group(place.name)
        condition.prepare(group)
        factor = self.options.timeout_factor or condition.timeout_factor
        seed = f"{self.options.seed}.{program.name}.{condition.name}.{number}"
        command = program.filtered(self.options.filter)
        if program.kind() == "pytest":
            command = [*command, f"--junitxml={xml}"]
        environment = condition.environment({**os.environ, **program.environment})
        environment |= {"TMPDIR": str(place), "TEST_TMPDIR": f"{place}/"}
        if program.kind() == "gtest":
            environment["GTEST_OUTPUT"] = f"xml:{xml}"
        begin = time.monotonic()
        with output.open("w") as file:
            run = stress_conditions.Run(
                command, group, place, environment, program.folder, file, condition.before()
            )
            try:
                limit = program.timeout_s * factor
                how = run.wait(limit, condition.schedule(seed), self.wake)
                seconds = time.monotonic() - begin
            finally:
                left, gone = run.kill()
        if how == "stopped":
            raise Stopped
        result, notes = self._judge(program, condition, number, run, how, limit, output, log)
        result |= {"round": number, "seconds": round(seconds, 3), "left_over": left}
        if left:
            notes.append(f"{program.name}: note: left running: {' '.join(left)}")
        if not gone:
            notes.append(f"{program.name}: note: some of its processes cannot be killed")
        shutil.rmtree(place, ignore_errors=True)
        for file in (output, xml):
            file.unlink(missing_ok=True)
        return result, notes

    def _judge(self, program, condition, number, run, how, limit, output, log):
        status = run.main.returncode
        if how == "timeout":
            why = f"no end after {limit:g} s"
        elif status is not None and status < 0:
            why = f"killed by {signal.Signals(-status).name}"
        else:
            why = f"exit status {status}"
        if how == "ended" and status == 0:
            return {"passed": True, "status": why}, []
        self.logs.mkdir(parents=True, exist_ok=True)
        text = output.read_text(errors="replace")
        head = f"{program.name}, {condition.name} ({condition.how}), round {number}: {why}"
        again = (
            f"with --seed {self.options.seed}: {shlex.join(program.filtered(self.options.filter))}"
        )
        log.write_text(f"{head}\n{again}\n\n{text}")
        notes = [f"FAILED {head}", *failed_tests.reasons(program.name, text), f"  all of it: {log}"]
        return {"passed": False, "status": why, "log": str(log)}, notes


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", metavar="NAME-PATTERN", nargs="*", help="shell pattern, of ctest")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument(
        "--mode", default="all", help=f"some of {','.join(CONDITIONS)}; all (default)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="how often each program runs, in all its modes together (default 20)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="programs at the same time")
    parser.add_argument("--label", action="append", default=[], help="only tests of this label")
    parser.add_argument("--filter", help="only these cases: --gtest_filter, or -k of pytest")
    parser.add_argument("--json", type=pathlib.Path, help="file for results, written as they come")
    parser.add_argument(
        "--timeout-factor",
        type=float,
        help="times ctest's TIMEOUT (default 3 for fifth, 1 for others)",
    )
    parser.add_argument("--seed", type=int, help="of the bursts; default: a new one, printed")
    parser.add_argument(
        "--no-cgroups",
        action="store_true",
        help="do without cgroups even where they could be used",
    )
    parser.add_argument("--list", action="store_true", help="only print the chosen programs")
    options = parser.parse_args(arguments)
    options.modes = list(CONDITIONS) if options.mode == "all" else options.mode.split(",")
    for mode in options.modes:
        if mode not in CONDITIONS:
            raise CannotRun(
                f"--mode: got {mode!r}, expected all, or some of {','.join(CONDITIONS)}"
            )
    options.modes = list(dict.fromkeys(options.modes))
    for name in ("rounds", "jobs", "timeout_factor"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise CannotRun(f"--{name.replace('_', '-')}: got {value:g}, expected more than 0")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise CannotRun(f"--json: {options.json}: expected a file in a folder that exists")
    if not options.names and not options.label:
        raise CannotRun("NAME-PATTERN: got none, expected one (such as '*'), or --label")
    options.names = options.names or ["*"]
    if options.seed is None:
        options.seed = secrets.randbelow(1 << 32)
    return options


def stress(options, programs, build):
    """All runs. Returns the exit status."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="s"))  # Short: sockets in it have 108 bytes.
    cgroups = stress_conditions.Cgroups(f"cairn_stress_{os.getpid()}", not options.no_cgroups)
    guard = Guard(base, cgroups)
    rounds = shares(options.rounds, options.modes)
    complete = False
    try:
        conditions = [CONDITIONS[mode](base, cgroups) for mode in rounds]
        runs = Stress(options, build, base, cgroups)
        runs.screen.say(f"{len(programs)} programs, seed {options.seed}")
        for condition in conditions:
            measured = condition.check()
            how = condition.how + (f" ({measured})" if measured else "")
            runs.screen.say(f"{condition.name}: {rounds[condition.name]} rounds, {how}")
        try:
            runs.run_all(programs, conditions, rounds)
            complete = True
        except (KeyboardInterrupt, Stopped):
            runs.screen.say("stopped before the end")
        runs.results.finish(complete)
        print("\n" + runs.results.table())
        return 1 if runs.results.any_failed() else 0 if complete else 2
    finally:
        guard.end()


def main(arguments):
    try:
        options = parse(arguments)
        build = options.build.resolve()
        programs = choose(entries(build), options.names, options.label, options.filter)
        if options.list:
            print("\n".join(p.name for p in programs))
            return 0
        return stress(options, programs, build)
    except CannotRun as error:
        print(f"stress_tests: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"stress_tests: {error.filename or 'machine'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 2


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
