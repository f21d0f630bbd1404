"""tools/stress_tests.py on tiny programs: what it does to them, what it finds, what it leaves."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import stress_conditions  # noqa: E402
import stress_tests  # noqa: E402

WAYS = ("--cgroups", "--no-cgroups")


def cgroups():
    found = stress_conditions.Cgroups(f"cairn_stress_test_{os.getpid()}")
    kinds = set(found.folders)
    found.remove()
    return kinds


CGROUPS = cgroups()


@pytest.fixture
def stress(tmp_path):
    calls = Stress(tmp_path)
    yield calls
    calls.end()


class Stress:
    """A build folder with programs of Python, and calls of the tool on it."""

    def __init__(self, folder):
        self.folder, self.tests, self.started = folder, [], []
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self.add("unbuilt", None)

    def add(self, name, code, **properties):
        properties = {"TIMEOUT": 60, "WORKING_DIRECTORY": self.folder, **properties}
        program = self.folder / f"{name}.py"
        command = f"{name}_NOT_BUILT"
        if code is not None:
            program.write_text(code)
            command = f'"{sys.executable}" "{program}"'
        values = " ".join(f'{key} "{value}"' for key, value in properties.items())
        self.tests.append(
            f"add_test({name} {command})\nset_tests_properties({name} PROPERTIES {values})\n"
        )
        (self.folder / "CTestTestfile.cmake").write_text("".join(self.tests))

    def start(self, *arguments, way="--no-cgroups"):
        if way == "--no-cgroups":
            arguments = (*arguments, way)
        started = subprocess.Popen(
            [sys.executable, ROOT / "tools/stress_tests.py", "--build", self.folder, *arguments],
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(started)
        return started

    def end(self):
        """A test failed: the processes that it started must not run on."""
        for started in self.started:
            if started.poll() is None:
                started.kill()
            started.stdout.close()
            started.wait()

    def run(self, *arguments, way="--no-cgroups"):
        """Its exit status, and what it printed."""
        started = self.start(*arguments, way=way)
        text, _ = started.communicate()
        return started.returncode, text

    def leaves_nothing(self):
        return not list(self.temporary.iterdir())


def test_a_program_that_always_passes_passes_in_each_round(stress):
    stress.add("good", "", LABELS="unit")
    result = stress.folder / "result.json"
    status, text = stress.run("good", "--mode=busy,bursts", "--rounds=5", f"--json={result}")
    assert status == 0, text
    assert "3 of 3" in text and "2 of 2" in text
    known = json.loads(result.read_text())
    assert known["complete"]
    assert [(r["mode"], r["passed"], r["failed"]) for r in known["results"]] == [
        ("busy", 3, 0),
        ("bursts", 2, 0),
    ]
    assert not (stress.folder / "stress").exists()
    assert stress.leaves_nothing()


def test_a_program_that_fails_once_is_found_and_its_log_kept(stress):
    stress.add(
        "second",
        "import os, pathlib\n"
        "count = pathlib.Path('count')\n"
        "count.write_text((count.read_text() if count.exists() else '') + 'x')\n"
        "if count.read_text() == 'xx':\n"
        "    print('[ RUN      ] Some.Case\\na_test.cc:7: Failure\\nValue of: view\\n')\n"
        "    os.abort()\n",
    )
    stress.add("zgood", "")
    status, text = stress.run("second", "zgood", "--mode=bursts", "--rounds=3", "--seed=5")
    assert status == 1, text
    assert "round 2: killed by SIGABRT" in text
    assert "Some.Case" in text and "a_test.cc:7: Failure" in text
    assert "2 of 3" in text and "1 FAILED" in text
    assert "3 of 3" in text, "it stopped at the first program that failed"
    logs = list((stress.folder / "stress").iterdir())
    assert [log.name for log in logs] == ["second.bursts.2.log"]
    assert "Value of: view" in logs[0].read_text() and "--seed 5" in logs[0].read_text()
    assert stress.leaves_nothing()


def test_a_program_that_hangs_is_ended(stress):
    stress.add("hangs", "import signal\nprint('waits', flush=True)\nsignal.pause()", TIMEOUT=0.5)
    status, text = stress.run("hangs", "--mode=bursts", "--rounds=1", "--timeout-factor=2")
    assert status == 1, text
    assert "no end after 1 s" in text
    assert stress.leaves_nothing()


def test_what_a_program_leaves_running_is_noted_and_ended(stress):
    stress.add(
        "leaves",
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open('left', 'w').write(str(left.pid))\n",
    )
    status, text = stress.run("leaves", "--mode=bursts", "--rounds=1")
    assert status == 0, text
    assert "left running: sleep" in text
    assert gone(int((stress.folder / "left").read_text()))


def test_a_run_has_its_own_folder_and_its_own_result(stress):
    stress.add(
        "says",
        "import os, sys, tempfile\n"
        "if '--gtest_list_tests' in sys.argv: sys.exit(print('Some.\\n  Case'))\n"
        "open('said', 'a').write('%s|%s|%s|%s\\n' % (tempfile.mkdtemp(), os.environ['MORE'],\n"
        "    os.environ['GTEST_OUTPUT'], sys.argv[1:]))\n",
        ENVIRONMENT=f"GTEST_OUTPUT=xml:{stress.folder}/kept.xml;MORE=1",
    )
    status, text = stress.run("says", "--mode=bursts", "--rounds=2", "--filter=Some.*")
    assert status == 0, text
    lines = [line.split("|") for line in (stress.folder / "said").read_text().splitlines()]
    assert len({line[0] for line in lines}) == 2
    for folder, more, output, arguments in lines:
        assert pathlib.Path(folder).is_relative_to(stress.temporary)
        assert more == "1"
        assert output.startswith(f"xml:{stress.temporary}/")
        assert arguments == "['--gtest_filter=Some.*']"
    assert stress.leaves_nothing()


# Two of them: a fifth is for all processes of a run together.
SPINS = """
import os, time
begin = time.monotonic()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        while time.process_time() < .15: pass
        os._exit(0)
    children.append(child)
for child in children: os.waitpid(child, 0)
used = os.times().children_user + os.times().children_system
open('share', 'w').write(str(used / (time.monotonic() - begin)))
"""


@pytest.mark.skipif("cpu" not in CGROUPS, reason="no cgroup with a cpu quota can be written")
def test_fifth_leaves_a_fifth_of_one_processor(stress):
    stress.add("spins", SPINS)
    status, text = stress.run("spins", "--mode=fifth", "--rounds=1", way="--cgroups")
    assert status == 0, text
    assert "quota" in text
    assert 0 < float((stress.folder / "share").read_text()) < 0.4


def test_fifth_without_a_quota_stops_four_fifths_of_the_time(tmp_path):
    fifth = stress_conditions.Fifth(tmp_path, stress_conditions.Cgroups("none", allowed=False))
    schedule = fifth.schedule("seed")
    for _ in range(3):
        runs, pauses = next(schedule)
        assert runs / (runs + pauses) == pytest.approx(0.2)
    assert "SIGSTOP" in fifth.how and fifth.before()[0] == "taskset"


# Stops a child itself, and ends when the whole run was stopped for a while.
STOPS_A_CHILD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
child.send_signal(signal.SIGSTOP)
os.waitpid(child.pid, os.WUNTRACED)
last = time.monotonic()
while True:
    now = time.monotonic()
    if now - last > .05: break
    last = now
continued, _ = os.waitpid(child.pid, os.WCONTINUED | os.WNOHANG)
sys.exit('the child was continued' if continued else 0)
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_burst_keeps_what_the_test_itself_stopped(stress, way):
    stress.add("stops", STOPS_A_CHILD)
    status, text = stress.run("stops", "--mode=bursts", "--rounds=1", way=way)
    assert status == 0, text


@pytest.mark.parametrize("way", WAYS)
def test_a_pause_stops_all_processes_and_continues_only_those(tmp_path, way):
    """Also one in a session of its own that was started later."""
    groups = stress_conditions.Cgroups(f"cairn_stress_{os.getpid()}", way == "--cgroups")
    code = (
        "import os, signal, subprocess, sys\n"
        "spin = [sys.executable, '-c', 'while True: pass']\n"
        "spins = subprocess.Popen(spin, start_new_session=True)\n"
        "stopped = subprocess.Popen(spin)\n"
        "stopped.send_signal(signal.SIGSTOP)\n"
        "os.waitpid(stopped.pid, os.WUNTRACED)\n"
        "print(f'{spins.pid} {stopped.pid}', flush=True)\n"
        "signal.pause()\n"
    )
    reader, writer = os.pipe()
    try:
        run = stress_conditions.Run(
            [sys.executable, "-c", code],
            groups.group("1"),
            tmp_path / "1",
            dict(os.environ),
            tmp_path,
            writer,
        )
        os.close(writer)
        with open(reader) as lines:
            spins, stopped = map(int, lines.readline().split())
        run.pause()
        if run.group.can("freeze"):
            frozen = run.group.folders["freeze"]
            v1 = (frozen / "freezer.state").exists()
            file = frozen / ("freezer.state" if v1 else "cgroup.events")
            wait_until(lambda: "FROZEN" in file.read_text() or "frozen 1" in file.read_text())
            members = set(map(int, (frozen / "cgroup.procs").read_text().split()))
            assert {run.main.pid, spins, stopped} <= members
        else:
            for pid in (run.main.pid, spins):
                wait_until(lambda pid=pid: state(pid) == "T")
        run.resume()
        wait_until(lambda: state(spins) == "R" and state(run.main.pid) == "S")
        # The freezer lets it go after the write that thaws: until then its state is another.
        wait_until(lambda: state(stopped) == "T")
    finally:
        _, all_ended = run.kill()
        groups.remove()
    assert all_ended and gone(spins) and gone(stopped)


def state(pid):
    return stress_conditions.process(pid).state


def wait_until(condition):
    """Far longer than it can take."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        stress_conditions.wait_a_moment()


def gone(pid):
    process = stress_conditions.process(pid)
    return process is None or process.ended()


@pytest.mark.parametrize(
    "number, mode, way",
    [
        (signal.SIGTERM, "busy", "--cgroups"),
        (signal.SIGTERM, "bursts", "--no-cgroups"),
        (signal.SIGINT, "busy", "--no-cgroups"),
        (signal.SIGKILL, "bursts", "--cgroups"),
        (signal.SIGKILL, "busy", "--no-cgroups"),
    ],
)
def test_a_killed_run_leaves_nothing(stress, number, mode, way):
    fifo = stress.folder / "pids"
    os.mkfifo(fifo)
    stress.add("done", "")
    stress.add(
        "waits",
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "signal.pause()\n",
    )
    result = stress.folder / "result.json"
    arguments = ("done", "waits", f"--mode={mode}", "--rounds=1", f"--json={result}")
    started = stress.start(*arguments, way=way)
    pids = [int(pid) for pid in fifo.read_text().split()]
    base = next(stress.temporary.iterdir())
    # A process that has just begun its program shows no environment for a moment.
    while len(stress_conditions.marked_processes(base)) < (3 if mode == "busy" else 2):
        assert started.poll() is None
    started.send_signal(number)
    # Its output ends when the last of its own processes ended.
    text, _ = started.communicate()
    assert started.returncode == (2 if number != signal.SIGKILL else -signal.SIGKILL), text
    assert all(gone(pid) for pid in pids)
    assert not stress_conditions.marked_processes(base)
    assert not list(pathlib.Path("/sys/fs/cgroup").glob(f"**/cairn_stress_{started.pid}"))
    assert stress.leaves_nothing()
    known = json.loads(result.read_text())
    assert not known["complete"]
    assert {r["program"]: r["passed"] for r in known["results"]} == {"done": 1, "waits": 0}


def test_the_disk_is_really_slower(stress):
    """The tool refuses to run when its own measurement finds no difference."""
    stress.add("good", "")
    status, text = stress.run("good", "--mode=disk", "--rounds=1")
    assert status == 0, text
    assert "write+fsync" in text


@pytest.mark.skipif("disk" not in CGROUPS, reason="no cgroup that throttles disks can be written")
def test_the_disk_is_really_slower_by_a_cgroup(stress):
    stress.add("good", "")
    status, text = stress.run("good", "--mode=disk", "--rounds=1", way="--cgroups")
    assert status == 0, text
    assert "write+fsync" in text


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nothing*"], "NAME-PATTERN: 'nothing*' matches no test"),
        (["good", "nothing*"], "NAME-PATTERN: 'nothing*' matches no test"),
        ([], "NAME-PATTERN: got none"),
        (["unbuilt"], "not built: unbuilt"),
        (["inverted"], "inverted: has WILL_FAIL"),
        (["good", "--mode=busy,idle"], "--mode: got 'idle', expected all, or some of busy,fifth"),
        (["good", "--rounds=0"], "--rounds: got 0, expected more than 0"),
        (["good", "--jobs=-1"], "--jobs: got -1, expected more than 0"),
        (["good", "--label=units"], "--label: got 'units', expected conformance, unit"),
        (["good", "--filter=A.*"], "--filter: good is neither of GoogleTest nor of pytest"),
        (["cases", "--filter=A.*"], "--filter: 'A.*' matches no case"),
        (["good", "--json=none/x.json"], "--json: none/x.json: expected a file in a folder"),
        (["good", "--build=none"], "none has no tests; expected a build folder"),
    ],
)
def test_wrong_arguments_are_one_line(stress, capsys, arguments, said):
    stress.add("good", "", LABELS="unit")
    stress.add("other", "", LABELS="conformance")
    stress.add("inverted", "", WILL_FAIL=1)
    stress.add("cases", "", ENVIRONMENT="GTEST_OUTPUT=xml:x.xml")
    assert stress_tests.main(["--build", str(stress.folder), *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_list_names_the_chosen_programs_and_runs_none(stress, capsys):
    stress.add("good", "open('ran', 'w')", LABELS="unit")
    stress.add("gone", "", LABELS="unit")
    stress.add("other", "", LABELS="conformance")
    build = ["--build", str(stress.folder), "--list"]
    assert stress_tests.main([*build, "--label=unit"]) == 0
    assert capsys.readouterr().out == "good\ngone\n"
    assert stress_tests.main([*build, "g*d"]) == 0
    assert capsys.readouterr().out == "good\n"
    assert not (stress.folder / "ran").exists()


def test_rounds_are_spread_evenly():
    assert stress_tests.shares(20, list("abcd")) == {"a": 5, "b": 5, "c": 5, "d": 5}
    assert stress_tests.shares(5, list("abcd")) == {"a": 2, "b": 1, "c": 1, "d": 1}
    assert stress_tests.shares(1, list("abcd")) == {"a": 1}
