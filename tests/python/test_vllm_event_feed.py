"""The feed of a node's events, with a scripted stream: what it says of blocks that it can name, and
of those whose names come later."""

import contextlib
import queue
import threading
import types

import pytest

pytest.importorskip("numpy")

from cairn.types import CacheEvent, EventKind, TierKind  # noqa: E402
from vllm_standins import standing_in  # noqa: E402

LONG = 30.0


class Stream:
    """Events that a test puts there. `caught_up` waits until the feed has taken all of them."""

    def __init__(self):
        self._events = queue.SimpleQueue()
        self._idle = threading.Event()

    def put(self, kind, key=b"", tier=TierKind.HOST, pool=0):
        self._events.put(CacheEvent(kind, 1, 1, bytes(32), key, None, tier, pool))

    def next(self, seconds):
        try:
            return self._events.get(block=False)
        except queue.Empty:
            self._idle.set()
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=0.01)
        return None

    def caught_up(self):
        # Twice: the feed may be in the middle of the last one's call.
        for _ in range(2):
            self._idle.clear()
            assert self._idle.wait(LONG)


@pytest.fixture
def feed():
    """The feed, its stream, and the names that it knows."""
    stream, names = Stream(), {}
    store = types.SimpleNamespace(watch=lambda: contextlib.nullcontext(stream))

    def render(move):
        name = names.get(move.key)
        return None if name is None else (name, move.tier.name, move.entered)

    with standing_in(lambda device: 0):
        from cairn.vllm.events import EventFeed

        made = EventFeed(store, render)
        yield made, stream, names
        made.close()


def test_a_block_is_told_once_it_has_a_name(feed):
    feed, stream, names = feed
    names[b"a"] = "A"
    for key in (b"a", b"b", b"c"):
        stream.put(EventKind.STORED, key)
    stream.put(EventKind.SNAPSHOT_END)
    stream.put(EventKind.TIER_ADDED, b"b", TierKind.DISK)
    stream.caught_up()
    assert feed.take() == [("A", "HOST", True)]
    names[b"b"] = "B"
    feed.named(b"b")
    # Known, or at no node: nothing is told twice, and nothing that is not so.
    feed.named(b"a")
    feed.named(b"z")
    stream.caught_up()
    assert sorted(feed.take()) == [("B", "DISK", True), ("B", "HOST", True)]
    for key in (b"a", b"b", b"c"):
        stream.put(EventKind.REMOVED, key)
    stream.caught_up()
    assert sorted(feed.take()) == [
        ("A", "HOST", False),
        ("B", "DISK", False),
        ("B", "HOST", False),
    ]


def test_a_block_that_left_is_not_told_when_its_name_comes(feed):
    feed, stream, names = feed
    stream.put(EventKind.STORED, b"c")
    stream.put(EventKind.SNAPSHOT_END)
    stream.put(EventKind.REMOVED, b"c")
    stream.caught_up()
    names[b"c"] = "C"
    feed.named(b"c")
    stream.caught_up()
    assert feed.take() == []
    stream.put(EventKind.STORED, b"c")
    stream.caught_up()
    assert feed.take() == [("C", "HOST", True)]


def test_a_block_keeps_the_pool_that_it_was_stored_in(feed):
    """The node says it once, and a removal says it, too."""
    feed, stream, _ = feed
    feed._render = lambda move: (move.key, move.tier.name, move.entered, move.pool)
    stream.put(EventKind.STORED, b"a", pool=2)
    stream.put(EventKind.STORED, b"b")
    stream.put(EventKind.SNAPSHOT_END)
    stream.put(EventKind.TIER_ADDED, b"a", TierKind.DISK)
    stream.put(EventKind.REMOVED, b"a")
    stream.put(EventKind.STORED, b"a", pool=1)
    stream.caught_up()
    assert feed.take() == [
        (b"a", "HOST", True, 2),
        (b"b", "HOST", True, 0),
        (b"a", "DISK", True, 2),
        (b"a", "HOST", False, 2),
        (b"a", "DISK", False, 2),
        (b"a", "HOST", True, 1),
    ]


def test_a_node_s_gpu_memory_is_no_place_that_routers_know(feed):
    feed, stream, names = feed
    names.update({b"a": "A", b"b": "B", b"c": "C"})
    stream.put(EventKind.STORED, b"a", TierKind.DEVICE)
    stream.put(EventKind.STORED, b"b")
    stream.put(EventKind.SNAPSHOT_END)
    stream.put(EventKind.TIER_ADDED, b"b", TierKind.DEVICE)
    stream.put(EventKind.TIER_REMOVED, b"b", TierKind.HOST)
    stream.put(EventKind.STORED, b"c", TierKind.DEVICE)
    stream.put(EventKind.REMOVED, b"c", TierKind.DEVICE)
    # The snapshot told of the fastest place alone.
    stream.put(EventKind.TIER_REMOVED, b"a", TierKind.DEVICE)
    stream.put(EventKind.TIER_REMOVED, b"a", TierKind.HOST)
    stream.caught_up()
    assert feed.take() == [
        ("B", "HOST", True),
        ("B", "HOST", False),
        ("A", "HOST", True),
        ("A", "DISK", True),
        ("A", "HOST", False),
    ]
