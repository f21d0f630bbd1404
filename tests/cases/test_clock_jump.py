"""The time of day goes back by an hour (NTP after a wrong RTC, a restored snapshot) while programs
run. Deadlines, sessions and connections do not depend on it. gRPC 1.51 and its Abseil wait until a
time of day; the jump is shown to our programs alone, by a preloaded library.

Sources: grpc/grpc #32176, #31738, #31203, #32178; abseil/abseil-cpp #172.
"""

import json
import mmap
import shutil
import signal
import struct
import subprocess
import time

import pytest
from ports import free_port
from programs import MODEL, PATIENCE, ROOT, ask, wait_until

HOUR, YEAR = 3600, 365 * 86400
PROMPT = "The quick brown fox jumps over the lazy dog. " * 12


class Clock:
    """The time of day of the programs that run in `env`."""

    def __init__(self, folder, env):
        library, file = folder / "clock_jump.so", folder / "jump"
        source = ROOT / "tests/cases/clock_jump.c"
        words = ["cc", "-O2", "-w", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"]
        subprocess.run(words, check=True)
        file.write_bytes(bytes(4096))
        with open(file, "r+b") as opened:
            self.memory = mmap.mmap(opened.fileno(), 4096)
        self.env = {**env, "LD_PRELOAD": str(library), "JUMP_FILE": str(file)}

    def set(self, seconds):
        self.memory[0:8] = struct.pack("q", seconds)


@pytest.fixture
def clock(programs, tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return Clock(tmp_path, programs.env)


class Stand:
    """A node, a worker of it and a router, all with the clock."""

    def __init__(self, programs, clock, folder):
        self.programs, self.env = programs, clock.env
        disk = ("--disk.path", folder / "d", "--disk.capacity", "64MiB", "--disk.min_free", "1MiB")
        self.node_args, self.node_at, self.worker_at = disk, "127.0.0.1:0", "127.0.0.1:0"
        self.start_node()
        self.start_worker()
        router = programs.router(self.worker_at, "--cache", self.node_at, env=self.env)
        self.url = "http://" + router.ready()["http"]

    def start_node(self):
        self.node = self.programs.node(*self.node_args, "--listen", self.node_at, env=self.env)
        self.node_at = self.node.ready()["grpc"]

    def start_worker(self):
        args = ("--cache", self.node_at, "--listen", self.worker_at, "--cache.choose", "false")
        self.worker = self.programs.worker(*args, env=self.env)
        self.worker_at = self.worker.ready()["grpc"]

    def answer(self):
        """The text and the cached tokens; None: there is no answer."""
        body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        status, _, answer = ask(self.url + "/v1/completions", body)
        if status != 200:
            return None
        answer = json.loads(answer)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["text"], cached

    def hits(self):
        """Waits for an answer from the cache, and returns its text."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self.answer()
            if answer and answer[1] > 0:
                return answer[0]
            time.sleep(0.05)
        raise AssertionError(f"no hit: {self.worker.stderr()[-2000:]}")


@pytest.fixture
def stand(programs, clock, tmp_path):
    return Stand(programs, clock, tmp_path)


def test_answers_go_on_in_both_directions(stand, clock):
    text = stand.hits()
    for seconds in (YEAR, 0, -HOUR, 0, -YEAR, 0):
        clock.set(seconds)
        assert stand.hits() == text


def test_a_node_that_restarts_after_the_clock_went_back_is_found(stand, clock):
    text = stand.hits()
    clock.set(-HOUR)
    assert stand.node.stop() == 0
    stand.start_node()
    assert stand.hits() == text


def test_a_worker_that_restarts_after_the_clock_went_back_is_found(stand, clock):
    text = stand.hits()
    clock.set(-HOUR)
    assert stand.worker.stop() == 0
    stand.start_worker()
    assert stand.hits() == text


def test_deadlines_end_when_a_node_stands_still_after_the_clock_went_back(stand, clock):
    text = stand.hits()
    clock.set(-HOUR)
    stand.node.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            assert stand.answer()[0] == text
    finally:
        stand.node.process.send_signal(signal.SIGCONT)
    assert stand.hits() == text


def test_nodes_of_a_cluster_find_one_that_restarts_after_the_clock_went_back(
    programs, clock, tmp_path
):

    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    members = ",".join(addresses)

    def start(i):
        own = ("--cluster.discovery", "static", "--cluster.members", members)
        disk = ("--disk.path", tmp_path / f"d{i}", "--disk.capacity", "64MiB")
        more = ("--disk.min_free", "1MiB", "--listen", addresses[i], "--node.id", f"n{i}")
        node = programs.node(*own, *disk, *more, env=clock.env)
        assert node.ready(), node.stderr()
        return node

    def other_is_there():
        told = programs.cairn("cluster", "members", "--cache", addresses[0], "--json")
        return told.returncode == 0 and len(json.loads(told.stdout)["members"]) == 1

    nodes = [start(0), start(1)]
    wait_until(other_is_there, "they find each other")
    clock.set(-HOUR)
    nodes[1].stop(signal.SIGKILL)
    wait_until(lambda: not other_is_there(), "it is missed")
    start(1)
    wait_until(other_is_there, "it is found again")


def test_the_library_works(clock):
    """Otherwise these tests would say nothing."""
    clock.set(-YEAR)
    told = subprocess.check_output(["date", "+%s"], env=clock.env, text=True)
    assert abs(time.time() - YEAR - int(told)) < HOUR
    assert MODEL.exists()
