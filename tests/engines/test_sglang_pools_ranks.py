"""Pools of several ranks: what each has of its own, and what all have alike."""

import pytest
import torch

from conftest import Counts
from sglang_host import (  # noqa: F401  (a fixture, too)
    PoolName,
    PoolTransfer,
    Rows,
    file_storage,
    indices,
    little_memory,
    page_of,
    sglang_finds_its_packages,
    storage,
)
from sglang_pools import (  # noqa: F401  (fixtures, too)
    ALL,
    NOBODY,
    NUMBERS,
    PAGE,
    PATIENT,
    TRAILING,
    node,
    prompt,
    rows,
    small_kv,
    states,
)


def test_a_late_rank_makes_the_set_smaller_for_all_ranks(node):
    """A page of a pool is there when all ranks have stored their part of it."""
    salt = f"ranks {next(NUMBERS)}"
    made = []
    for rank in range(2):
        kv, others = small_kv(rank), {PoolName.MAMBA: states(10 + rank), NOBODY: rows(20 + rank)}
        backend = storage(node, kv, rank, 2, others=others, salt=salt, **PATIENT)
        made.append((backend, {PoolName.KV: kv, **others}))
    wishes = [
        PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING),
        PoolTransfer(NOBODY, hit_policy=ALL),
    ]
    names = prompt(4)

    def put(rank, name, pages):
        backend, pools = made[rank]
        keys, at = [names[i] for i in pages], indices(pools[name], pages)
        if name == PoolName.KV:
            assert backend.batch_set_v1(keys, at) == [True] * len(pages)
        else:
            one = PoolTransfer(name, at, keys=keys)
            assert backend.batch_set_v2([one]) == {name: [True] * len(pages)}

    def lengths():
        first, second = (
            backend.batch_exists_v2(names, wishes).restorable_prefix_pages for backend, _ in made
        )
        assert first == second
        return first

    for name in (PoolName.KV, NOBODY):
        for rank in range(2):
            put(rank, name, [0, 1, 2, 3])
    put(0, PoolName.MAMBA, [1, 3])
    assert lengths() == []
    put(1, PoolName.MAMBA, [3])
    assert lengths() == [4]
    put(1, PoolName.MAMBA, [1])
    assert lengths() == [2, 4]
    for backend, pools in made:  # Each rank gets its own bytes.
        for name, pool in pools.items():
            into = indices(pool, [5])
            if name == PoolName.KV:
                assert backend.batch_get_v1([names[3]], into) == [True]
            else:
                assert backend.batch_get_v2([PoolTransfer(name, into, keys=[names[3]])]) == {
                    name: [True]
                }
            assert torch.equal(page_of(pool, 5), page_of(pool, 3))
        backend.close()


def test_a_latent_kv_has_one_writer_and_its_states_have_all(node, tmp_path):
    """As the file backend: what all ranks have alike is stored by one of them, and a state by
    each."""
    salt, ranks, names = f"latent {next(NUMBERS)}", 2, prompt(3)
    kv, draft = small_kv(1), rows(2)
    pools = [{PoolName.MAMBA: states(rank), PoolName.INDEXER: draft} for rank in range(ranks)]
    ours = [
        storage(node, kv, rank, ranks, mla=True, others=pools[rank], salt=salt, **PATIENT)
        for rank in range(ranks)
    ]
    theirs = [
        file_storage(tmp_path, kv, rank, ranks, mla=True, others=pools[rank])
        for rank in range(ranks)
    ]
    wishes = [
        PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING),
        PoolTransfer(PoolName.INDEXER, hit_policy=ALL),
    ]

    def same():
        found = [backend.batch_exists_v2(names, wishes) for backend in ours]
        right = [backend.batch_exists_v2(names, wishes) for backend in theirs]
        # The file backend answers for its own rank. Cairn answers for all, as SGLang then reduces.
        both = sorted(set.intersection(*(set(one.restorable_prefix_pages) for one in right)))
        assert [one.restorable_prefix_pages for one in found] == [both, both]
        return both

    def put(backends, rank, name, pages):
        pool = kv if name == PoolName.KV else pools[rank][name]
        one = PoolTransfer(name, indices(pool, pages), keys=[names[i] for i in pages])
        return backends[rank].batch_set_v2([one])[name]

    for backends in (ours, theirs):
        assert put(backends, 0, PoolName.KV, [0, 1, 2]) == [True] * 3
        assert put(backends, 0, PoolName.INDEXER, [0, 1, 2]) == [True] * 3
        assert put(backends, 0, PoolName.MAMBA, [0, 2]) == [True] * 2
    assert same() == []
    for backends in (ours, theirs):
        assert put(backends, 1, PoolName.MAMBA, [2]) == [True]
    assert same() == [3]
    # The other rank sends nothing of what it has alike, and says what is there.
    with Counts(node) as counts:
        assert put(ours, 1, PoolName.KV, [0, 1, 2]) == [True] * 3
        assert counts.since()["pushed_bytes"] == 0
    for backend in ours:
        backend.close()


@pytest.mark.parametrize("others", [False, True])
def test_shards_of_a_latent_kv_are_parts_of_its_pages(node, tmp_path, others):
    """Decode context parallelism: SGLang 0.5.23 itself lets its file and Mooncake backends alone
    use it. Four ranks in two groups of two shards."""
    names, salt = prompt(3), f"dcp {next(NUMBERS)}"
    ours, theirs, pools = [], [], []
    for rank in range(4):
        dcp = {"dcp": {"dcp_size": 2, "dcp_rank": rank % 2, "logical_page_size": 2 * PAGE}}
        kv = Sharded(rank % 2)
        more = {PoolName.MAMBA: states(rank)} if others else {}
        pools.append({PoolName.KV: kv, **more})
        ours.append(storage(node, kv, rank, 4, mla=True, others=more, salt=salt, **dcp, **PATIENT))
        theirs.append(
            file_storage(tmp_path / str(rank % 2), kv, rank, 4, mla=True, others=more, **dcp)
        )
    for rank in (0, 1):  # The writers.
        assert [one.batch_exists(names) for one in ours] == [0] * 4
        at = torch.arange(3 * 2 * PAGE)
        assert ours[rank].batch_set_v1(names, at) == [True] * 3
    assert [one.batch_exists(names) for one in ours] == [3] * 4
    for rank in range(4):
        into = torch.arange(5 * 2 * PAGE, 8 * 2 * PAGE)
        assert ours[rank].batch_get_v1(names, into) == [True] * 3
        data = pools[rank][PoolName.KV].data
        # Those of the shard that this rank has.
        assert torch.equal(data[5:8], Sharded(rank % 2).data[:3])
    if others:
        wishes = [PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING)]
        for rank in range(4):
            assert ours[0].batch_exists_v2(names, wishes).restorable_prefix_pages == []
            pool = pools[rank][PoolName.MAMBA]
            one = PoolTransfer(PoolName.MAMBA, indices(pool, [2]), keys=[names[2]])
            assert ours[rank].batch_set_v2([one]) == {"mamba": [True]}
        assert [one.batch_exists_v2(names, wishes).restorable_prefix_pages for one in ours] == (
            [[3]] * 4
        )
    for backend in ours:
        backend.close()


class Sharded(Rows):
    """Pages of a latent KV of which a rank has every second token: a row for each logical page."""

    def __init__(self, shard):
        super().__init__(shard, rows=8, row_bytes=64, page=PAGE)
        self.get_page_buffer_meta = self._shards

    def _shards(self, host_indices):
        pages = [int(at) // (2 * PAGE) for at in host_indices[:: 2 * PAGE]]
        return [self.data[page].data_ptr() for page in pages], [64] * len(pages)
