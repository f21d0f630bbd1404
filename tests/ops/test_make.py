"""The front door: one make at a time, a line that says what to do when a step fails, and where the
time went. The Makefile runs in a folder of its own, since the real one may be running this test."""

import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def clone(tmp_path):
    """A folder with the Makefile and what its goals begin with; nothing is missing for `setup`."""
    folder = tmp_path / "clone"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copytree(ROOT / "tools/make", folder / "tools/make")
    (folder / "tools/setup").mkdir()
    (folder / "tools/setup/setup.sh").write_text("exit 0\n")
    return folder


def program(clone, name, text):
    """A stand-in for a program that the Makefile calls."""
    path = clone / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make(clone, *words, **options):
    environment = dict(os.environ, PATH=f"{clone / 'bin'}:{os.environ['PATH']}")
    for name in ("CAIRN_GOAL", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        environment.pop(name, None)
    return subprocess.run(
        ["make", *words],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )


def step(clone, *words):
    """One step, as the Makefile runs it."""
    (clone / "build").mkdir(exist_ok=True)
    (clone / "build/.steps").write_text("0\n")
    return subprocess.Popen(
        [sys.executable, clone / "tools/make/step.py", *words],
        env=dict(os.environ, CAIRN_GOAL="test"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def failed(clone, *words):
    """The output of a step that fails."""
    process = step(clone, *words)
    _, error = process.communicate(timeout=300)
    assert process.returncode not in (0, None)
    return error


def test_says_where_the_time_went(clone):
    program(clone, "cmake", "exit 0")
    done = make(clone, "build")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"make build: done in \d+ s \(configure \d+ s, product \d+ s\)", done.stderr
    ), done.stderr


def test_a_second_make_in_the_folder_says_who_the_first_is(clone):
    program(clone, "cmake", "exit 0")
    (clone / "build").mkdir()
    with open(clone / "build/.make", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        done = make(clone, "build")
        assert done.returncode != 0
        assert done.stderr.splitlines()[0] == (
            "make build: process 4711 makes something in this folder already: "
            "wait until it has ended, or end it"
        )
    assert make(clone, "build").returncode == 0


def test_what_a_step_leaves_behind_does_not_hold_the_folder(clone):
    program(clone, "cmake", "sleep 600 >/dev/null 2>&1 & echo $! >>pids; exit 0")
    try:
        assert make(clone, "build").returncode == 0
        assert make(clone, "build").returncode == 0
    finally:
        for pid in (clone / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_full_disk_is_said_before_anything_is_built(clone):
    program(clone, "df", "echo Filesystem; echo none 0 0 2048 0% /")
    done = make(clone, "test")
    assert done.returncode != 0
    assert "make test: build/ has 2 MB free, and this takes about" in done.stderr


@pytest.mark.parametrize(("gibibytes", "jobs"), [(0, 1), (1, 1), (2, 2), (3, 3), (64, 3)])
def test_as_many_compilers_as_memory_has_room_for(clone, gibibytes, jobs):
    meminfo = clone / "meminfo"
    meminfo.write_text(f"MemTotal: 999999999 kB\nMemAvailable: {gibibytes << 20} kB\n")
    program(clone, "nproc", "echo 2")
    done = subprocess.run(
        ["sh", ROOT / "tools/make/jobs.sh", meminfo],
        env={"PATH": f"{clone / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{jobs}\n"


@pytest.mark.parametrize(
    ("printed", "advice"),
    [
        ("fatal error: error writing to x.o: No space left on device", "the disk is full"),
        (
            "NewConnectionError: Failed to establish a new connection",
            "the package index cannot be reached",
        ),
        ("c++: fatal error: Killed signal terminated program cc1plus", "use fewer jobs (JOBS=1)"),
        ("  Cairn needs GCC 12 or Clang 14: got GNU 9.4", "Cairn needs GCC 12 or Clang 14"),
    ],
)
def test_a_known_failure_says_what_to_do(clone, printed, advice):
    error = failed(clone, "--quiet", "packages", "--", "sh", "-c", f"echo '{printed}'; exit 3")
    last = error.splitlines()[-1]
    assert re.match(
        r"make test: `packages` failed after \d+ s \(status 3\), all that it printed", last
    ), last
    assert advice in last and last.endswith("`make test` goes on from there")
    assert printed in (clone / "build/logs/packages.log").read_text()


def test_a_failed_compilation_is_shown_without_those_that_succeeded(clone):
    script = (
        "echo '[1/3] Building a.o'; echo 'FAILED: b.o'; echo '/usr/bin/c++ -O2 b.cc';"
        "echo 'b.cc:1: error: no'; echo '[2/3] Building c.o'; exit 1"
    )
    error = failed(clone, "--build", "product", "--", "sh", "-c", script)
    assert "b.cc:1: error: no" in error and "FAILED: b.o" in error
    assert "Building" not in error and "-O2" not in error


def test_a_program_that_is_not_there_is_a_failure(clone):
    assert "`tests` failed" in failed(clone, "tests", "--", "/does/not/exist")


def test_a_step_that_is_ended_ends_what_it_runs(clone):
    fifo = clone / "fifo"
    os.mkfifo(fifo)
    # The shell is what ends: it writes its id, and then waits for somebody who writes.
    process = step(clone, "tests", "--", "sh", "-c", f"echo $$ >{fifo}; read nothing <{fifo}")
    child = int(fifo.read_text())
    process.terminate()
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "make test: interrupted in `tests`; `make test` goes on from there" in error
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_demo_says_at_once_how_long_it_will_take(clone):
    """Before the first step: here the first one fails."""
    program(clone, "cmake", "exit 1")
    done = make(clone, "demo", "JOBS=2", "MODEL=Makefile")
    assert done.returncode != 0
    assert re.match(
        r"make demo: about \d+ min on these 2 processors "
        r"\((?:packages 1 min, )?build \d+ min, the demo itself \d+ min\)\n",
        done.stderr,
    ), done.stderr


def test_help_lists_every_goal():
    listed = set(re.findall(r"^([a-z-]+):.*?## ", MAKEFILE, re.MULTILINE))
    words = re.search(r"^GOALS := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[1]
    assert listed == {*words.replace("\\", " ").split(), "help", "clean"}


def test_contributing_names_goals_that_there_are():
    goals = set(re.findall(r"^([a-z-]+):.*?## ", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING))
    assert named <= goals, named - goals


def test_contributing_says_where_the_time_of_each_goal_goes():
    """Each row is a goal or the CI's script, and names steps by the labels that the goal prints."""
    table = CONTRIBUTING[CONTRIBUTING.index("## Where the time goes") :]
    rows = dict(re.findall(r"^\| `([^`]+)`[^|]* \|[^|]*\| (.*) \|$", table, re.MULTILINE))
    assert {"make demo", "make build", "make test", "make check", ".ci/run"} == set(rows)
    labels = set(re.findall(r"\$\(STEP\)(?: --\w+)* \"?([\w' ]+?)\"? --", MAKEFILE))
    labels |= set(re.findall(r"\$\(call build_targets,([^,]+),", MAKEFILE)) | {"packages"}
    for goal, steps in rows.items():
        for step in () if goal == ".ci/run" else steps.split(", "):
            assert re.sub(r" [\d.]+$", "", step) in labels, (goal, step, sorted(labels))
