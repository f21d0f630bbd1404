"""Forms of pools and their namespaces, nodes that end and come back, and what is refused."""

import types

import pytest
import torch

import cairn
from cairn.sglang import pools as stored_pools
from conftest import wait_until
from sglang_host import (  # noqa: F401  (a fixture, too)
    PoolName,
    PoolTransfer,
    Rows,
    hashes,
    indices,
    kv_pool,
    little_memory,
    mamba_pool,
    page_of,
    refill,
    sglang_finds_its_packages,
    storage,
)
from sglang_pools import (  # noqa: F401  (fixtures, too)
    ALL,
    NOBODY,
    NUMBERS,
    PAGE,
    PATIENT,
    SPAN,
    TRAILING,
    node,
    prompt,
    rows,
    small_kv,
    states,
)


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
        refill(pool, into, torch.Generator().manual_seed(next(NUMBERS)))
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
    salt = f"cut {next(NUMBERS)}"
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
    backend = storage(node, kv, others=others, salt=f"anchor {next(NUMBERS)}", **PATIENT)
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
    backend = storage(node, kv, salt=f"later {next(NUMBERS)}", **PATIENT)
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
    backend = storage(node, kv, salt=f"alone {next(NUMBERS)}", **PATIENT)
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
    names = hashes(next(NUMBERS), 64, 3)
    assert backend.batch_set_v1(names, indices(kv, range(3))) == [True] * 3
    found = backend.batch_exists_v2(names)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [1, 2, 3])
    assert found.extra_pool_hit_pages == {"kv": 3}
    # A pool that nobody registered has nothing.
    other = [PoolTransfer(PoolName.MAMBA, keys=["_"], hit_policy=TRAILING)]
    found = backend.batch_exists_v2(names, other)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    backend.close()


def test_8_bitNUMBERS_of_two_kinds_share_nothing(node, monkeypatch):
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
    salt, names = f"forms {next(NUMBERS)}", prompt(2)
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
    backend = storage(node, kv, others=others, salt=f"groups {next(NUMBERS)}", **PATIENT)

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
        node, small_kv(1), others={NOBODY: rows(2)}, salt=f"policy {next(NUMBERS)}", **PATIENT
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
    backend = storage(node, small_kv(4), others=others, salt=f"mistakes {next(NUMBERS)}", **PATIENT)
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
