"""Blocks on their way to the node: claimed once, stored in order, and never left behind."""

import threading

import pytest

from cairn._engine.counters import Counters
from cairn.vllm.save_queue import SaveQueue
from conftest import SLOW


class Stored:
    """Keeps what a queue stores. `go`: the first item waits for it."""

    def __init__(self):
        self.items = []
        self.go = threading.Event()

    def __call__(self, item):
        assert self.go.wait(SLOW)
        if item == "bad":
            raise RuntimeError("a bad item")
        self.items.append(item)


@pytest.fixture
def stored():
    return Stored()


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def queue(stored, counters):
    queue = SaveQueue(counters, stored, most=3)
    yield queue
    stored.go.set()
    queue.close()
    queue.join()


def test_a_block_is_claimed_once_until_it_is_stored(queue, stored, counters):
    assert queue.claim(b"a")
    assert not queue.claim(b"a")
    queue.put(1, [b"a"])
    assert not queue.drain(0.0)
    stored.go.set()
    assert queue.drain(SLOW)
    assert stored.items == [1]
    assert queue.claim(b"a")
    queue.forget([b"a"])
    assert counters.totals()["dropped_save_blocks"] == 0


def test_what_finds_no_room_is_counted(queue, counters):
    assert [queue.claim(key) for key in (b"a", b"b", b"c", b"d")] == [True, True, True, False]
    assert counters.totals()["dropped_save_blocks"] == 1
    queue.forget([b"a", b"b", b"c"])
    assert queue.claim(b"d")
    queue.forget([b"d"])


def test_an_item_that_fails_is_counted_and_the_next_one_is_stored(queue, stored, counters):
    for item, key in (("bad", b"a"), ("good", b"b")):
        assert queue.claim(key)
        queue.put(item, [key])
    stored.go.set()
    assert queue.drain(SLOW)
    assert stored.items == ["good"]
    assert counters.totals()["internal_errors"] == 1


def test_what_comes_after_the_end_is_dropped(queue, stored):
    stored.go.set()
    queue.close()
    queue.join()
    assert queue.claim(b"a")
    queue.put(1, [b"a"])
    assert queue.drain(0.0), "nobody would store it"
    assert stored.items == []
