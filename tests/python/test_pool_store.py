"""The cache node as an engine with several KV pools sees it: look-ups, loads that come whole or
fail, nodes that hang, end, come back from disk and have lost a block."""

import os
import struct
import time

import pytest

import cairn
from cairn._engine.options import Options
from cairn._engine.pool_store import PoolQuestion, PoolStore, PoolTarget
from conftest import SLOW, wait_until

FULL, WINDOW = range(2)
UNIT, UNITS = 16, 8
POOLS = [cairn.Pool("full", UNIT, 3000, chained=True), cairn.Pool("window", 2 * UNIT, 5000)]
NEEDS = [cairn.PoolNeed(FULL), cairn.PoolNeed(WINDOW, 20)]
LENGTH = UNIT * UNITS


class Prompt:
    def __init__(self, seed):
        self.units = [struct.pack(">HH", seed, i) * 8 for i in range(UNITS)]
        self.data = {
            (number, i): os.urandom(pool.max_part_bytes)
            for number, pool in enumerate(POOLS)
            for i in range(LENGTH // pool.block_tokens)
        }

    def save(self, store, leave_out=()):
        parts = []
        for number, pool in enumerate(POOLS):
            keys = cairn.pool_keys(self.units, pool.block_tokens // UNIT, number)
            parts += [
                cairn.Part(
                    key,
                    self.data[number, i],
                    parent=keys[i - 1] if pool.chained and i else None,
                    rect=cairn.Rect(number, number + 1, 0, 1),
                )
                for i, key in enumerate(keys)
                if (number, i) not in leave_out
            ]
        sizes = [len(part.data) for part in parts]
        wait_until(lambda: all(store.save(parts, sizes)), SLOW, "the blocks at the node")

    def question(self, most=LENGTH):
        return PoolQuestion(self.units, NEEDS, 2 * UNIT, most)

    def find(self, store, **limits):
        found = store.begin_pool_lookup(self.question(**limits)).result()
        return found and (found.tokens, found.shared_tokens)

    def load(self, store, tokens=LENGTH):
        """Whether all came; then the bytes are those that were stored."""
        wanted = {
            FULL: range(tokens // UNIT),
            WINDOW: range((tokens - 20) // (2 * UNIT), tokens // (2 * UNIT)),
        }
        into = {
            number: [bytearray(POOLS[number].max_part_bytes) for _ in blocks]
            for number, blocks in wanted.items()
        }
        targets = [
            PoolTarget(number, blocks.start, into[number], cairn.Rect(number, number + 1, 0, 1))
            for number, blocks in wanted.items()
        ]
        came = store.load_pools(self.units[: tokens // UNIT], NEEDS, tokens, targets)
        for number, blocks in wanted.items() if came else ():
            for i, memory in zip(blocks, into[number], strict=True):
                assert memory == self.data[number, i], (number, i)
        return came


@pytest.fixture
def stores(path):
    made = []

    def make(node, **options):
        spec = cairn.NamespaceSpec(
            model=f"pool store {path}",
            revision="1",
            numerics="n",
            layout=cairn.PooledLayout("test", POOLS, UNIT),
            key_scheme="test",
        )
        limits = {"lookup_timeout": SLOW, "load_timeout": SLOW, "save_timeout": SLOW}
        made.append(
            PoolStore(
                Options(address=node.grpc, path=path, **{**limits, **options}), spec, "pool-store"
            )
        )
        assert made[-1].wait_open(SLOW)
        return made[-1]

    yield make
    for store in made:
        assert store.counters.totals()["internal_errors"] == 0
        store.close()


def test_what_is_there_is_found_and_comes(node, stores, serial):
    store, prompt = stores(node), Prompt(serial())
    assert prompt.find(store) == (0, 0)
    assert not prompt.load(store)
    prompt.save(store)
    assert prompt.find(store) == (LENGTH, LENGTH)
    assert prompt.find(store, most=100) == (96, 96)
    assert prompt.load(store)
    assert prompt.load(store, 64)
    counts = store.counters.totals()
    assert (counts["lookups"], counts["lookup_blocks"], counts["matched_blocks"]) == (3, 24, 14)
    assert (counts["loads"], counts["loaded_blocks"], counts["failed_load_blocks"]) == (3, 14, 9)
    assert counts["saved_blocks"] == 12


@pytest.mark.parametrize(
    ("lost", "found"),
    [((WINDOW, 3), (96, LENGTH)), ((WINDOW, 2), (LENGTH, LENGTH)), ((FULL, 5), (64, 64))],
)
def test_a_lost_block_of_one_pool_makes_the_length_shorter(node, stores, serial, lost, found):
    """Where other prompts part is told even if the windows there are lost."""
    store, prompt = stores(node), Prompt(serial())
    prompt.save(store, [lost])
    assert prompt.find(store) == found
    assert prompt.load(store) == (found[0] == LENGTH)
    assert prompt.load(store, found[0])


def test_all_lengths_are_told_and_counted_once(node, stores, serial):
    store, prompt = stores(node), Prompt(serial())
    prompt.save(store, [(WINDOW, 2)])
    assert store.lengths(prompt.question()).lengths == [32, 64, 128]
    assert store.lengths(prompt.question(most=100)).lengths == [32, 64]
    before = store.counters.totals()
    assert store.details(prompt.question(), time.monotonic() + SLOW).lengths == [32, 64, 128]
    assert store.details(prompt.question(), time.monotonic() - 1) is None
    assert store.counters.totals() == before
    assert (before["lookups"], before["matched_blocks"]) == (2, 12)


def test_blocks_of_one_pool_come_around_a_hole(node, stores, serial):
    store, prompt = stores(node), Prompt(serial())
    prompt.save(store, [(FULL, 2), (FULL, 7)])
    into = [bytearray(POOLS[FULL].max_part_bytes) for _ in prompt.units]
    failed = store.load_any_of_pool(FULL, prompt.units, into, cairn.Rect(FULL, FULL + 1, 0, 1))
    assert failed == {2, 7}
    for i, memory in enumerate(into):
        assert i in failed or memory == prompt.data[FULL, i]
    counts = store.counters.totals()
    assert (counts["loads"], counts["loaded_blocks"], counts["failed_load_blocks"]) == (1, 6, 2)


def test_a_node_that_comes_back_from_disk_and_one_with_damaged_bytes(start_node, stores, tmp_path):
    disk = tmp_path / "disk"
    node = start_node("--disk.path", str(disk))
    again = ("--listen", node.grpc, "--disk.path", str(disk), "--disk.scrub_rate", "0B")
    store, prompt = stores(node), Prompt(1)
    prompt.save(store)
    with cairn.Client(node.grpc) as client:
        client.flush(deadline=SLOW)
    node.kill()
    assert prompt.find(store) is None and not prompt.load(store)

    node = start_node(*again)
    wait_until(lambda: prompt.load(store), SLOW, "a load from disk")
    node.kill()
    # One byte in the middle of the last block of the window.
    last = prompt.data[WINDOW, 3]
    damaged = 0
    for file in disk.rglob("*"):
        if file.is_file() and (at := file.read_bytes().find(last)) >= 0:
            with file.open("r+b") as stream:
                stream.seek(at + 2500)
                stream.write(bytes([last[2500] ^ 1]))
            damaged += 1
    assert damaged == 1
    start_node(*again)
    wait_until(lambda: prompt.find(store) is not None, SLOW, "an answer")
    assert not prompt.load(store)
    # The node knows now that it is lost.
    assert prompt.find(store) == (96, LENGTH)
    assert prompt.load(store, 96)


def test_a_hung_node_is_a_miss_in_time(start_node, stores):
    node = start_node()
    store, prompt = stores(node, lookup_timeout=0.3, load_timeout=1.0), Prompt(2)
    prompt.save(store)
    node.freeze()
    begin = time.monotonic()
    lookup = store.begin_pool_lookup(prompt.question())
    assert not lookup.wait(0.01)
    lookup.give_up()
    assert prompt.find(store) is None and not prompt.load(store)
    assert time.monotonic() - begin < 20
    assert store.counters.totals()["lookup_failures"] >= 2
    node.thaw()
    wait_until(lambda: prompt.load(store), SLOW, "the node's coming back")


def test_a_store_that_is_closed_answers_nothing(node, stores, serial):
    store, prompt = stores(node), Prompt(serial())
    prompt.save(store)
    lookups = [store.begin_pool_lookup(prompt.question()) for _ in range(20)]
    store.close()
    assert {lookup.result() and lookup.result().tokens for lookup in lookups} <= {None, LENGTH}
    assert not prompt.load(store)
