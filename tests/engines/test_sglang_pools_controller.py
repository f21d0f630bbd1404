"""SGLang's own controller of a model with several pools, with its threads, over Cairn."""

import types
from unittest import mock

import pytest
import torch

from sglang_host import (  # noqa: F401  (a fixture, too)
    HiCacheStorageFailureInjector,
    PoolName,
    PoolTransfer,
    config,
    indices,
    little_memory,
    page_of,
    refill,
    settings,
    sglang_finds_its_packages,
)
from sglang_pools import (  # noqa: F401  (fixtures, too)
    NUMBERS,
    PAGE,
    PATIENT,
    SPAN,
    TRAILING,
    node,
    small_kv,
    states,
)

STATE_AT = [3, 7]
WINDOW = 2  # Pages.


@pytest.fixture
def controllers(node, monkeypatch):
    """Make controllers of processes of their own. What copies between host and device is replaced,
    and what asks the model's process groups."""
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry

    one_rank = types.SimpleNamespace(attn_dcp_size=1)
    monkeypatch.setattr(cache_controller, "get_parallel", lambda: one_rank)
    monkeypatch.setattr(cache_controller, "L2TransferEngine", mock.MagicMock())
    monkeypatch.setattr(cache_controller, "LayerDoneCounter", mock.MagicMock())
    device = mock.MagicMock(layer_num=2, device="cpu")
    made = []

    class Controller(HybridCacheController):
        def _generate_storage_config(self, model_name=None, storage_backend_extra_config=None):
            return config(extra=storage_backend_extra_config)

    def make(seed, salt):
        pools = {
            PoolName.KV: small_kv(seed),
            PoolName.SWA: small_kv(seed + 1),
            PoolName.MAMBA: states(seed + 2),
            PoolName.DRAFT: small_kv(seed + 3),
        }
        entries = [
            PoolEntry(name, pool, device, lambda layer: layer, name == PoolName.KV)
            for name, pool in pools.items()
        ]
        controller = Controller(
            mock.MagicMock(get_kvcache=lambda: device),
            HostPoolGroup(entries),
            PAGE,
            None,
            None,
            storage_backend="dynamic",
            prefetch_threshold=1,
            storage_backend_extra_config=settings(node, salt=salt, **PATIENT),
        )
        made.append(controller)
        return controller, pools

    yield make
    for controller in made:
        controller.detach_storage_backend()


def written(controller, pools, tokens):
    """Stores the prompt as SGLang's tree does: a state at two pages, windows before these."""
    names = controller.get_hash_str(tokens, None, page_size=PAGE)
    for at in STATE_AT:
        begin, tail = at - 3, range(at + 1 - WINDOW, at + 1)
        controller.write_storage(
            indices(pools[PoolName.KV], range(begin, at + 1)),
            tokens[begin * PAGE : (at + 1) * PAGE],
            names[begin : at + 1],
            names[:begin],
            [
                PoolTransfer(
                    PoolName.MAMBA,
                    indices(pools[PoolName.MAMBA], [at]),
                    keys=[names[at]],
                    hit_policy=TRAILING,
                ),
                PoolTransfer(
                    PoolName.SWA,
                    indices(pools[PoolName.SWA], tail),
                    keys=[names[i] for i in tail],
                    hit_policy=TRAILING,
                ),
                PoolTransfer(PoolName.DRAFT, indices_from_pool=PoolName.KV),
            ],
        )
    done = [controller.ack_backup_queue.get(timeout=60) for _ in STATE_AT]
    return [operation.completed_tokens // PAGE for operation in done]


def fetched(controller, pools, tokens):
    """Asks and loads as SGLang's scheduler does, into pages from `SPAN` on. Returns the pages that
    were found, that came, and for the other pools how many came."""
    handle = mock.MagicMock(rid="r")
    wishes = [
        PoolTransfer(PoolName.MAMBA, keys=["__placeholder__"], hit_policy=TRAILING),
        PoolTransfer(PoolName.SWA, keys=["__placeholder__"] * WINDOW, hit_policy=TRAILING),
        PoolTransfer(PoolName.DRAFT, indices_from_pool=PoolName.KV),
    ]
    controller.prefetch(handle, tokens, extra_pools=wishes)
    operation = controller.prefetch_hit_queue.get(timeout=60)
    found = operation.storage_hit_count // PAGE
    if found == 0:
        return 0, 0, {}
    operation.host_indices = indices(pools[PoolName.KV], range(SPAN, SPAN + found))
    wishes[0].host_indices = indices(pools[PoolName.MAMBA], [SPAN])
    wishes[1].host_indices = indices(pools[PoolName.SWA], range(SPAN, SPAN + WINDOW))
    controller.prefetch_buffer.put(operation)
    came, hits = 0, {}
    while True:
        ack = controller.ack_prefetch_queue.get(timeout=60)
        came = max(came, (ack.completed_tokens or 0) // PAGE)
        hits |= ack.pool_hits or {}
        if ack.completed_req:
            return found, came, hits


def same_pages(ours, theirs, name, rows, pages):
    for row, page in zip(rows, pages, strict=True):
        assert torch.equal(page_of(ours[name], row), page_of(theirs[name], page)), (name, page)


def check_fetched(reader, writer, found, came, hits):
    """Pages that came have the bytes that were stored."""
    same_pages(reader, writer, PoolName.KV, range(SPAN, SPAN + came), range(came))
    same_pages(reader, writer, PoolName.DRAFT, range(SPAN, SPAN + came), range(came))
    if hits.get("mamba"):
        same_pages(reader, writer, PoolName.MAMBA, [SPAN], [found - 1])
    rows = range(SPAN, SPAN + hits.get("swa", 0))
    same_pages(reader, writer, PoolName.SWA, rows, [found - WINDOW + i for i in range(len(rows))])


def test_sglang_s_controller_stores_in_one_process_and_loads_in_another(controllers):
    salt = f"controller {next(NUMBERS)}"
    (first, writer), (second, reader) = controllers(1, salt), controllers(100, salt)
    tokens = list(range(10_000_000, 10_000_000 + 8 * PAGE))
    assert fetched(second, reader, tokens) == (0, 0, {})
    assert written(first, writer, tokens) == [4, 4]
    found, came, hits = fetched(second, reader, tokens)
    assert (found, came) == (8, 8)
    assert (hits["mamba"], hits["swa"]) == (1, WINDOW)
    check_fetched(reader, writer, found, came, hits)
    # Another prompt parts from it, and goes on at the state before.
    parted = tokens[: 6 * PAGE] + [7] * 2 * PAGE
    found, came, hits = fetched(second, reader, parted)
    assert (found, came, hits["mamba"], hits["swa"]) == (4, 4, 1, WINDOW)
    check_fetched(reader, writer, found, came, hits)
    assert second.storage_backend.counters()["internal_errors"] == 0


def test_sglang_s_controller_under_its_failure_injector(controllers, monkeypatch):
    """No call ends a thread, no page that came has other bytes, and some come."""
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.1")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.002")
    salt = f"controller {next(NUMBERS)}"
    (first, writer), (second, reader) = controllers(1, salt), controllers(100, salt)
    assert isinstance(second.storage_backend, HiCacheStorageFailureInjector)
    lengths = set()
    for i in range(40):
        tokens = list(range(20_000_000 + i * 100, 20_000_000 + i * 100 + 8 * PAGE))
        for pool in writer.values():
            refill(pool, range(8), torch.Generator().manual_seed(next(NUMBERS)))
        written(first, writer, tokens)
        found, came, hits = fetched(second, reader, tokens)
        assert found in (0, 4, 8) and came <= found
        lengths.add((found, came, bool(hits.get("mamba"))))
        check_fetched(reader, writer, found, came, hits)
    assert {(0, 0, False), (8, 8, True)} < lengths
    assert first.storage_backend._backend.counters()["internal_errors"] == 0
    assert second.storage_backend._backend.counters()["internal_errors"] == 0
