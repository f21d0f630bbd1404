"""SGLang's storage interface for models with several pools. SGLang's own file backend says what is
right: the same pools, the same calls, the same losses. The engine itself needs a GPU."""

import itertools
import random
import types
from unittest import mock

import pytest
import torch

import cairn
from cairn.sglang import pools as stored_pools
from conftest import Counts, wait_until
from sglang_host import (  # noqa: F401  (fixtures too)
    HiCacheStorageExtraInfo,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    Rows,
    config,
    file_storage,
    hashes,
    indices,
    kv_pool,
    little_memory,
    mamba_pool,
    page_of,
    paged_pool,
    refill,
    settings,
    sglang_finds_its_packages,
    storage,
)

ALL, TRAILING = PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES
PAGE = 4  # Tokens.
SPAN = 10  # Pages of a prompt, in the first rows of each pool.
PATIENT = {"lookup_timeout": 120.0, "load_timeout": 120.0, "save_timeout": 120.0}
NOBODY = "Nobody's pool"

_numbers = itertools.count(1)


def prompt(pages=SPAN):
    """Hashes that no other test has."""
    return hashes(next(_numbers), PAGE, pages)


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
        refill(pool, into, torch.Generator().manual_seed(next(_numbers)))
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
        more = {"salt": str(next(_numbers)), **more}
        made.append(Twins(node, tmp_path / str(len(made)), others, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---- the file backend as the oracle ----


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_pools_and_bytes_are_those_of_sglang_s_file_backend(twins, kind):
    """Random losses in each pool, policies and tails that no model has, spans that begin later."""
    pair, draw = twins(KINDS[kind]()), random.Random(kind)
    others = [name for name in pair.pools if name != PoolName.KV]
    hits = set()
    for _ in range(150):
        names = prompt()
        for pool in pair.pools.values():
            refill(pool, range(SPAN), torch.Generator().manual_seed(next(_numbers)))
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
    faulty = storage(node, kv, others=others, salt=f"injector {next(_numbers)}", **PATIENT)
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
            refill(pool, range(SPAN), torch.Generator().manual_seed(next(_numbers)))
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
        refill(pool, into, torch.Generator().manual_seed(next(_numbers)))
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


# ---- SGLang's own controller, with its threads ----

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
    salt = f"controller {next(_numbers)}"
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
    salt = f"controller {next(_numbers)}"
    (first, writer), (second, reader) = controllers(1, salt), controllers(100, salt)
    assert isinstance(second.storage_backend, HiCacheStorageFailureInjector)
    lengths = set()
    for i in range(40):
        tokens = list(range(20_000_000 + i * 100, 20_000_000 + i * 100 + 8 * PAGE))
        for pool in writer.values():
            refill(pool, range(8), torch.Generator().manual_seed(next(_numbers)))
        written(first, writer, tokens)
        found, came, hits = fetched(second, reader, tokens)
        assert found in (0, 4, 8) and came <= found
        lengths.add((found, came, bool(hits.get("mamba"))))
        check_fetched(reader, writer, found, came, hits)
    assert {(0, 0, False), (8, 8, True)} < lengths
    assert first.storage_backend._backend.counters()["internal_errors"] == 0
    assert second.storage_backend._backend.counters()["internal_errors"] == 0


# ---- ranks ----


def test_a_late_rank_makes_the_set_smaller_for_all_ranks(node):
    """A page of a pool is there when all ranks have stored their part of it."""
    salt = f"ranks {next(_numbers)}"
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
    salt, ranks, names = f"latent {next(_numbers)}", 2, prompt(3)
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
    names, salt = prompt(3), f"dcp {next(_numbers)}"
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


# ---- nodes that end and come back ----


def test_a_restart_between_two_pools_and_a_damaged_page(start_node, tmp_path):
    """Killed before the last pool was written to disk, and back with a byte of another page
    changed: fewer lengths, each of which comes with its bytes."""
    disk = tmp_path / "disk"
    node = start_node("--disk.path", str(disk))
    again = ("--listen", node.grpc, "--disk.path", str(disk), "--disk.scrub_rate", "0B")
    window = Rows(5, rows=2 * SPAN, row_bytes=5000, page=PAGE)
    others = {PoolName.SWA: window, NOBODY: rows(6)}
    kv, names = small_kv(7), prompt(4)
    pools = {PoolName.KV: kv, **others}
    patient = {"lookup_timeout": 60.0, "load_timeout": 60.0, "save_timeout": 60.0}
    backend = storage(node, kv, others=others, **patient)
    wishes = [
        PoolTransfer(PoolName.SWA, keys=["_"], hit_policy=TRAILING),
        PoolTransfer(NOBODY, hit_policy=ALL),
    ]

    def load(name, pages):
        pool, keys = pools[name], [names[i] for i in pages]
        into = [SPAN + page for page in pages]
        refill(pool, into, torch.Generator().manual_seed(next(_numbers)))
        if name == PoolName.KV:
            came = backend.batch_get_v1(keys, indices(pool, into))
        else:
            came = backend.batch_get_v2([PoolTransfer(name, indices(pool, into), keys=keys)])[name]
        for page, here in zip(pages, came, strict=True):
            assert not here or torch.equal(page_of(pool, SPAN + page), page_of(pool, page))
        return came

    def lengths():
        found = backend.batch_exists_v2(names, wishes).restorable_prefix_pages
        for length in found:
            assert all(load(PoolName.KV, range(length)) + load(NOBODY, range(length)))
            assert load(PoolName.SWA, [length - 1]) == [True]
        return found

    assert backend.batch_set_v1(names, indices(kv, range(4))) == [True] * 4
    for name in (PoolName.SWA, NOBODY):
        one = PoolTransfer(name, indices(pools[name], range(4)), keys=names)
        assert backend.batch_set_v2([one]) == {name: [True] * 4}
        if name == PoolName.SWA:
            with cairn.Client(node.grpc) as client:
                client.flush(deadline=60.0)
    assert lengths() == [1, 2, 3, 4]
    node.kill()
    assert backend.batch_exists_v2(names, wishes).restorable_prefix_pages == []
    node = start_node(*again)
    wait_until(lambda: backend.batch_exists(names) == 4, 60, "the node's return")
    after = lengths()
    assert after == list(range(1, len(after) + 1))  # As many as were written in time.
    missing = [i for i, here in enumerate(load(NOBODY, range(4))) if not here]
    if missing:
        one = PoolTransfer(
            NOBODY, indices(pools[NOBODY], missing), keys=[names[i] for i in missing]
        )
        assert backend.batch_set_v2([one]) == {NOBODY: [True] * len(missing)}
    assert lengths() == [1, 2, 3, 4]
    with cairn.Client(node.grpc) as client:
        client.flush(deadline=60.0)
    node.kill()

    damaged = 0
    wanted = window.data[2].numpy().tobytes()
    for file in disk.rglob("*"):
        if file.is_file() and (at := file.read_bytes().find(wanted)) >= 0:
            with file.open("r+b") as stream:
                stream.seek(at + 2500)
                stream.write(bytes([wanted[2500] ^ 1]))
            damaged += 1
    assert damaged == 1
    start_node(*again)
    wait_until(lambda: backend.batch_exists(names) == 4, 60, "the node's return")
    assert load(PoolName.SWA, range(4)) == [True, True, False, True]
    assert lengths() == [1, 2, 4]
    assert backend.counters()["internal_errors"] == 0
    backend.close()


def test_dead_and_hung_nodes_raise_nothing(start_node):
    node = start_node()
    others = {PoolName.MAMBA: states(1), NOBODY: rows(2)}
    kv, names = small_kv(3), prompt(2)
    backend = storage(
        node, kv, others=others, lookup_timeout=0.3, load_timeout=1.0, save_timeout=1.0
    )
    wishes = [PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING)]
    batch = [PoolTransfer(name, indices(pool, [0, 1]), keys=names) for name, pool in others.items()]
    wait_until(lambda: all(backend.batch_set_v1(names, indices(kv, [0, 1]))), 60, "the KV")
    wait_until(lambda: all(map(all, backend.batch_set_v2(batch).values())), 60, "the other pools")
    for end in (node.freeze, node.kill):
        end()
        found = backend.batch_exists_v2(names, wishes)
        assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {})
        assert found.restorable_prefix_pages == []
        assert backend.batch_exists(names) == 0 and backend.exists(names[0]) is False
        failed = {"mamba": [False] * 2, NOBODY: [False] * 2}
        assert backend.batch_get_v2(batch) == failed
        assert backend.batch_set_v2(batch) == failed
        assert backend.batch_get_v1(names, indices(kv, [0, 1])) == [False] * 2
    assert backend.counters()["internal_errors"] == 0
    backend.close()


# ---- forms of pools ----


@pytest.mark.parametrize("v1", [True, False])
def test_pages_beyond_a_part_are_cut(node, monkeypatch, v1):
    """Columns of a page are put together again, of one rank and of several."""
    monkeypatch.setattr(stored_pools, "MAX_PART", 100)
    salt = f"cut {next(_numbers)}"
    ranks, names = [], prompt(3)
    for rank in range(2):
        kv, others = small_kv(rank), {PoolName.MAMBA: mamba_pool(rank), NOBODY: rows(rank)}
        backend = storage(node, kv, rank, 2, v1, others=others, salt=salt, **PATIENT)
        ranks.append((backend, kv, others))
    assert all(
        one.pages.page_bytes > 100 for one in backend._opened.pools.values() if one.name != NOBODY
    )
    for backend, kv, others in ranks:
        if v1:
            assert backend.batch_set_v1(names, indices(kv, range(3))) == [True] * 3
        else:
            assert backend.batch_set(names, [kv.get_data_page(i * PAGE) for i in range(3)])
        batch = [
            PoolTransfer(name, indices(pool, range(3)), keys=names) for name, pool in others.items()
        ]
        assert backend.batch_set_v2(batch) == {"mamba": [True] * 3, NOBODY: [True] * 3}
    for backend, kv, others in ranks:
        assert backend.batch_exists(names) == 3
        if v1:
            assert backend.batch_get_v1(names, indices(kv, [5, 6, 7])) == [True] * 3
        else:
            for i, target in enumerate(
                backend.batch_get(names, [kv.get_dummy_flat_data_page() for _ in names])
            ):
                kv.set_from_flat_data_page((5 + i) * PAGE, target)
        for name, pool in {PoolName.KV: kv, **others}.items():
            if name != PoolName.KV:
                one = PoolTransfer(name, indices(pool, [5, 6, 7]), keys=names)
                assert backend.batch_get_v2([one]) == {name: [True] * 3}
            for i in range(3):
                assert torch.equal(page_of(pool, 5 + i), page_of(pool, i))
        backend.close()


def test_an_anchor_without_bytes_is_there_if_the_others_are(node):
    """DeepSeek V4: the KV only counts the tokens of other pools' pages."""
    from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

    kv, names = LogicalHostPool(4 * SPAN * PAGE, PAGE), prompt()
    others = {
        PoolName.DEEPSEEK_V4_C4: rows(1, page=PAGE, says_where=True),
        PoolName.SWA: rows(2, page=PAGE),
    }
    backend = storage(node, kv, others=others, salt=f"anchor {next(_numbers)}", **PATIENT)
    at = indices(kv, range(SPAN))
    assert backend.batch_set_v1(names, at) == [True] * SPAN
    assert (backend.batch_exists(names), backend.exists(names[0])) == (0, False)
    wishes = [
        PoolTransfer(PoolName.DEEPSEEK_V4_C4, hit_policy=ALL),
        PoolTransfer(PoolName.SWA, keys=["_"] * 2, hit_policy=TRAILING),
    ]
    assert backend.batch_exists_v2(names, wishes).restorable_prefix_pages == []
    assert backend.batch_exists_v2(names, []).kv_hit_pages == 0  # Of no pool is known anything.
    for name, pages in ((PoolName.DEEPSEEK_V4_C4, range(8)), (PoolName.SWA, [2, 3, 6, 7])):
        one = PoolTransfer(name, indices(others[name], pages), keys=[names[i] for i in pages])
        assert all(backend.batch_set_v2([one])[name])
    found = backend.batch_exists_v2(names, wishes)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (8, [4, 8])
    assert found.extra_pool_hit_pages == {"deepseek_v4_c4": 8, "swa": 8}
    assert backend.batch_get_v1(names[:8], at[: 8 * PAGE]) == [True] * 8
    with pytest.raises(ValueError, match="LogicalHostPool, which has no bytes, and no other pool"):
        storage(node, kv)
    backend.close()


def test_a_pool_that_comes_later_is_in_a_namespace_with_the_others(node):
    kv, names = small_kv(1), prompt(2)
    backend = storage(node, kv, salt=f"later {next(_numbers)}", **PATIENT)
    plain = backend._opened.store.namespace
    assert backend.batch_set_v1(names, indices(kv, [0, 1])) == [True] * 2
    draft = rows(2, page=PAGE)
    backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    assert backend._opened.store.namespace != plain
    wishes = [PoolTransfer(PoolName.DRAFT, hit_policy=ALL)]
    assert backend.batch_exists(names) == 0
    assert backend.batch_set_v1(names, indices(kv, [0, 1])) == [True] * 2
    one = PoolTransfer(PoolName.DRAFT, indices(draft, [0, 1]), keys=names)
    assert backend.batch_exists_v2(names, wishes).kv_hit_pages == 0
    assert backend.batch_set_v2([one]) == {"draft": [True] * 2}
    assert backend.batch_exists_v2(names, wishes).kv_hit_pages == 2
    backend.close()


def test_a_model_with_its_kv_alone_has_the_namespace_that_it_always_had(node):
    """And the same one in versions of SGLang that register it a second time."""
    kv = kv_pool("page_first")
    backend = storage(node, kv, salt=f"alone {next(_numbers)}", **PATIENT)
    backend.register_mem_host_pool_v2(kv, PoolName.KV)
    opened = backend._open()
    layout = opened.store.spec.layout
    assert layout == cairn.OpaqueLayout(
        "sglang MHATokenToKVPoolHost layout=page_first dtype=torch.float32 layers=3 head_num=2 "
        "head_dim=32 pieces=[49152, 49152]x2 tp=1 pp=0/1 v1",
        max_part_bytes=98304,
        parts=1,
        block_tokens=64,
    )
    assert opened.pooled is None
    names = hashes(next(_numbers), 64, 3)
    assert backend.batch_set_v1(names, indices(kv, range(3))) == [True] * 3
    found = backend.batch_exists_v2(names)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [1, 2, 3])
    assert found.extra_pool_hit_pages == {"kv": 3}
    # A pool that nobody registered has nothing.
    other = [PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING)]
    found = backend.batch_exists_v2(names, other)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    backend.close()


def test_8_bit_numbers_of_two_kinds_share_nothing(node, monkeypatch):
    """SGLang keeps both as bytes: its pools look alike."""
    from sglang.srt import runtime_context

    def namespace(kind, dtype=torch.uint8, others=()):
        args = types.SimpleNamespace(
            kv_cache_dtype=kind, speculative_draft_kv_cache_dtype="bfloat16"
        )
        monkeypatch.setattr(runtime_context, "get_server_args", lambda: args)
        backend = storage(node, kv_pool("page_first", dtype=dtype), others=others)
        backend.close()
        return backend._opened.store.namespace

    assert namespace("fp8_e4m3") == namespace("fp8_e4m3") != namespace("fp8_e5m2")
    assert namespace("auto", torch.float32) == namespace("bfloat16", torch.float32)
    eight = {PoolName.DRAFT: kv_pool("page_first", dtype=torch.uint8)}
    assert namespace("a", torch.float32, eight) != namespace("b", torch.float32, eight)


def test_other_forms_of_a_pool_share_nothing(node):
    salt, names = f"forms {next(_numbers)}", prompt(2)
    forms = [
        {PoolName.MAMBA: mamba_pool(1)},
        {PoolName.MAMBA: mamba_pool(1, layers=3)},
        {PoolName.MAMBA: mamba_pool(1, side=True)},
        {PoolName.MAMBA: mamba_pool(1), PoolName.DRAFT: rows(1)},
        {PoolName.SWA: mamba_pool(1)},
    ]
    made = [storage(node, small_kv(1), others=form, salt=salt, **PATIENT) for form in forms]
    assert len({backend._opened.store.namespace for backend in made}) == len(forms)
    direct = [backend._opened.pools["mamba"].pages.direct for backend in made[:3]]
    assert direct == [True, True, False]
    assert made[0].batch_set_v1(names, indices(small_kv(1), [0, 1])) == [True] * 2
    assert [backend.batch_exists(names) for backend in made] == [2, 0, 0, 0, 0]
    # In which order they were told is of no account.
    turned = dict(reversed(forms[3].items()))
    other = storage(node, small_kv(1), others=turned, salt=salt)
    assert other._opened.store.namespace == made[3]._opened.store.namespace
    for backend in (*made, other):
        backend.close()


# ---- policies, and what is refused ----


def test_groups_of_blocks_are_told_and_never_gate(node):
    """A second form of the same pages. The file backend does not know this policy."""
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

    pool, kv, names = rows(1), small_kv(2), prompt()
    others = {PoolName.DEEPSEEK_V4_C128: pool, PoolName.SWA: rows(3)}
    backend = storage(node, kv, others=others, salt=f"groups {next(_numbers)}", **PATIENT)

    def ask(block, group):
        wishes = [
            PoolTransfer(
                PoolName.DEEPSEEK_V4_C128,
                hit_policy=PoolHitPolicy.BLOCK_GROUPS,
                block_pages=block,
                group_pages=group,
            )
        ]
        return backend.batch_exists_v2(names, wishes)

    def put(pages):
        one = PoolTransfer(
            PoolName.DEEPSEEK_V4_C128,
            indices(pool, pages),
            keys=[names[i] for i in pages],
            hit_policy=PoolHitPolicy.BLOCK_GROUPS,
        )
        assert all(backend.batch_set_v2([one])["deepseek_v4_c128"])

    assert ask(3, 1).extra_pool_hit_pages == {}
    assert backend.batch_set_v1(names[:2], indices(kv, [0, 1])) == [True] * 2
    put([2, 5, 7, 8])
    found = ask(3, 1)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [1, 2])
    assert found.extra_pool_hit_pages == {"kv": 2, "deepseek_v4_c128": 9}
    assert ask(3, 2).extra_pool_hit_pages == {"kv": 2}  # The first group lacks a page.
    put([1, 4])
    assert ask(3, 2).extra_pool_hit_pages == {"kv": 2, "deepseek_v4_c128": 9}
    assert ask(4, 1).extra_pool_hit_pages == {"kv": 2}
    assert ask(11, 1).extra_pool_hit_pages == {"kv": 2}  # No block is whole.
    assert ask(0, 0).extra_pool_hit_pages == {"kv": 2}  # Not a form at all.
    backend.close()


def test_a_policy_that_is_not_known_finds_nothing_and_is_named(node, caplog):
    backend = storage(
        node, small_kv(1), others={NOBODY: rows(2)}, salt=f"policy {next(_numbers)}", **PATIENT
    )
    names = prompt(2)
    assert backend.batch_set_v1(names, indices(small_kv(1), [0, 1])) == [True] * 2
    found = backend.batch_exists_v2(names, [PoolTransfer(NOBODY, hit_policy="every_third_page")])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    assert f"pool '{NOBODY}': got hit policy 'every_third_page', expected one of" in caplog.text
    assert backend.counters()["internal_errors"] == 1
    backend.close()


def test_a_pool_s_mistake_takes_no_other_pool_with_it(node):
    others = {PoolName.MAMBA: states(1), PoolName.SWA: rows(2, page=PAGE), NOBODY: rows(3)}
    backend = storage(
        node, small_kv(4), others=others, salt=f"mistakes {next(_numbers)}", **PATIENT
    )
    names = prompt(2)

    def batch():
        return [
            PoolTransfer(PoolName.MAMBA, indices(others[PoolName.MAMBA], [0, 1]), keys=names),
            PoolTransfer(PoolName.SWA, torch.arange(3), keys=names),  # Not whole pages.
            PoolTransfer("nobody registered it", torch.arange(2), keys=names),
            PoolTransfer(NOBODY, torch.arange(2), keys=["no hex", names[0]]),
            PoolTransfer(PoolName.INDEXER, None, keys=None),
        ]

    right = {
        "mamba": [True] * 2,
        "swa": [False] * 2,
        "nobody registered it": [False] * 2,
        NOBODY: [False] * 2,
        "indexer": [],
    }
    assert backend.batch_set_v2(batch()) == right
    assert backend.batch_get_v2(batch()) == right
    assert backend.counters()["internal_errors"] == 8
    backend.close()


def test_what_cannot_be_right_is_refused_at_the_start(node):
    # Only one rank of a latent model stores a draft, and other ranks have other heads of it.
    with pytest.raises(ValueError, match="pool 'draft' .MHATokenToKVPoolHost. has heads that 2"):
        storage(node, small_kv(1), 0, 2, mla=True, others={PoolName.DRAFT: small_kv(2)})
    storage(node, small_kv(1), 0, 1, mla=True, others={PoolName.DRAFT: small_kv(2)}).close()
    storage(node, small_kv(1), 0, 2, others={PoolName.DRAFT: small_kv(2)}).close()
    with pytest.raises(ValueError, match="pool 'none' .object. gives no pages"):
        storage(node, small_kv(1), others={"none": object()})
    with pytest.raises(ValueError, match="pool 'empty' .Rows. has pages without bytes"):
        storage(node, small_kv(1), others={"empty": Rows(1, rows=4, row_bytes=0)})
    with pytest.raises(ValueError, match="the model has 33 pools, expected at most 32"):
        storage(node, small_kv(1), others={f"pool{i}": rows(i) for i in range(32)})
    striped = small_kv(1)
    striped.shard_size = 2
    with pytest.raises(ValueError, match="each page lies on one of 2 ranks"):
        storage(node, striped)
