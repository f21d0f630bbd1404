"""Loads of adapters that are given up, and probes of a few blocks: over a throttled wire and with a
node that hangs."""

import os
import time

import pytest

import cairn
from cairn._engine.fetch_chooser import Place
from cairn._engine.options import Options
from cairn._engine.pool_store import PoolTarget
from cairn._engine.store import Store
from conftest import SLOW, wait_until
from rows.throttle import Throttle
from test_pool_store import FULL, LENGTH, NEEDS, POOLS, Prompt, stores  # noqa: F401

BLOCKS, SIZE = 64, 256 << 10
RECT = cairn.Rect(0, 1, 0, 1)


@pytest.fixture
def wire(start_node):
    node = start_node()
    with Throttle(node.grpc) as wire:
        wire.node = node
        yield wire


@pytest.fixture
def store(wire, serial):
    spec = cairn.NamespaceSpec(
        model=f"limits {serial()}",
        revision="1",
        numerics="n",
        layout=cairn.OpaqueLayout("bytes of a test", max_part_bytes=SIZE, block_tokens=16),
        key_scheme="test",
    )
    limits = {"lookup_timeout": SLOW, "load_timeout": SLOW, "save_timeout": SLOW}
    store = Store(Options(address=wire.address, path="grpc", **limits), spec, "limits")
    assert store.wait_open(SLOW)
    yield store
    assert store.counters.totals()["internal_errors"] == 0
    store.close()


def saved(store, blocks=BLOCKS):
    keys = [os.urandom(32) for _ in range(blocks)]
    data = [os.urandom(SIZE) for _ in keys]
    parts = [
        cairn.Part(key, bytes_, parent=parent)
        for key, bytes_, parent in zip(keys, data, [None, *keys])
    ]
    wait_until(lambda: all(store.save(parts, [SIZE] * blocks)), SLOW, "the blocks at the node")
    return keys, data


def test_a_load_that_is_given_up_keeps_what_came(store, wire):
    keys, data = saved(store)
    into = [bytearray(SIZE) for _ in keys]
    # All of it would take 4 s.
    wire.rate = 4 << 20
    begin = time.monotonic()
    failed = store.load(keys, 0, into, RECT, limit=2.0)
    assert 1.5 < time.monotonic() - begin < 10
    assert 0 < len(failed) < BLOCKS
    for i, memory in enumerate(into):
        assert i in failed or memory == data[i]
    # The stream that was given up does not hold the next one up.
    wire.rate = 1e12
    wait_until(lambda: not store.load(keys, 0, into, RECT), SLOW, "a whole load")
    assert into == data


def test_a_timeout_that_is_shorter_than_the_limit_counts(store, wire):
    keys, _ = saved(store, 16)
    object.__setattr__(store.options, "load_timeout", 0.5)
    wire.rate = 1 << 18
    begin = time.monotonic()
    assert store.load(keys, 0, [bytearray(SIZE) for _ in keys], RECT, limit=SLOW)
    assert time.monotonic() - begin < 10


def test_a_sample_says_how_fast_the_node_is(store, wire):
    keys, _ = saved(store, 8)
    begin = time.monotonic()
    fast = store.sample(keys[:4], SIZE, RECT, SLOW)
    spent = time.monotonic() - begin
    assert 0 < fast.lookup_seconds < fast.seconds <= spent
    assert (fast.bytes, fast.place) == (4 * SIZE, Place.MEMORY)
    # What the node does not have is not loaded.
    some = store.sample([*keys[:2], bytes(32)], SIZE, RECT, SLOW)
    assert some.bytes == 2 * SIZE
    none = store.sample([bytes(32)], SIZE, RECT, SLOW)
    assert none.seconds is None and none.lookup_seconds > 0
    wire.rate = 2 << 20
    slow = store.sample(keys[:4], SIZE, RECT, SLOW)
    assert slow.seconds > 0.25
    counts = store.counters.totals()
    assert (counts["lookups"], counts["loads"], counts["loaded_blocks"]) == (0, 0, 0)


def test_a_sample_of_a_node_that_hangs_ends(store, wire):
    keys, _ = saved(store, 8)
    wire.node.freeze()
    begin = time.monotonic()
    sample = store.sample(keys, SIZE, RECT, 0.3)
    assert time.monotonic() - begin < 10
    assert sample.seconds is None and sample.lookup_seconds >= 0.25
    wire.node.thaw()


def test_samples_of_pools(node, stores, serial):  # noqa: F811
    store, prompt = stores(node), Prompt(serial())
    sizes = [pool.max_part_bytes for pool in POOLS]
    rects = [cairn.Rect(number, number + 1, 0, 1) for number in range(len(POOLS))]
    none = store.sample_pools(prompt.question(), sizes, rects, 10_000, SLOW)
    assert none.seconds is None and none.lookup_seconds > 0
    prompt.save(store)
    before = store.counters.totals()
    some = store.sample_pools(prompt.question(), sizes, rects, 10_000, SLOW)
    assert 0 < some.lookup_seconds < some.seconds
    # Three blocks of the first pool, as many as these bytes have.
    assert (some.bytes, some.place) == (3 * sizes[FULL], Place.MEMORY)
    # One block at least.
    assert store.sample_pools(prompt.question(), sizes, rects, 1, SLOW).bytes == sizes[FULL]
    after = store.counters.totals()
    assert after["lookups"] == before["lookups"] and after["loads"] == before["loads"]


def test_a_load_of_pools_that_is_given_up(start_node, stores):  # noqa: F811
    node = start_node()
    store, prompt = stores(node), Prompt(3)
    prompt.save(store)
    into = [bytearray(POOLS[FULL].max_part_bytes) for _ in prompt.units]
    targets = [PoolTarget(FULL, 0, into, cairn.Rect(FULL, FULL + 1, 0, 1))]
    assert store.load_pools(prompt.units, NEEDS, LENGTH, targets, limit=SLOW)
    node.freeze()
    begin = time.monotonic()
    assert not store.load_pools(prompt.units, NEEDS, LENGTH, targets, limit=0.3)
    assert time.monotonic() - begin < 10
    node.thaw()


def test_a_pool_s_look_up_tells_how_long_it_took(node, stores, serial):  # noqa: F811
    store, prompt = stores(node), Prompt(serial())
    prompt.save(store)
    lookup = store.begin_pool_lookup(prompt.question())
    assert lookup.wait(SLOW)
    wait_until(lambda: lookup.seconds > 0, SLOW, "the time")
    assert lookup.result() is not None
