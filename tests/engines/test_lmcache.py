"""The second-level client for LMCache behind LMCache's own adapter, memory objects and keys."""

import os
import select
import time

import pytest
import torch
from lmcache.v1.distributed.api import FULL_ATTENTION_WINDOW_CHUNKS, ObjectKey
from lmcache.v1.distributed.bitmap_ops import fold_unfold_grouped
from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import (
    NativePluginL2AdapterConfig,
    _create_native_plugin_l2_adapter,
)
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat

from cairn._engine import versions
from cairn.lmcache import CairnClient
from conftest import Counts, stored, wait_until

SHAPE = torch.Size([2, 4, 256, 128])
PAYLOAD = SHAPE.numel() * 2


def adapter(node, **settings):
    """As LMCache makes it, from its own configuration."""
    return _create_native_plugin_l2_adapter(
        NativePluginL2AdapterConfig.from_dict(
            {
                "type": "native_plugin",
                "module_path": "cairn.lmcache",
                "class_name": "CairnClient",
                "adapter_params": {
                    "address": node.grpc,
                    "revision": "sha256:0",
                    "engine": "test",
                    **settings,
                },
            }
        )
    )


def keys(seed, count, **changes):
    return [
        ObjectKey(
            **{"chunk_hash": bytes([seed, i]) * 16, "model_name": "m", "kv_rank": 0, **changes}
        )
        for i in range(count)
    ]


def objects(count, seed=None, shape=SHAPE):
    allocator = AdHocMemoryAllocator("cpu")
    made = [allocator.allocate(shape, torch.bfloat16, MemoryFormat.KV_2LTD) for _ in range(count)]
    for i, item in enumerate(made):
        item.tensor.copy_(
            torch.zeros(shape)
            if seed is None
            else torch.randn(shape, generator=torch.Generator().manual_seed(seed * 100 + i))
        )
    return made


def ended(fd, take):
    """The answer of the adapter once it says that there is something."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(30000), "no event within 30 s"
    os.eventfd_read(fd)
    return take()


def store(a, names, items):
    task = a.submit_store_task(names, items)
    return ended(a.get_store_event_fd(), a.pop_completed_store_tasks)[task]


def found_by(a, names):
    """LMCache's bits."""
    task = a.submit_lookup_and_lock_task(names, {})
    return ended(a.get_lookup_and_lock_event_fd(), lambda: a.query_lookup_and_lock_result(task))


def lookup(a, names):
    found = found_by(a, names)
    return [found.test(i) for i in range(len(names))]


def load(a, names, items):
    task = a.submit_load_task(names, items)
    found = ended(a.get_load_event_fd(), lambda: a.query_load_result(task))
    return [found.test(i) for i in range(len(names))]


def test_chunks_come_back_in_another_adapter(start_node):
    node = start_node()
    names, source = keys(1, 3), objects(3, seed=1)
    with Counts(node) as counts:
        one = adapter(node)
        assert lookup(one, names) == [False] * 3
        store(one, names, source)
        assert counts.blocks() == 3
        one.close()
        two = adapter(node)
        everything = [*names, *keys(2, 1)]
        assert lookup(two, everything) == [True, True, True, False]
        into = objects(4)
        assert load(two, [names[2], everything[3], names[0], names[1]], into) == [
            True,
            False,
            True,
            True,
        ]
        for ours, theirs in zip(into, (2, None, 0, 1)):
            assert torch.equal(
                ours.tensor,
                torch.zeros_like(ours.tensor) if theirs is None else source[theirs].tensor,
            )
        assert counts.since()["fetched_bytes"] == 3 * stored(PAYLOAD)
        two.submit_unlock(names)
        two.delete(names)  # LMCache's eviction deletes nothing here: the node evicts.
        assert lookup(two, names) == [True] * 3
        two.close()


def test_models_ranks_groups_and_salts_share_nothing(start_node):
    node = start_node()
    a = adapter(node)
    store(a, keys(3, 1), objects(1, seed=3))
    for change in (
        {"model_name": "n"},
        {"kv_rank": 1},
        {"object_group_id": 1},
        {"cache_salt": "s"},
    ):
        assert lookup(a, keys(3, 1, **change)) == [False]
    assert lookup(a, keys(3, 1)) == [True]
    for settings in (
        {"revision": "sha256:1"},
        {"engine": "other"},
        {"weight_epoch": 1},
        {"salt": "s"},
    ):
        other = adapter(node, **settings)
        assert lookup(other, keys(3, 1)) == [False]
        other.close()
    a.close()


@pytest.mark.parametrize(
    ("lost", "length"),
    [((), 6), ([(0, 5)], 5), ([(1, 5)], 5), ([(1, 3)], 6), ([(1, 4)], 4), ([(0, 0)], 0)],
)
def test_groups_of_layers_go_on_where_lmcache_finds_that_they_can(start_node, lost, length):
    """The second group has a window of two chunks, and other objects. LMCache asks for its own
    bits, and says which of them to load."""
    windows, shapes = [FULL_ATTENTION_WINDOW_CHUNKS, 2], [SHAPE, torch.Size([2, 1, 256, 128])]
    names = [keys(6, 6, object_group_id=group) for group in range(2)]
    sources = [objects(6, 60 + group, shape) for group, shape in enumerate(shapes)]
    a = adapter(start_node())
    for group in range(2):
        there = [i for i in range(6) if (group, i) not in lost]
        store(a, [names[group][i] for i in there], [sources[group][i] for i in there])
    found, needed = fold_unfold_grouped([found_by(a, row) for row in names], windows)
    assert found == length
    for group, bits in enumerate(needed):
        chunks = [i for i in range(6) if bits.test(i)]
        begin = 0 if group == 0 else max(0, length - 2)
        assert chunks == list(range(begin, length))
        into = objects(len(chunks), shape=shapes[group])
        if chunks:
            assert load(a, [names[group][i] for i in chunks], into) == [True] * len(chunks)
        for i, item in zip(chunks, into):
            assert torch.equal(item.tensor, sources[group][i].tensor)
    a.close()


def test_a_dead_a_hung_and_a_restarted_node_are_misses(start_node, tmp_path):
    node = start_node("--disk.path", str(tmp_path))
    a = adapter(node, load_timeout=1.0, save_timeout=1.0)
    names, source = keys(4, 2), objects(2, seed=4)
    store(a, names, source)
    with Counts(node) as counts:
        counts.flush()
    node.freeze()
    begin = time.monotonic()
    assert lookup(a, names) == [False] * 2
    assert load(a, names, objects(2)) == [False] * 2
    store(a, keys(5, 2), source)
    assert time.monotonic() - begin < 10
    node.kill()
    assert load(a, names, objects(2)) == [False] * 2
    start_node("--listen", node.grpc, "--disk.path", str(tmp_path))
    wait_until(lambda: lookup(a, names) == [True] * 2, 30, "the node's return")
    into = objects(2)
    assert load(a, names, into) == [True] * 2
    assert torch.equal(into[1].tensor, source[1].tensor)
    a.close()


def test_a_buffer_of_another_size_is_a_miss(start_node):
    client = CairnClient(address=start_node().grpc, revision="r", engine="e")
    answers = {}

    def wait(number):
        wait_until(
            lambda: (
                answers.update({n: rest for n, *rest in client.drain_completions()})
                or number in answers
            ),
            10,
            "an answer",
        )
        return answers.pop(number)

    assert wait(
        client.submit_batch_set(["a", "b"], [bytearray(b"x" * 100), bytearray(b"y" * 100)])
    ) == [True, "", [True, True]]
    small = bytearray(50)
    assert wait(client.submit_batch_get(["a"], [small])) == [True, "", [False]]
    assert small == bytearray(50)
    good = bytearray(100)
    assert wait(client.submit_batch_get(["b"], [good])) == [True, "", [True]] and good == b"y" * 100
    assert wait(client.submit_batch_exists(["a", "c"])) == [True, "", [True, False]]
    assert wait(client.submit_batch_get(["a"], ["no memory"])) == [True, "", [False]]
    assert client.counters()["internal_errors"] == 1
    client.close()
    client.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"revision": ""}, "adapter_params.revision' is missing"),
        ({"engine": ""}, "adapter_params.engine' is missing"),
        ({"server": "x"}, "adapter_params.server' does not exist.*address"),
    ],
)
def test_wrong_settings_are_named(start_node, settings, text):
    with pytest.raises(ValueError, match=text):
        adapter(start_node(), **settings)


def test_untested_versions_are_refused(monkeypatch):
    monkeypatch.setitem(versions.TESTED, "lmcache", versions.Range("98", "99"))
    with pytest.raises(RuntimeError, match="lmcache 0.5.6 was not tested.*at least 98"):
        CairnClient(revision="r", engine="e")
