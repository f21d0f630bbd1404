"""The connector's half in the scheduler, without an engine: what each hook answers, with a scripted
store."""

import concurrent.futures
import threading
import time
import types

import pytest

import cairn
from cairn._engine.counters import Counters
from cairn._engine.options import Options
from cairn.vllm.namespace import Plan
from cairn.vllm.scheduler import SchedulerHalf
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


def test_many_threads_may_look_up_at_once():
    store = FakeStore(blocks=3)
    scheduler = half(store)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda i: answered(half(store), request(str(i))), range(20))) == {48}
    assert scheduler.matched_tokens(request(), 0) in (None, 48)
