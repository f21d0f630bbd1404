"""The storage backend for SGLang against its own host pools, its own factory and its own hashes.
The engine itself needs a GPU."""

import pytest
import torch

from cairn._engine import versions
from conftest import Counts, stored, wait_until
from sglang_host import (  # noqa: F401  (fixtures too)
    HiCacheStorage,
    HiCacheStorageExtraInfo,
    hashes,
    kv_pool,
    little_memory,
    sglang_finds_its_packages,
    storage,
)

LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 32, 64, 8
PAYLOAD = 2 * LAYERS * HEADS * DIM * PAGE * 4
LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]


def pool(layout, seed=0):
    """A real host pool with random KV."""
    return kv_pool(layout, seed, layers=LAYERS, heads=HEADS, dim=DIM, page=PAGE, pages=PAGES)


def keys(seed, pages=4):
    """A chain of SGLang's own page hashes."""
    return hashes(seed, PAGE, pages)


def indices(*pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def page(host_pool, index):
    return host_pool.get_data_page(index * PAGE)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("v1", [True, False])
def test_pages_come_back_in_another_process_s_pool(start_node, layout, v1):
    node, writer, reader = start_node(), pool(layout, 1), pool(layout, 2)
    names = keys(1)
    assert len(names) == 4
    with Counts(node) as counts:
        first, second = storage(node, writer, v1=v1), storage(node, reader, v1=v1)
        assert first.batch_exists(names) == 0
        if v1:
            assert first.batch_set_v1(names, indices(1, 2, 3, 4)) == [True] * 4
        else:
            assert first.batch_set(names, [page(writer, i) for i in (1, 2, 3, 4)]) is True
        assert counts.blocks() == 4
        assert second.batch_exists(names + keys(2)) == 4
        before = reader.kv_buffer.clone()
        if v1:
            assert second.batch_get_v1(names, indices(8, 9, 10, 11)) == [True] * 4
        else:
            targets = [reader.get_dummy_flat_data_page() for _ in names]
            got = second.batch_get(names, targets)
            for i, data in zip((8, 9, 10, 11), got):
                reader.set_from_flat_data_page(i * PAGE, data)
        for ours, theirs in zip((8, 9, 10, 11), (1, 2, 3, 4)):
            assert torch.equal(page(reader, ours), page(writer, theirs))
            reader.set_from_flat_data_page(ours * PAGE, torch.zeros_like(page(reader, ours)))
            before_page = before.clone()
        assert counts.since()["fetched_bytes"] == 4 * stored(PAYLOAD)
        # Nothing else in the pool was touched.
        after = reader.kv_buffer.clone()
        reader.kv_buffer.copy_(before_page)
        for ours in (8, 9, 10, 11):
            reader.set_from_flat_data_page(ours * PAGE, torch.zeros_like(page(reader, ours)))
        assert torch.equal(reader.kv_buffer, after)
        first.close()
        second.close()


def test_holes_and_single_pages(start_node):
    node, host = start_node(), pool("page_first", 3)
    backend = storage(node, host)
    names = keys(3, 6)
    assert (
        backend.batch_set_v1([names[0], names[1], names[3], names[4]], indices(0, 1, 3, 4))
        == [True] * 4
    )
    assert (
        backend.batch_exists(names) == 2
        and backend.exists(names[3])
        and not backend.exists(names[2])
    )
    assert backend.batch_get_v1(names, indices(8, 9, 10, 11, 12, 13)) == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    assert torch.equal(page(host, 12), page(host, 4))
    # A chain that goes on where SGLang has the beginning itself.
    assert backend.batch_set_v1(
        [names[2]], indices(2), HiCacheStorageExtraInfo(prefix_keys=names[:2])
    ) == [True]
    assert backend.batch_exists(names[1:], HiCacheStorageExtraInfo(prefix_keys=names[:1])) == 4
    target = host.get_dummy_flat_data_page()
    flat = storage(node, host, v1=False)
    assert flat.set(names[5], page(host, 5)) is True and torch.equal(
        flat.get(names[5], target), page(host, 5)
    )
    assert flat.get(names[0], target) is None  # Stored in another form: another namespace.


def test_a_page_is_there_for_all_ranks_or_for_none(start_node):
    node = start_node()
    pools = [pool("page_first", seed) for seed in (4, 5)]
    ranks = [storage(node, p, rank, 2) for rank, p in enumerate(pools)]
    names = keys(4)
    assert ranks[0].batch_set_v1(names, indices(0, 1, 2, 3)) == [True] * 4
    assert [r.batch_exists(names) for r in ranks] == [0, 0]
    assert ranks[1].batch_set_v1(names[:3], indices(0, 1, 2)) == [True] * 3
    assert [r.batch_exists(names) for r in ranks] == [3, 3]
    for rank, host in zip(ranks, pools):
        assert rank.batch_get_v1(names, indices(8, 9, 10, 11)) == [True, True, True, False]
        assert torch.equal(page(host, 9), page(host, 1))
    assert not torch.equal(page(pools[0], 9), page(pools[1], 9))
    # All ranks of a model with one latent vector have the same bytes: one of them stores, all read.
    latent = [storage(node, p, rank, 2, mla=True) for rank, p in enumerate(pools)]
    assert latent[0].batch_set_v1(names, indices(0, 1, 2, 3)) == [True] * 4
    assert [r.batch_exists(names) for r in latent] == [4, 4]


def test_other_layouts_models_and_salts_share_nothing(start_node):
    node, names = start_node(), keys(5)
    assert (
        storage(node, pool("page_first"), revision="1").batch_set_v1(names, indices(0, 1, 2, 3))
        == [True] * 4
    )
    for other in (
        storage(node, pool("page_head"), revision="1"),
        storage(node, pool("page_first"), revision="2"),
        storage(node, pool("page_first"), revision="1", salt="s"),
        storage(node, pool("page_first"), revision="1", weight_epoch=1),
        storage(node, pool("page_first"), 0, 2, revision="1"),
    ):
        assert other.batch_exists(names) == 0
    assert storage(node, pool("page_first"), revision="1").batch_exists(names) == 4


def test_a_dead_a_hung_and_a_restarted_node_raise_nothing(start_node, tmp_path):
    node, host = start_node("--disk.path", str(tmp_path)), pool("page_first", 6)
    backend = storage(node, host, load_timeout=1.0, save_timeout=1.0)
    names = keys(6)
    assert backend.batch_set_v1(names, indices(0, 1, 2, 3)) == [True] * 4
    with Counts(node) as counts:
        counts.flush()
    node.freeze()
    assert backend.batch_exists(names) == 0
    assert backend.batch_get_v1(names, indices(8, 9, 10, 11)) == [False] * 4
    assert backend.batch_set_v1(keys(7), indices(0, 1, 2, 3)) == [False] * 4
    node.kill()
    assert (backend.batch_exists(names), backend.exists(names[0])) == (0, False)
    assert backend.batch_get(names, [host.get_dummy_flat_data_page() for _ in names]) == [None] * 4
    assert backend.batch_set(names, [page(host, 0)] * 4) is False
    start_node("--listen", node.grpc, "--disk.path", str(tmp_path))
    wait_until(lambda: backend.batch_exists(names) == 4, 30, "the node's return")
    assert backend.batch_get_v1(names, indices(8, 9, 10, 11)) == [True] * 4
    assert torch.equal(page(host, 11), page(host, 3))
    assert backend.counters()["internal_errors"] == 0


def test_bugs_of_ours_are_misses(start_node):
    backend = storage(start_node(), pool("page_first"))
    assert backend.batch_exists(["no hex"]) == 0 and backend.exists(None) is False
    assert backend.batch_get_v1(["zz"], indices(0)) == [False] and backend.batch_set_v1(
        ["zz"], indices(0)
    ) == [False]
    assert backend.counters()["internal_errors"] == 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"adress": "x"}, "extra_config.adress' does not exist"),
        ({"revision": ""}, "revision of 'm' cannot be found out.*'revision'"),
        ({"save_buffer": "many"}, "extra_config.save_buffer': got 'many', expected an integer"),
    ],
)
def test_wrong_settings_are_named(start_node, settings, text):
    with pytest.raises(ValueError, match=text):
        storage(start_node(), pool("page_first"), **settings)


def test_what_is_not_supported_is_refused_at_the_start(start_node, monkeypatch):
    backend = storage(start_node(), pool("page_first"))
    with pytest.raises(ValueError, match="pool 'mamba' .NoneType. gives no pages"):
        backend.register_mem_host_pool_v2(None, "mamba")
    assert isinstance(backend, HiCacheStorage)
    monkeypatch.setitem(versions.TESTED, "sglang", versions.Range("98", "99"))
    with pytest.raises(RuntimeError, match="sglang .* was not tested.*at least 98 and below 99"):
        storage(start_node(), pool("page_first"))


def test_sglang_gives_linkers_no_pools_of_plain_models():
    """Why there is no linker: docs/program/engines/sglang.md."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _PlainKvStrategy

    with pytest.raises(ValueError, match="does not support the direct external linker"):
        _PlainKvStrategy().build_direct_linker_pool_group(kvcache=None, params=None, page_size=PAGE)
