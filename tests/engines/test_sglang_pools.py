"""SGLang's storage interface for models with several pools. SGLang's own file backend says what is
right: the same pools, the same calls, the same losses. The engine itself needs a GPU."""

import random

import pytest
import torch

from sglang_host import (  # noqa: F401  (a fixture, too)
    HiCacheStorageFailureInjector,
    PoolName,
    PoolTransfer,
    file_storage,
    indices,
    little_memory,
    page_of,
    refill,
    sglang_finds_its_packages,
    storage,
)
from sglang_pools import (  # noqa: F401  (fixtures, too)
    ALL,
    KINDS,
    NOBODY,
    NUMBERS,
    PATIENT,
    SPAN,
    TRAILING,
    node,
    prompt,
    random_pages,
    random_wishes,
    rows,
    small_kv,
    states,
    twins,
)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_pools_and_bytes_are_those_of_sglang_s_file_backend(twins, kind):
    """Random losses in each pool, policies and tails that no model has, spans that begin later."""
    pair, draw = twins(KINDS[kind]()), random.Random(kind)
    others = [name for name in pair.pools if name != PoolName.KV]
    hits = set()
    for _ in range(150):
        names = prompt()
        for pool in pair.pools.values():
            refill(pool, range(SPAN), torch.Generator().manual_seed(next(NUMBERS)))
        there = {name: random_pages(draw) for name in pair.pools}
        pair.save(names, there)
        for _ in range(3):
            begin = draw.choice([0, 0, draw.randrange(SPAN)])
            end = draw.randint(begin, SPAN)
            wishes = random_wishes(draw, others)
            hits.add(pair.ask(names[begin:end], wishes).kv_hit_pages)
        for name in draw.sample(list(pair.pools), 2):
            first = draw.randrange(SPAN)
            pages = list(range(first, draw.randint(first, SPAN - 1) + 1))
            came = pair.same_load(names, name, pages)
            assert came == [page in there[name] for page in pages]
    assert len(hits) >= 5  # The test says something.


def test_a_model_of_sglang_s_own_goes_on_where_it_can(twins):
    """One state for each of two turns, a window before each of their ends, a draft's every page."""
    pair = twins(
        {PoolName.MAMBA: states(1), PoolName.SWA: small_kv(2), PoolName.DRAFT: small_kv(3)}
    )
    names = prompt()
    windows = [2, 3, 6, 7]
    pair.save(
        names,
        {
            PoolName.KV: range(10),
            PoolName.DRAFT: range(10),
            PoolName.MAMBA: [3, 7],
            PoolName.SWA: windows,
        },
    )
    wishes = {
        PoolName.MAMBA: (TRAILING, 1),
        PoolName.SWA: (TRAILING, 2),
        PoolName.DRAFT: (ALL, 0),
    }
    found = pair.ask(names, wishes)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (8, [4, 8])
    assert found.extra_pool_hit_pages == {"kv": 10, "mamba": 8, "swa": 8, "draft": 10}
    # What it needs there comes in one call, and by pool.
    batch = [
        PoolTransfer(
            name,
            indices(pair.pools[name], [SPAN + i for i in range(len(pages))]),
            keys=[names[i] for i in pages],
        )
        for name, pages in {
            PoolName.MAMBA: [7],
            PoolName.SWA: [6, 7],
            PoolName.DRAFT: [8, 9],
        }.items()
    ]
    batch[2].keys[1] = prompt()[0]
    assert pair.ours.batch_get_v2(batch) == {
        "mamba": [True],
        "swa": [True, True],
        "draft": [True, False],
    }


def test_every_lost_page_makes_the_set_of_lengths_smaller_and_nothing_else(twins):
    pair = twins({PoolName.MAMBA: states(1), PoolName.SWA: small_kv(2), NOBODY: rows(3)})
    wishes = {PoolName.MAMBA: (TRAILING, 1), PoolName.SWA: (TRAILING, 3), NOBODY: (ALL, 0)}
    whole = {name: set(range(6)) for name in pair.pools}
    names = prompt()
    pair.save(names, whole)
    every = pair.ask(names[:6], wishes).restorable_prefix_pages
    assert every == [1, 2, 3, 4, 5, 6]
    for lost in pair.pools:
        for page in range(6):
            names = prompt()
            pair.save(
                names,
                {name: pages - {page if name == lost else -1} for name, pages in whole.items()},
            )
            left = pair.ask(names[:6], wishes).restorable_prefix_pages
            assert set(left) < set(every)
            for length in left:
                needed = {name: range(length) for name in (PoolName.KV, NOBODY)}
                needed[PoolName.MAMBA] = [length - 1]
                needed[PoolName.SWA] = range(max(0, length - 3), length)
                for name, pages in needed.items():
                    assert all(pair.load(names, name, list(pages))), (lost, page, length)


# ---- SGLang's own faults ----


def test_sglang_s_failure_injector_makes_less_found_and_nothing_wrong(node, tmp_path, monkeypatch):
    """Its calls fail and are late at random. What it says was stored is there, and what it says
    came has the right bytes."""
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.002")
    others = {PoolName.MAMBA: states(1), PoolName.SWA: small_kv(2), PoolName.DRAFT: rows(3)}
    kv, draw = small_kv(4), random.Random(9)
    pools = {PoolName.KV: kv, **others}
    faulty = storage(node, kv, others=others, salt=f"injector {next(NUMBERS)}", **PATIENT)
    assert isinstance(faulty, HiCacheStorageFailureInjector)
    sound = faulty._backend
    theirs = file_storage(tmp_path, kv, others=others)
    wishes = [
        PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING),
        PoolTransfer(PoolName.SWA, keys=["_"] * 2, hit_policy=TRAILING),
        PoolTransfer(PoolName.DRAFT, hit_policy=ALL),
    ]
    seen, lost = set(), 0
    for _ in range(60):
        names = prompt()
        for name, pool in pools.items():
            refill(pool, range(SPAN), torch.Generator().manual_seed(next(NUMBERS)))
            for begin in (0, SPAN // 2):
                run = list(range(begin, begin + SPAN // 2))
                keys, at = names[begin : begin + len(run)], indices(pool, run)
                if name == PoolName.KV:
                    stored = faulty.batch_set_v1(keys, at)
                else:
                    stored = faulty.batch_set_v2([PoolTransfer(name, at, keys=keys)])[name]
                assert stored in ([True] * len(run), [False] * len(run))
                lost += stored[0] is False
                if stored[0]:
                    theirs.batch_set_v2([PoolTransfer(name, at, keys=keys)])
        right = theirs.batch_exists_v2(names, wishes)
        found = faulty.batch_exists_v2(names, wishes)
        assert found.restorable_prefix_pages in (None, right.restorable_prefix_pages)
        seen.add(found.restorable_prefix_pages is None)
        assert sound.batch_exists_v2(names, wishes).restorable_prefix_pages == (
            right.restorable_prefix_pages
        )
        name = draw.choice(list(pools))
        pool, into = pools[name], [SPAN + i for i in range(SPAN)]
        refill(pool, into, torch.Generator().manual_seed(next(NUMBERS)))
        if name == PoolName.KV:
            came = faulty.batch_get_v1(names, indices(pool, into))
        else:
            came = faulty.batch_get_v2([PoolTransfer(name, indices(pool, into), keys=names)])[name]
        for page, here in enumerate(came):
            if here:
                assert torch.equal(page_of(pool, SPAN + page), page_of(pool, page))
    assert seen == {True, False} and lost > 0
    assert sound.counters()["internal_errors"] == 0
    sound.close()
