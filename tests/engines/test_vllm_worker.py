"""The connector's half in a worker, without an engine, with a real node."""

import threading
import time
import types

import numpy as np
import pytest
import torch

import cairn
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.vllm.metadata import LoadJob, Metadata, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.worker import WorkerHalf
from conftest import wait_until

SIZE = 16
LAYERS, PAGE = 3, 512


def worker(node, rank=0, ranks=1, page=PAGE, model="m", **options):
    layout = cairn.OpaqueLayout(
        "pages of a test", max_part_bytes=LAYERS * page, parts=ranks, block_tokens=SIZE
    )
    spec = cairn.NamespaceSpec(
        model=model, revision="1", numerics="n", layout=layout, key_scheme="test"
    )
    store = Store(Options(address=node.grpc, **options), spec, "worker-test")
    assert store.wait_open(10)
    half = WorkerHalf(store, Plan(spec, SIZE, True), rank)
    pages = {
        f"layer{i}": torch.randint(0, 255, (40, page), dtype=torch.uint8) for i in range(LAYERS)
    }
    half.register(pages)
    return half, store, pages


def load(half, store, keys, first, ids):
    half.start_loads(Metadata(store.namespace, [LoadJob("r", keys, first, ids)]))
    ended = set()
    wait_until(lambda: ended.update(half.finished(idle=False)) or ended, 20, "the load's end")
    assert ended == {"r"}
    return half.take_bad_blocks()


def save(half, store, keys, ids):
    half.start_saves(Metadata(store.namespace, [], [SaveJob(keys, 0, ids, None)]))
    assert half.drain(20)


def keys_of(seed, count):
    return [bytes([seed, i]) * 16 for i in range(count)]


def test_a_block_is_there_when_all_ranks_have_stored_their_part(start_node):
    node = start_node()
    writers = [worker(node, rank, 2, model="ranks") for rank in range(2)]
    readers = [worker(node, rank, 2, model="ranks") for rank in range(2)]
    keys = keys_of(1, 4)
    save(*writers[0][:2], keys, [5, 6, 7, 8])
    assert load(*readers[0][:2], keys, 0, [1, 2, 3, 4]) == {1, 2, 3, 4}
    save(*writers[1][:2], keys, [5, 6, 7, 8])
    for writer, reader in zip(writers, readers):
        assert load(*reader[:2], keys, 1, [11, 12, 13]) == set()
        for name, page in reader[2].items():
            assert torch.equal(page[11:14], writer[2][name][6:9])
    assert not torch.equal(writers[0][2]["layer0"][5], writers[1][2]["layer0"][5])


def test_blocks_that_are_not_there_are_named(start_node):
    half, store, pages = worker(start_node(), model="short")
    keys = keys_of(2, 4)
    save(half, store, keys[:2], [1, 2])
    before = {name: page.clone() for name, page in pages.items()}
    assert load(half, store, keys, 0, [21, 22, 23, 24]) == {23, 24}
    for name, page in pages.items():
        assert torch.equal(page[21:23], page[1:3])
        assert torch.equal(page[23:], before[name][23:])


def test_batches_that_two_threads_copy_are_stored_in_their_order(start_node, monkeypatch):
    monkeypatch.setattr("cairn.vllm.host_pages._PUSH_PARTS", 2)
    half, store, pages = worker(start_node(), model="batches")
    second, keys_by_push, committed = threading.Event(), {}, []
    stage, commit = store.stage, store.commit

    def stage_the_first_last(parts):
        if parts[0].key == keys[0]:
            assert second.wait(20), "nobody else copies"
        else:
            second.set()
        staged = stage(parts)
        keys_by_push[id(staged)] = [part.key for part in parts]
        return staged

    def commit_and_tell(staged, sizes):
        committed.extend(keys_by_push[id(staged)])
        return commit(staged, sizes)

    store.stage, store.commit = stage_the_first_last, commit_and_tell
    keys = keys_of(7, 9)
    save(half, store, keys, list(range(1, 10)))
    assert committed == keys
    assert load(half, store, keys, 0, list(range(21, 30))) == set()
    for page in pages.values():
        assert torch.equal(page[21:30], page[1:10])


def test_an_idle_step_waits_a_little_for_a_load(start_node):
    half, store, _ = worker(start_node(), model="idle")
    gate = threading.Event()
    store.load_parts = lambda keys, *_, limit: gate.wait(20) and set()
    half.start_loads(
        Metadata(store.namespace, [LoadJob(name, keys_of(1, 1), 0, [1]) for name in ("a", "b")])
    )
    begin = time.monotonic()
    assert half.finished(idle=True) == set()
    assert 0.004 < time.monotonic() - begin < 1
    gate.set()
    ended = set()
    wait_until(
        lambda: ended.update(half.finished(idle=True)) or ended == {"a", "b"}, 20, "both loads"
    )
    half._done = None  # Nothing is under way: nothing is waited for.
    assert half.finished(idle=True) == set()


def test_a_dead_node_fails_loads_and_stores_soon(start_node):
    node = start_node()
    half, store, _ = worker(node, model="dead")
    keys = keys_of(3, 4)
    save(half, store, keys, [1, 2, 3, 4])
    node.kill()
    begin = time.monotonic()
    assert load(half, store, keys, 0, [21, 22, 23, 24]) == {21, 22, 23, 24}
    save(half, store, keys_of(4, 4), [1, 2, 3, 4])
    assert time.monotonic() - begin < 10
    counts = store.counters.totals()
    assert (
        counts["failed_load_blocks"] == 4
        and counts["failed_save_blocks"] == 4
        and counts["internal_errors"] == 0
    )


def test_a_node_may_come_after_the_engine(start_node):
    before = start_node()
    address = before.grpc
    before.kill()
    away = types.SimpleNamespace(grpc=address)
    layout = cairn.OpaqueLayout("late", max_part_bytes=100, block_tokens=SIZE)
    spec = cairn.NamespaceSpec(
        model="late", revision="1", numerics="n", layout=layout, key_scheme="test"
    )
    store = Store(Options(address=away.grpc), spec, "late")
    assert store.lookup(keys_of(8, 1)) is None
    start_node("--listen", address)
    wait_until(
        lambda: store.save([cairn.Part(keys_of(8, 1)[0], b"x")], [1]) == [True],
        20,
        "the node's coming",
    )
    wait_until(
        lambda: (found := store.lookup(keys_of(8, 1))) is not None and found.matched_blocks == 1,
        20,
        "a hit",
    )


def test_a_namespace_that_differs_in_one_field_is_named(start_node, caplog):
    node = start_node()
    layout = cairn.OpaqueLayout("differs", max_part_bytes=100, block_tokens=SIZE)
    for epoch in (0, 1):
        spec = cairn.NamespaceSpec(
            model="m",
            revision="1",
            numerics="n",
            layout=layout,
            key_scheme="test",
            weight_epoch=epoch,
        )
        assert Store(Options(address=node.grpc), spec, "differs").wait_open(10)
    assert "differs in 'weight_epoch' alone: there 0, here 1" in caplog.text


def test_a_hung_node_costs_the_engine_nothing_and_a_full_buffer_drops(start_node):
    node = start_node()
    half, store, _ = worker(node, model="hung", save_buffer=4 * LAYERS * PAGE, save_timeout=2.0)
    node.freeze()
    begin = time.monotonic()
    half.start_saves(
        Metadata(store.namespace, [], [SaveJob(keys_of(5, 10), 0, list(range(10)), None)])
    )
    assert time.monotonic() - begin < 0.5
    assert store.counters.totals()["dropped_save_blocks"] == 6
    assert half.drain(20)
    node.thaw()


def test_other_pages_than_the_scheduler_means_are_never_touched(start_node):
    half, store, pages = worker(start_node(), model="other")
    keys = keys_of(6, 2)
    save(half, store, keys, [1, 2])
    before = pages["layer0"].clone()
    half.start_loads(Metadata(bytes(32), [LoadJob("r", keys, 0, [7, 8])]))
    wait_until(lambda: half.finished(idle=False) == {"r"}, 20, "the load's end")
    assert half.take_bad_blocks() == {7, 8} and torch.equal(pages["layer0"], before)


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        (torch.zeros(4, 6, 10)[:, :, :5], "strides.*contiguous"),
        (torch.zeros(4, PAGE, dtype=torch.int16), f"{2 * PAGE}.*expected {LAYERS * PAGE}"),
    ],
)
def test_pages_that_are_no_runs_of_bytes_are_refused(start_node, pages, text):
    half, _, _ = worker(start_node(), model="refused")
    with pytest.raises(ValueError, match=text):
        half.register({"layer0": pages})


def test_bytes_come_back_for_every_element_type(start_node):
    """The worker never asks what the numbers are."""
    node = start_node()
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8):
        half, store, _ = worker(node, model=str(dtype))
        width = PAGE // dtype.itemsize
        pages = [
            torch.from_numpy(np.random.default_rng(1).integers(0, 256, (9, PAGE), np.uint8)).view(
                dtype
            )
            for _ in range(LAYERS)
        ]
        assert pages[0].shape == (9, width)
        half.register(dict(zip("abc", pages)))
        save(half, store, keys_of(7, 3), [1, 2, 3])
        assert load(half, store, keys_of(7, 3), 0, [5, 6, 7]) == set()
        for page in pages:
            assert torch.equal(page[5:8].view(torch.uint8), page[1:4].view(torch.uint8))
