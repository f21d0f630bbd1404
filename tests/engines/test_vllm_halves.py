"""The connector's two halves without an engine: what each hook answers, against a scripted and a
real node."""

import concurrent.futures
import threading
import time
import types

import numpy as np
import pytest
import torch

import cairn
from cairn._engine.counters import Counters
from cairn._engine.options import Options
from cairn._engine.pool_store import PoolQuestion, PoolStore
from cairn._engine.store import Store
from cairn.vllm.metadata import LoadJob, Metadata, PoolBlocks, PoolLoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.pools import PoolPlan
from cairn.vllm.scheduler import SchedulerHalf
from cairn.vllm.worker import WorkerHalf
from conftest import wait_until

SIZE = 16


class FakeStore:
    """Answers with `blocks` matched, when `gate` lets it."""

    def __init__(self, blocks=0, **options):
        self.options, self.counters, self.namespace = (
            Options(lookup_timeout=0.2, **options),
            Counters(),
            bytes(32),
        )
        self.blocks, self.asked, self.waits, self.gate = blocks, [], 0, threading.Event()
        self.gate.set()

    def begin_lookup(self, keys):
        self.asked.append(list(keys))
        blocks = min(self.blocks, len(keys))
        runs = [
            cairn.TierRun(cairn.TierKind.HOST, 2, 1, 0.0),
            cairn.TierRun(cairn.TierKind.DISK, max(0, blocks - 2), 1, 0.0),
        ]
        found = cairn.Match(blocks, None, runs, cairn.MissReason.ABSENT, 0, 0.0)

        def wait(seconds):
            self.waits += 1
            return self.gate.wait(seconds)

        def give_up():
            self.counters.add("lookup_failures")

        return types.SimpleNamespace(
            begin=time.monotonic(),
            done=self.gate.is_set,
            wait=wait,
            result=lambda: found,
            give_up=give_up,
        )


def request(name="r", tokens=100, prompt=None, **changes):
    fields = {
        "request_id": name,
        "num_tokens": tokens,
        "num_prompt_tokens": prompt or tokens,
        "num_preemptions": 0,
        "all_token_ids": list(range(tokens)),
        "prompt_token_ids": list(range(tokens)),
        "block_hashes": [bytes([i]) * 32 for i in range(tokens // SIZE)],
        "skip_reading_prefix_cache": False,
        "lora_request": None,
        "mm_features": [],
        "prompt_embeds": None,
        "resumable": False,
        "pooling_params": None,
        "cache_salt": None,
    }
    return types.SimpleNamespace(**(fields | changes))


def half(store, engine_keys=True, **roles):
    return SchedulerHalf(
        store, Plan(None, SIZE, engine_keys), **({"reads": True, "writes": True} | roles)
    )


def answered(scheduler, asked, computed=0):
    """Asks until there is an answer, as the engine does."""
    scheduler.on_new_request(asked)
    wait_until(lambda: scheduler.matched_tokens(asked, computed) is not None, 5, "an answer")
    return scheduler.matched_tokens(asked, computed)


def blocks(*ids):
    return types.SimpleNamespace(get_block_ids=lambda: (list(ids),))


def step(scheduler, **scheduled):
    """A step that runs `name=(computed, tokens, block ids)`."""
    output = types.SimpleNamespace(
        scheduled_new_reqs=[
            types.SimpleNamespace(req_id=name, num_computed_tokens=computed)
            for name, (computed, _, _) in scheduled.items()
        ],
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={name: tokens for name, (_, tokens, _) in scheduled.items()},
        total_num_scheduled_tokens=sum(tokens for _, tokens, _ in scheduled.values()),
        kv_connector_block_state=types.SimpleNamespace(
            get_block_ids=lambda name: (scheduled[name][2],)
        ),
    )
    return scheduler.build_metadata(output)


def ended(scheduler, name="r", invalid=()):
    scheduler.on_output(
        types.SimpleNamespace(finished_recving={name}, invalid_block_ids=set(invalid))
    )


def test_an_answer_is_asked_for_once_and_given_often():
    store = FakeStore(blocks=4)
    scheduler, r = half(store), request()
    store.gate.clear()
    scheduler.on_new_request(r)
    assert [scheduler.matched_tokens(r, 0) for _ in range(3)] == [None] * 3
    store.gate.set()
    wait_until(lambda: scheduler.matched_tokens(r, 0) is not None, 5, "an answer")
    assert [scheduler.matched_tokens(r, 0) for _ in range(50)] == [64] * 50
    # Blocks that the engine has itself are not loaded.
    assert scheduler.matched_tokens(r, 32) == 32
    assert scheduler.matched_tokens(r, 80) == 0
    assert len(store.asked) == 1 and store.asked[0] == r.block_hashes


def test_the_last_token_is_always_computed():
    for tokens, found in ((96, 80), (97, 96), (16, 0), (15, 0)):
        assert answered(half(FakeStore(blocks=99)), request(tokens=tokens)) == found


def test_no_answer_in_time_is_a_miss():
    store = FakeStore(blocks=4)
    scheduler, r = half(store), request()
    store.gate.clear()
    begin = time.monotonic()
    assert answered(scheduler, r) == 0
    assert 0.15 < time.monotonic() - begin < 3
    assert store.counters.totals()["lookup_failures"] == 1
    store.gate.set()


def test_a_load_is_noted_once_and_not_stored_again():
    store = FakeStore(blocks=5)
    scheduler, r = half(store), request()
    assert answered(scheduler, r, 16) == 64
    # The engine had no room: it asks again, and nothing has changed.
    assert scheduler.matched_tokens(r, 16) == 64
    scheduler.after_alloc(r, blocks(10, 11, 12, 13, 14, 15), 64)
    assert scheduler.hit_tiers(r, 64) == {cairn.TierKind.HOST: 16, cairn.TierKind.DISK: 48}
    [job] = step(scheduler).loads
    assert (job.request, job.first, list(job.blocks), list(job.keys)) == (
        "r",
        1,
        [11, 12, 13, 14],
        r.block_hashes[:5],
    )
    assert step(scheduler).loads == []
    # The second call, after the load, wants nothing.
    scheduler.after_alloc(r, blocks(10, 11, 12, 13, 14, 15), 0)
    ended(scheduler)
    # Loaded blocks are not stored again: 96 of 100 tokens are full blocks.
    [save] = step(scheduler, r=(80, 20, [10, 11, 12, 13, 14, 15, 16])).saves
    assert (save.first, list(save.blocks), save.keys, save.parent) == (
        5,
        [15],
        r.block_hashes[5:6],
        r.block_hashes[4],
    )
    assert step(scheduler, r=(100, 1, [10, 11, 12, 13, 14, 15, 16])).saves == []


def test_a_load_that_failed_is_offered_no_more_and_what_was_computed_is_stored():
    store = FakeStore(blocks=5)
    scheduler, r = half(store), request()
    assert answered(scheduler, r) == 80
    scheduler.after_alloc(r, blocks(1, 2, 3, 4, 5, 6), 80)
    step(scheduler)
    ended(scheduler, invalid=[3, 4])
    assert scheduler.matched_tokens(r, 0) == 0
    [save] = step(scheduler, r=(32, 68, [1, 2, 3, 4, 5, 6, 7])).saves
    assert (save.first, list(save.blocks)) == (2, [3, 4, 5, 6])


def test_prompts_in_pieces_are_stored_as_blocks_fill():
    scheduler, r = half(FakeStore()), request()
    assert answered(scheduler, r) == 0
    scheduler.after_alloc(r, blocks(1), 0)
    found = [step(scheduler, r=(computed, 40, [1, 2, 3, 4, 5, 6, 7])).saves for computed in (0, 40)]
    assert [(save.first, list(save.blocks)) for [save] in found] == [(0, [1, 2]), (2, [3, 4, 5])]


@pytest.mark.parametrize(("generated", "stored"), [(False, 2), (True, 6)])
def test_generated_tokens_are_stored_where_asked_for(generated, stored):
    scheduler, r = half(FakeStore(save_generated=generated)), request(tokens=100, prompt=40)
    answered(scheduler, r)
    assert (
        sum(len(save.blocks) for save in step(scheduler, r=(0, 100, list(range(7)))).saves)
        == stored
    )


def test_drafted_tokens_are_not_stored():
    scheduler, r = half(FakeStore(save_generated=True)), request(tokens=100)
    answered(scheduler, r)
    [save] = step(scheduler, r=(99, 30, list(range(9)))).saves
    assert len(save.blocks) == 6


def test_after_a_preemption_the_node_is_asked_again():
    store = FakeStore(blocks=2)
    scheduler, r = half(store), request()
    assert answered(scheduler, r) == 32
    scheduler.after_alloc(r, blocks(1, 2, 3, 4, 5, 6), 32)
    ended(scheduler)
    store.blocks, r.num_preemptions = 6, 1
    assert scheduler.matched_tokens(r, 0) is None
    wait_until(lambda: scheduler.matched_tokens(r, 0) is not None, 5, "an answer")
    assert scheduler.matched_tokens(r, 0) == 96
    assert len(store.asked) == 2


def test_requests_that_end_early_leave_nothing():
    store = FakeStore(blocks=4)
    scheduler = half(store)
    one, two, three = (request(name) for name in ("one", "two", "three"))
    answered(scheduler, one)
    scheduler.on_finished(one)
    answered(scheduler, two)
    scheduler.after_alloc(two, blocks(1, 2, 3, 4), 64)
    scheduler.on_finished(two)  # The load goes on.
    ended(scheduler, "two", invalid=[1])
    store.gate.clear()
    scheduler.on_new_request(three)
    scheduler.on_finished(three)
    store.gate.set()
    assert not scheduler._requests and not scheduler._loading


@pytest.mark.parametrize(
    "change",
    [
        {"mm_features": [1]},
        {"prompt_embeds": 1},
        {"resumable": True},
        {"pooling_params": object()},
    ],
)
def test_what_keys_do_not_cover_bypasses_the_cache(change):
    store = FakeStore(blocks=4)
    scheduler, r = half(store), request(**change)
    assert answered(scheduler, r) == 0
    assert step(scheduler, r=(0, 100, list(range(7)))).saves == []
    assert store.asked == [] and store.counters.totals()["bypassed_requests"] == 1


def test_roles_and_requests_that_do_not_read():
    store = FakeStore(blocks=4)
    assert answered(half(store, reads=False), request()) == 0
    assert answered(half(store), request(skip_reading_prefix_cache=True)) == 0
    assert store.asked == []
    scheduler, r = half(store, writes=False), request()
    assert answered(scheduler, r) == 64
    assert step(scheduler, r=(0, 100, list(range(7)))).saves == []


def test_own_keys_depend_on_tokens_and_salt():
    def keys(**changes):
        store = FakeStore()
        answered(half(store, engine_keys=False), request(**changes))
        return store.asked[0]

    plain, salted = keys(), keys(cache_salt="a")
    assert plain == cairn.block_keys(bytes(32), list(range(96)), SIZE)
    assert len(salted) == 6 and not set(plain) & set(salted)
    assert salted == keys(cache_salt="a") and not set(salted) & set(keys(cache_salt="b"))


def test_after_a_reset_nothing_stored_before_is_found_or_added_to():
    store = FakeStore(blocks=4)
    scheduler, old = half(store), request("old")
    answered(scheduler, old)
    scheduler.reset()
    assert scheduler.matched_tokens(old, 0) == 0
    assert step(scheduler, old=(0, 100, list(range(7)))).saves == []
    new = request("new")
    answered(scheduler, new)
    assert not set(store.asked[-1]) & set(store.asked[0]) and len(store.asked[-1]) == 6


def test_a_step_without_work_waits_a_little_for_an_answer():
    store = FakeStore(blocks=4)
    scheduler, asked = half(store), request()
    store.gate.clear()
    scheduler.on_new_request(asked)
    assert not step(scheduler, running=(0, 16, [1])).idle and store.waits == 0
    begin = time.monotonic()
    assert step(scheduler).idle and store.waits == 1
    assert time.monotonic() - begin > 0.004
    store.gate.set()
    assert step(scheduler).idle and store.waits == 1
    assert scheduler.matched_tokens(asked, 0) == 64
    # Nothing is asked any more.
    store.gate.clear()
    assert step(scheduler).idle and store.waits == 1


# ---- workers, with a real node ----

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
    store.load = lambda keys, *_, limit: gate.wait(20) and set()
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


# ---- workers of models with several KV cache groups, with a real node ----

FULL, WINDOW, SHORT = range(3)
UNITS = 12  # Blocks of 16 tokens.
GROUPS = (
    PoolPlan("full", ("a0", "a1", "a2"), SIZE, LAYERS * PAGE, 0),
    PoolPlan("window", ("b0", "b1", "b2"), SIZE, LAYERS * PAGE, 40),
    PoolPlan("short", ("c0",), 2 * SIZE, PAGE, 33),
)


def pooled_worker(node, model, rank=0, ranks=1, **options):
    """Layers of all groups lie in the same memory, as vLLM has them."""
    layout = cairn.PooledLayout("groups of a test", [pool.pool(ranks) for pool in GROUPS], SIZE)
    spec = cairn.NamespaceSpec(
        model=model, revision="1", numerics="n", layout=layout, key_scheme="test"
    )
    store = PoolStore(Options(address=node.grpc, **options), spec, "worker-test")
    assert store.wait_open(10)
    half = WorkerHalf(store, Plan(spec, SIZE, True, 60, pools=GROUPS), rank)
    memory = [torch.randint(0, 255, (60, PAGE), dtype=torch.uint8) for _ in range(LAYERS)]
    half.register({name: memory[int(name[1])] for pool in GROUPS for name in pool.layers})
    return half, store, memory


def prompt_blocks(first_block):
    """By pool, the engine's block of each block of a prompt of UNITS units."""
    ids = iter(range(first_block, 60))
    return [[next(ids) for _ in range(UNITS * SIZE // pool.block_tokens)] for pool in GROUPS]


def save_pools(half, store, units, ids, leave_out=()):
    """`leave_out`: (pool, block) that are not stored."""
    jobs = []
    for number, pool in enumerate(GROUPS):
        keys = cairn.pool_keys(units, pool.block_tokens // SIZE, number)
        jobs += [
            SaveJob([key], i, [block], keys[i - 1] if pool.chained and i else None, number)
            for i, (key, block) in enumerate(zip(keys, ids[number], strict=True))
            if (number, i) not in leave_out
        ]
    half.start_saves(Metadata(store.namespace, [], jobs))
    assert half.drain(20)


def load_pools(half, store, units, ids, tokens, local=0):
    """Whether all came."""
    pools = []
    for number, pool in enumerate(GROUPS):
        needed = pool.needed(tokens)
        first = max(needed.start, local // pool.block_tokens)
        pools.append(PoolBlocks(number, first, ids[number][first : needed.stop]))
    job = PoolLoadJob("r", units[: tokens // SIZE], tokens, pools)
    half.start_loads(Metadata(store.namespace, [job]))
    ended = set()
    wait_until(lambda: ended.update(half.finished(idle=False)) or ended, 20, "the load's end")
    assert ended == {"r"} and half.take_bad_blocks() == set()
    failed = half.take_failed()
    assert failed <= {"r"} and half.take_failed() == set()
    return not failed


def equal(one, other, ids, others, tokens, local=0):
    for number, pool in enumerate(GROUPS):
        for i, (mine, theirs) in enumerate(zip(ids[number], others[number], strict=True)):
            if i in pool.needed(tokens) and i >= local // pool.block_tokens:
                for name in pool.layers:
                    page = int(name[1])
                    assert torch.equal(one[page][mine], other[page][theirs]), (pool.name, i)


def test_all_groups_of_a_prompt_come_back_to_blocks_of_their_own(start_node):
    node = start_node()
    half, store, memory = pooled_worker(node, "pools")
    other, other_store, others = pooled_worker(node, "pools")
    units, ids, back = keys_of(1, UNITS), prompt_blocks(1), prompt_blocks(25)
    save_pools(half, store, units, ids)
    untouched = [page.clone() for page in others]
    assert load_pools(other, other_store, units, back, 160)
    equal(others, memory, back, ids, 160)
    assert load_pools(other, other_store, units, back, 192, local=96)
    equal(others, memory, back, ids, 192, local=96)
    used = {block for pool in back for block in pool}
    for page, before in zip(others, untouched, strict=True):
        for block in set(range(60)) - used:
            assert torch.equal(page[block], before[block])
    assert store.counters.totals()["saved_bytes"] == (12 + 12) * LAYERS * PAGE + 6 * PAGE


@pytest.mark.parametrize("lost", [(FULL, 3), (WINDOW, 9), (SHORT, 4)])
def test_without_a_block_of_one_group_the_request_has_failed(start_node, lost):
    node = start_node()
    half, store, _ = pooled_worker(node, f"lost {lost}")
    units, ids = keys_of(2, UNITS), prompt_blocks(1)
    save_pools(half, store, units, ids, leave_out=[lost])
    assert not load_pools(half, store, units, prompt_blocks(25), 160)
    assert store.counters.totals()["failed_load_blocks"] > 0
    assert store.counters.totals()["loaded_blocks"] == 0
    # Lengths that do not need it can be restored.
    length = {FULL: 32, WINDOW: 64, SHORT: 96}[lost[0]]
    assert load_pools(half, store, units, prompt_blocks(25), length)


def test_a_place_that_the_engine_does_not_have_is_not_written_to(start_node):
    half, store, memory = pooled_worker(start_node(), "no place")
    units, ids = keys_of(3, UNITS), prompt_blocks(1)
    save_pools(half, store, units, ids)
    before = memory[0][0].clone()
    back = prompt_blocks(25)
    back[WINDOW][9] = 0
    assert not load_pools(half, store, units, back, 160)
    assert torch.equal(memory[0][0], before)
    assert store.counters.totals()["internal_errors"] == 1


def test_ranks_have_parts_of_their_own_in_every_pool(start_node):
    node = start_node()
    writers = [pooled_worker(node, "ranks", rank, 2) for rank in range(2)]
    reader, store, memory = pooled_worker(node, "ranks", 1, 2)
    units, ids, back = keys_of(4, UNITS), prompt_blocks(1), prompt_blocks(25)
    save_pools(*writers[0][:2], units, ids)
    assert not load_pools(reader, store, units, back, 160)
    save_pools(*writers[1][:2], units, ids)
    assert load_pools(reader, store, units, back, 160)
    equal(memory, writers[1][2], back, ids, 160)


def test_a_dead_node_fails_the_loads_of_all_groups_soon(start_node):
    node = start_node()
    half, store, _ = pooled_worker(node, "dead pools")
    units, ids = keys_of(5, UNITS), prompt_blocks(1)
    save_pools(half, store, units, ids)
    node.kill()
    begin = time.monotonic()
    assert not load_pools(half, store, units, prompt_blocks(25), 160)
    question = PoolQuestion(units, [pool.need(i) for i, pool in enumerate(GROUPS)], 32, 160)
    assert store.begin_pool_lookup(question).result() is None
    assert time.monotonic() - begin < 10
    counts = store.counters.totals()
    assert counts["internal_errors"] == 0 and counts["lookup_failures"] == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda caches: caches.pop("b1"), "no KV cache of 'b1', which 'window' has"),
        (lambda caches: caches.update(b1=caches["b0"]), "1024 bytes.*expected 1536"),
        (lambda caches: caches.update(b1=torch.zeros(61, PAGE)), "61 blocks.*multiple of 60"),
    ],
)
def test_groups_whose_pages_are_not_as_planned_are_refused(start_node, change, text):
    half, _, memory = pooled_worker(start_node(), "planned")
    caches = {name: memory[int(name[1])] for pool in GROUPS for name in pool.layers}
    change(caches)
    with pytest.raises(ValueError, match=text):
        half.register(caches)


# ---- layers that keep a state, whose blocks have padding behind them ----

STATE, PADDED = 40, 64
WITH_STATES = (
    PoolPlan("full", ("a0", "a1"), SIZE, 2 * PADDED, 0),
    PoolPlan("state", ("b0", "b1"), 4 * SIZE, 2 * STATE, 1, page_bytes=PADDED, states=True),
)


def state_worker(node, model):
    """The states of the second group lie in the pages of the first, as vLLM has them."""
    layout = cairn.PooledLayout("states of a test", [pool.pool(1) for pool in WITH_STATES], SIZE)
    spec = cairn.NamespaceSpec(
        model=model, revision="1", numerics="n", layout=layout, key_scheme="test"
    )
    store = PoolStore(Options(address=node.grpc), spec, "worker-test")
    assert store.wait_open(10)
    half = WorkerHalf(store, Plan(spec, SIZE, True, 20, pools=WITH_STATES), 0)
    memory = [torch.randint(1, 127, (20, PADDED), dtype=torch.int8) for _ in range(2)]
    caches = {f"a{i}": page for i, page in enumerate(memory)}
    caches |= {
        f"b{i}": page.as_strided((20, 1, 1, STATE), (PADDED, STATE, STATE, 1))
        for i, page in enumerate(memory)
    }
    half.register(caches)
    return half, store, memory, caches


def test_states_come_back_without_their_padding(start_node):
    half, store, memory, _ = state_worker(start_node(), "states")
    units = keys_of(8, 4)
    full, [state] = cairn.pool_keys(units, 1, 0), cairn.pool_keys(units, 4, 1)
    saves = [
        SaveJob(full, 0, [1, 2, 3, 4], None),
        SaveJob([state], 0, [5], None, 1),
    ]
    half.start_saves(Metadata(store.namespace, [], saves))
    assert half.drain(20)
    assert store.counters.totals()["saved_bytes"] == 4 * 2 * PADDED + 2 * STATE
    before = [page.clone() for page in memory]
    job = PoolLoadJob(
        "r", units, 4 * SIZE, [PoolBlocks(0, 0, [11, 12, 13, 14]), PoolBlocks(1, 0, [15])]
    )
    half.start_loads(Metadata(store.namespace, [job]))
    ended = set()
    wait_until(lambda: ended.update(half.finished(idle=False)) or ended, 20, "the load's end")
    assert half.take_failed() == set()
    for page, old in zip(memory, before, strict=True):
        assert torch.equal(page[11:15], old[1:5])
        assert torch.equal(page[15, :STATE], old[5, :STATE])
        # Blocks go from one group to the other, and vLLM does not clear those that a load fills.
        assert not page[15, STATE:].any()
        for block in {*range(20)} - {*range(11, 16)}:
            assert torch.equal(page[block], old[block])


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        # A gap that is no padding may have other layers' bytes.
        ((20, 1, 1, STATE), "'b1'.*or 64 bytes from one to the next"),
        ((40, 1, 1, STATE), "'b1' has 40 blocks, expected 20"),
    ],
)
def test_states_that_lie_elsewhere_are_refused(start_node, layer, text):
    half, _, _, caches = state_worker(start_node(), "states elsewhere")
    memory = torch.zeros(40 * 2 * PADDED, dtype=torch.int8)
    stride = 2 * PADDED if layer[0] == 20 else PADDED
    caches["b1"] = memory.as_strided(layer, (stride, STATE, STATE, 1))
    with pytest.raises(ValueError, match=text):
        half.register(caches)


def test_many_threads_may_look_up_at_once():
    store = FakeStore(blocks=3)
    scheduler = half(store)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda i: answered(half(store), request(str(i))), range(20))) == {48}
    assert scheduler.matched_tokens(request(), 0) in (None, 48)
