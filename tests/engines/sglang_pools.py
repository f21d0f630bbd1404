"""What the tests of SGLang's pools share: small host pools, and two backends over the same ones."""

import itertools
import random

import pytest
import torch

from sglang_host import (
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    Rows,
    file_storage,
    hashes,
    indices,
    kv_pool,
    mamba_pool,
    page_of,
    paged_pool,
    refill,
    storage,
)

ALL, TRAILING = PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES
PAGE = 4  # Tokens.
SPAN = 10  # Pages of a prompt, in the first rows of each pool.
PATIENT = {"lookup_timeout": 120.0, "load_timeout": 120.0, "save_timeout": 120.0}
NOBODY = "Nobody's pool"

NUMBERS = itertools.count(1)


def prompt(pages=SPAN):
    """Hashes that no other test has."""
    return hashes(next(NUMBERS), PAGE, pages)


def small_kv(seed):
    return kv_pool("page_first", seed, layers=2, heads=1, dim=4, page=PAGE, pages=2 * SPAN)


def states(seed):
    return mamba_pool(seed, slots=2 * SPAN)


def rows(seed, **more):
    return Rows(seed, rows=3 * SPAN, row_bytes=37, **more)


KINDS = {
    "windows": lambda: {PoolName.SWA: small_kv(2)},
    "states": lambda: {PoolName.MAMBA: states(3)},
    "indexer and draft": lambda: {
        PoolName.INDEXER: rows(4, page=PAGE, says_where=True),
        PoolName.DRAFT: kv_pool("layer_first", 5, layers=1, heads=1, dim=4, page=PAGE, pages=20),
    },
    "deepseek v4": lambda: {
        PoolName.DEEPSEEK_V4_C4: paged_pool("page_first", 12, page=PAGE, pages=3 * SPAN),
        PoolName.SWA: paged_pool("layer_first", 13, page=PAGE, pages=3 * SPAN),
    },
    "many": lambda: {
        PoolName.SWA: small_kv(6),
        PoolName.MAMBA: mamba_pool(7, slots=2 * SPAN, side=True),
        PoolName.DRAFT_SWA: rows(8, page=PAGE),
        PoolName.DEEPSEEK_V4_C4: rows(9, page=PAGE, says_where=True),
        PoolName.DEEPSEEK_V4_C128_STATE: rows(10, page=PAGE),
        NOBODY: rows(11),
    },
}


class Twins:
    """Cairn's backend and SGLang's file backend over the same host pools."""

    def __init__(self, node, folder, others, **more):
        self.kv = small_kv(1)
        self.pools = {PoolName.KV: self.kv, **others}
        self.ours = storage(node, self.kv, others=others, **PATIENT, **more)
        self.theirs = file_storage(folder, self.kv, others=others)

    def save(self, names, there):
        """Stores these pages of each pool in both. Runs of pages follow each other."""
        for name, pages in there.items():
            pool = self.pools[name]
            for run in runs(pages):
                keys, at = [names[i] for i in run], indices(pool, run)
                chain = HiCacheStorageExtraInfo(prefix_keys=names[: run[0]] or None)
                if name == PoolName.KV:
                    assert self.ours.batch_set_v1(keys, at, chain) == [True] * len(run)
                else:
                    one = [PoolTransfer(name, at, keys=keys, hit_policy=random_policy(name))]
                    assert self.ours.batch_set_v2(one, chain) == {name: [True] * len(run)}
                one = [PoolTransfer(name, at, keys=keys)]
                assert self.theirs.batch_set_v2(one) == {name: [True] * len(run)}

    def ask(self, names, wanted):
        """The same answer. `wanted`: by pool, its policy and how many pages a tail has."""
        asked = [
            PoolTransfer(name, keys=["__placeholder__"] * tail, hit_policy=policy)
            for name, (policy, tail) in wanted.items()
        ]
        ours = self.ours.batch_exists_v2(names, asked)
        theirs = self.theirs.batch_exists_v2(names, asked)
        assert ours.kv_hit_pages == theirs.kv_hit_pages
        assert ours.restorable_prefix_pages == theirs.restorable_prefix_pages
        # The file backend says nothing of further pools once no length is left.
        assert theirs.extra_pool_hit_pages.items() <= ours.extra_pool_hit_pages.items()
        alone = dict(self.theirs.batch_exists_v2(names).extra_pool_hit_pages)
        for one in asked:
            alone |= self.theirs.batch_exists_v2(names, [one]).extra_pool_hit_pages
        assert ours.extra_pool_hit_pages == alone
        return ours

    def load(self, names, name, pages, ours=None):
        """Loads these pages into other rows, and returns for each whether it came. The bytes are
        those that were stored."""
        pool = self.pools[name]
        into = [SPAN + i for i in range(len(pages))]
        keys, at = [names[i] for i in pages], indices(pool, into)
        refill(pool, into, torch.Generator().manual_seed(next(NUMBERS)))
        backend = ours or self.ours
        if name == PoolName.KV:
            came = backend.batch_get_v1(keys, at)
        else:
            one = PoolTransfer(name, at, keys=keys)
            came = backend.batch_get_v2([one])[name]
        for row, page, here in zip(into, pages, came, strict=True):
            assert not here or torch.equal(page_of(pool, row), page_of(pool, page)), (name, page)
        return came

    def same_load(self, names, name, pages):
        """The same pages come from both, and the same bytes."""
        came = self.load(names, name, pages)
        pool = self.pools[name]
        into = [2 * SPAN + i for i in range(len(pages))]
        one = PoolTransfer(name, indices(pool, into), keys=[names[i] for i in pages])
        assert self.theirs.batch_get_v2([one])[name] == came
        for i, here in enumerate(came):
            if here:
                assert torch.equal(page_of(pool, SPAN + i), page_of(pool, 2 * SPAN + i))
        return came

    def close(self):
        counts = self.ours.counters()
        self.ours.close()
        assert counts["internal_errors"] == 0


def runs(pages):
    """Ascending numbers in lists without gaps."""
    found = []
    for page in sorted(pages):
        if found and found[-1][-1] == page - 1:
            found[-1].append(page)
        else:
            found.append([page])
    return found


def random_policy(name):
    """SGLang stores with the policy of the pool. The name must not decide what is found."""
    return random.Random(str(name)).choice([ALL, TRAILING])


def random_pages(draw):
    """Those of a pool that are there: mostly many."""
    share = draw.choice([0, 0.5, 0.8, 0.9, 1])
    return [i for i in range(SPAN) if draw.random() < share]


def random_wishes(draw, pools):
    some = draw.sample(list(pools), draw.randint(0, len(pools)))
    return {name: (draw.choice([ALL, TRAILING]), draw.randint(0, SPAN + 2)) for name in some}


@pytest.fixture(scope="module")
def node(start_node):
    return start_node()


@pytest.fixture
def twins(node, tmp_path):
    made = []

    def make(others, **more):
        # Another test must not find its bytes.
        more = {"salt": str(next(NUMBERS)), **more}
        made.append(Twins(node, tmp_path / str(len(made)), others, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
