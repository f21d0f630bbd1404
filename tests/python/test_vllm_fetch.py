"""The scheduler's halves of vLLM's connector with a store that becomes slow and fast again: which
hits they take, how long requests take next to an engine without a store, and what is counted. Time
is simulated, and stand-ins replace vLLM."""

import types

import pytest

import cairn
from cairn._engine.counters import Counters
from cairn._engine.fetch_chooser import Place
from cairn._engine.options import Options
from cairn._engine.pool_store import PoolFound, PoolStore
from cairn._engine.store import Sample
from cairn.types import TierKind
from vllm_standins import standing_in

BLOCK = 16
BYTES = 1 << 20
CHUNK = 512  # Tokens of a step.
TOKENS = 1500
LOOKUP, IDLE = 0.001, 0.0005


@pytest.fixture(autouse=True)
def standins():
    with standing_in(lambda device: 0):
        yield


def step_seconds(begin, tokens):
    return 0.004 + tokens * (1e-3 + 5e-7 * (begin + tokens / 2))


def computed_seconds(begin, end):
    return sum(step_seconds(at, min(CHUNK, end - at)) for at in range(begin, end, CHUNK))


ALONE = computed_seconds(0, TOKENS)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Question:
    """A look-up in simulated time."""

    def __init__(self, store, answer):
        self.begin, self._store, self._answer = store.clock.now, store, answer
        self.seconds = store.lookup

    def _left(self):
        return self.begin + self.seconds - self._store.clock.now

    def done(self):
        return self._left() <= 0

    def wait(self, seconds):
        self._store.clock.now += max(0.0, min(seconds, self._left()))
        return self.done()

    def result(self):
        return self._answer

    def give_up(self):
        self._store.counters.add("lookup_failures")


class FakeStore:
    """Has all blocks that it is asked for, or those of `tiers`. `lookup`, `block`, `disk_block`:
    the seconds that a look-up and a block of a load take."""

    def __init__(self, clock):
        self.options, self.counters, self.namespace = Options(), Counters(), bytes(32)
        self.clock, self.lookup, self.block, self.disk_block = clock, LOOKUP, 0.0, 0.0
        self.tiers = None
        self.asked = 0
        self.sampled = 0

    def runs(self, blocks):
        return self.tiers or [cairn.TierRun(TierKind.HOST, blocks, 0, 0.0)]

    def begin_lookup(self, keys):
        self.asked += 1
        runs = self.runs(len(keys))
        blocks = min(len(keys), sum(run.blocks for run in runs))
        return Question(self, cairn.Match(blocks, None, runs, cairn.MissReason.NONE, 0, 0.0))

    def sample(self, keys, block_bytes, rect, seconds):
        self.sampled += 1
        assert seconds <= 2 and len(keys) <= 16
        count = min(len(keys), 4)
        taken = self.lookup + count * self.block
        return Sample(self.lookup, min(taken, 2 * seconds), count * block_bytes, Place.MEMORY)

    def load_seconds(self, job):
        count, on_disk = len(job.blocks), 0
        if self.tiers:
            on_disk = max(0, job.first + count - self.tiers[0].blocks)
        return self.lookup + self.block * (count - on_disk) + self.disk_block * on_disk


class FakePoolStore(PoolStore):
    """The same over pools."""

    def __init__(self, clock):
        FakeStore.__init__(self, clock)

    def begin_pool_lookup(self, question):
        self.asked += 1
        runs = self.runs(question.most // BLOCK)
        return Question(self, PoolFound(question.most, question.most, runs))

    def sample_pools(self, question, block_bytes, rects, most_bytes, seconds):
        assert most_bytes >= BYTES and len(block_bytes) == len(rects) == 2
        return self.sample([bytes(32)], block_bytes[0], rects[0], seconds)

    runs, sample, load_seconds = FakeStore.runs, FakeStore.sample, FakeStore.load_seconds

    def close(self):
        pass


class Engine:
    """One request at a time, and nothing else to do: the time of a request is that of its first
    token."""

    def __init__(self, monkeypatch, pools=False, measured=True, chunk=CHUNK):
        from cairn.vllm import scheduler
        from cairn.vllm.namespace import Plan
        from cairn.vllm.pooled_scheduler import PooledSchedulerHalf
        from cairn.vllm.pools import PoolPlan
        from cairn.vllm.weighing import Weighing

        self.clock = Clock()
        monkeypatch.setattr(scheduler, "time", types.SimpleNamespace(monotonic=self.clock))
        self.store = (FakePoolStore if pools else FakeStore)(self.clock)
        self.weighing = Weighing(self.store, clock=self.clock) if measured else None
        spec = types.SimpleNamespace(
            layout=cairn.OpaqueLayout("bytes of a test", max_part_bytes=BYTES, block_tokens=BLOCK)
        )
        if pools:
            from cairn.vllm.options import ConnectorOptions

            self.store.options = ConnectorOptions()
            plans = (
                PoolPlan("full", ("a",), BLOCK, BYTES, 0),
                PoolPlan("window", ("b",), BLOCK, BYTES, 40),
            )
            self.half = PooledSchedulerHalf(
                self.store,
                Plan(spec, BLOCK, True, pools=plans),
                reads=True,
                writes=True,
                weighing=self.weighing,
            )
        else:
            self.half = scheduler.SchedulerHalf(
                self.store, Plan(spec, BLOCK, True), reads=True, writes=True, weighing=self.weighing
            )
        self.pools = pools
        self.names = iter(range(1 << 30))
        self.loads = []
        self.offers = []

    def close(self):
        assert self.count("internal_errors") == 0
        self.half.close()

    def count(self, name):
        return self.store.counters.totals()[name]

    def run(self, tokens=TOKENS, local=0):
        """A request. Returns the seconds that it takes, and the tokens that it is offered."""
        name = str(next(self.names))
        request = types.SimpleNamespace(
            request_id=name,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            num_preemptions=0,
            all_token_ids=list(range(tokens)),
            block_hashes=[i.to_bytes(32, "big") for i in range(tokens // BLOCK)],
            shared_prefix_boundary=0,
            skip_reading_prefix_cache=False,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            pooling_params=None,
        )
        begin, computed = self.clock.now, local
        self.half.on_new_request(request)
        while True:
            while (found := self.half.matched_tokens(request, local)) is None:
                self.step()
            # The engine asks again if it has no room.
            assert self.half.matched_tokens(request, local) == found
            self.allocate(request, found)
            self.offers.append(found)
            if not found:
                break
            came = self.load(name)
            computed = local + came
            if came or not self.pools:
                break
        while computed < tokens:
            count = min(CHUNK, tokens - computed)
            self.step(name, computed, count)
            computed += count
        self.half.on_finished(request)
        self.probed()
        return self.clock.now - begin

    def allocate(self, request, found):
        ids = list(range(1, 2 + request.num_tokens // BLOCK))
        groups = (ids, [0] * (len(ids) - 4) + ids[-4:]) if self.pools else (ids,)
        if self.pools and found:
            end = found // BLOCK
            groups = (ids, [0] * (end - 3) + ids[end - 3 :])
        self.half.after_alloc(request, types.SimpleNamespace(get_block_ids=lambda: groups), found)

    def load(self, name):
        """The workers load while the engine has nothing to do. Returns the tokens that came."""
        from cairn.vllm.metadata import LoadTimes

        [job] = self.step().loads
        count = len(job.blocks)
        needed = self.store.load_seconds(job)
        seconds = min(needed, job.limit, self.store.options.load_timeout)
        came = count
        if needed > seconds:
            came = 0 if self.pools else int(max(0, seconds - self.store.lookup) / self.store.block)
        self.clock.now += seconds
        self.loads.append((count, came, seconds))
        failed = set(job.blocks[came:])
        self.half.on_output(
            types.SimpleNamespace(
                finished_recving={name},
                failed_recving={name} if failed else set(),
                invalid_block_ids=set() if self.pools else failed,
                kv_connector_worker_meta=LoadTimes({name: (seconds, count - came)}),
            )
        )
        if self.pools:
            return job.tokens if came else 0
        return came * BLOCK

    def step(self, name=None, computed=0, count=0):
        names = [name] if name else []
        ids = list(range(1, 2 + TOKENS // BLOCK))
        metadata = self.half.build_metadata(
            types.SimpleNamespace(
                scheduled_new_reqs=[
                    types.SimpleNamespace(req_id=n, num_computed_tokens=computed) for n in names
                ],
                scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]),
                num_scheduled_tokens=dict.fromkeys(names, count),
                total_num_scheduled_tokens=count,
                kv_connector_block_state=types.SimpleNamespace(
                    get_block_ids=lambda n: (ids, ids), boundary_state_offloads={}
                ),
            )
        )
        self.clock.now += step_seconds(computed, count) if count else IDLE
        self.half.on_step_end()
        return metadata

    def probed(self):
        """Probes run in a thread, and take no simulated time."""
        if self.weighing is not None and self.weighing._probing is not None:
            self.weighing._probing.result()


@pytest.fixture
def make(monkeypatch):
    made = []

    def engine(**options):
        made.append(Engine(monkeypatch, **options))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def warm(engine, share=5):
    """A store at which all is, `share` times as fast as computing. The engine has computed."""
    engine.store.lookup = 1.0
    for _ in range(5):
        engine.run()
    engine.store.lookup = LOOKUP
    engine.clock.now += 100
    engine.store.block = ALONE / share / (TOKENS // BLOCK)
    for _ in range(20):
        engine.run()
    assert engine.offers[-1] == TOKENS // BLOCK * BLOCK


@pytest.mark.parametrize("pools", [False, True])
def test_a_store_slowed_to_a_tenth_makes_no_request_slower_than_none(make, pools):
    engine = make(pools=pools)
    warm(engine)
    assert engine.run() < 0.3 * ALONE

    engine.store.block, engine.store.lookup = engine.store.block * 10, LOOKUP * 10
    # Two requests find it out, and for no longer than computing takes.
    first = [engine.run() for _ in range(2)]
    assert max(first) < 2.05 * ALONE
    asked = engine.store.asked
    rest = [engine.run() for _ in range(100)]
    assert max(rest) < 1.05 * ALONE
    assert engine.store.asked == asked
    assert engine.count("unasked_requests") == 100
    assert engine.count("late_loads") == 2
    # Others ask for it now and then, with less than every third one of these.
    assert 0 < engine.store.sampled < 35

    engine.store.block, engine.store.lookup = engine.store.block / 10, LOOKUP
    times = [engine.run() for _ in range(30)]
    assert times[-1] < 0.3 * ALONE
    assert max(times) < 1.05 * ALONE


@pytest.mark.parametrize("pools", [False, True])
def test_without_measuring_the_slow_store_costs_each_request(make, pools):
    """Else the test above could pass without a slow store."""
    engine = make(pools=pools, measured=False)
    engine.store.block = 10 * ALONE / 5 / (TOKENS // BLOCK)
    assert min(engine.run() for _ in range(5)) > 1.5 * ALONE


@pytest.mark.parametrize("pools", [False, True])
def test_a_fast_store_is_always_asked(make, pools):
    engine = make(pools=pools)
    warm(engine, share=50)
    asked, untaken = engine.store.asked, engine.count("untaken_hits")
    times = [engine.run() for _ in range(100)]
    assert max(times) < 0.05 * ALONE
    assert engine.store.asked == asked + 100
    assert engine.count("untaken_hits") == untaken


def test_a_store_that_is_slow_from_the_start(make):
    engine = make()
    engine.store.block = 2 * ALONE / (TOKENS // BLOCK)
    # Nothing is known of computing: the load may take what its timeout says.
    times = [engine.run() for _ in range(50)]
    assert max(times[5:]) < 1.05 * ALONE


def test_a_store_that_hangs(make):
    """Nothing comes, neither answers nor blocks."""
    engine = make()
    warm(engine)
    engine.store.block = engine.store.lookup = 1000.0
    times = [engine.run() for _ in range(50)]
    # Answers are awaited for a share of computing.
    assert max(times) < 1.08 * ALONE
    assert max(times[5:]) < 1.001 * ALONE
    # None of them, since the timeout is shorter.
    assert engine.count("late_lookups") == 0 < engine.count("lookup_failures")
    assert engine.count("unasked_late_requests") > 40


def test_a_short_prompt_does_not_wait_for_a_slow_answer(make):
    engine = make()
    warm(engine)
    engine.store.lookup = 0.03
    failures, short = engine.count("lookup_failures"), 300
    alone = computed_seconds(0, short)
    times = [engine.run(short) for _ in range(20)]
    assert max(times) < 1.06 * alone
    assert engine.count("late_lookups") == engine.count("lookup_failures") - failures > 0
    assert engine.count("unasked_late_requests") > 10
    # Longer ones have the time.
    assert engine.run(10 * TOKENS) < 0.3 * computed_seconds(0, 10 * TOKENS)


def test_hits_that_save_little_are_left(make):
    engine = make()
    warm(engine, share=2)
    # The engine has all but the last block, which takes as long as a look-up to load.
    engine.store.lookup = 0.045
    for _ in range(10):
        engine.run()
    before = engine.count("untaken_hits")
    engine.run(local=TOKENS // BLOCK * BLOCK - BLOCK)
    assert engine.offers[-1] == 0
    assert engine.count("untaken_hits") == before + 1
    assert engine.count("untaken_blocks") == 1


def test_blocks_in_memory_are_taken_and_those_on_a_slow_disk_are_not(make):
    engine = make()
    warm(engine, share=20)
    half = TOKENS // BLOCK // 2
    engine.store.tiers = [
        cairn.TierRun(TierKind.HOST, half, 0, 0.0),
        cairn.TierRun(TierKind.DISK, 1000, 0, 0.0),
    ]
    engine.store.disk_block = engine.store.block * 100
    # The first load of blocks on the disk is slow; then the first halves of prompts are taken.
    assert engine.run() < 1.6 * ALONE
    times = [engine.run() for _ in range(10)]
    assert engine.offers[-10:] == [half * BLOCK] * 10
    assert max(times) < 0.75 * ALONE
    assert engine.count("untaken_hits") == 10
    engine.store.tiers = None
    assert engine.run() < 0.1 * ALONE


def test_after_a_load_that_was_given_up_nothing_is_offered_again(make):
    for pools in (False, True):
        engine = make(pools=pools)
        warm(engine)
        engine.store.block *= 10
        del engine.offers[:]
        seconds = engine.run()
        # In pools the engine begins again, and asks.
        assert engine.offers == ([engine.offers[0], 0] if pools else engine.offers[:1])
        assert engine.count("late_loads") == 1
        [(count, came, spent)] = engine.loads[-1:]
        assert came < count and spent <= ALONE
        # What came is used, where blocks count one by one.
        kept = computed_seconds(came * BLOCK, TOKENS)
        assert seconds == pytest.approx(spent + kept, rel=0.05)


def test_short_prompts_that_are_computed_at_once_are_not_asked_for(make):
    engine = make()
    warm(engine)
    engine.store.lookup = 0.03
    for _ in range(5):
        engine.run()
    asked, sampled = engine.store.asked, engine.store.sampled
    for _ in range(20):
        engine.run(tokens=20)
    assert engine.store.asked == asked
    assert engine.count("unasked_requests") + engine.count("unasked_late_requests") >= 20
    assert engine.store.sampled <= sampled + 5


def test_steps_that_are_planned_while_others_run_are_measured_from_end_to_end(make):
    engine = make()
    weighing, seen = engine.weighing, []
    weighing._chooser.observe_step = lambda parts, seconds, alone: seen.append(
        (parts, round(seconds, 3), alone)
    )
    weighing.step_begins([(0, 100)])
    engine.clock.now += 0.1
    weighing.step_begins([(100, 100)])
    engine.clock.now += 0.2
    weighing.step_ended()
    weighing.step_begins([])
    engine.clock.now += 0.3
    weighing.step_ended()
    weighing.step_ended()
    weighing.step_ended()  # Of a step that was never planned.
    assert seen == [([(0, 100)], 0.3, True), ([(100, 100)], 0.3, True)]
    # Ends that are never told: what was planned is forgotten.
    for i in range(100):
        weighing.step_begins([(i, 50)])
    assert len(weighing._steps) <= 16
    assert not weighing._chooser._learns


@pytest.mark.parametrize("pools", [False, True])
def test_saves_of_requests_that_did_not_ask_say_so(make, pools):
    engine = make(pools=pools)
    saves, build = [], engine.half.build_metadata

    def built(output):
        metadata = build(output)
        saves.extend(metadata.saves)
        return metadata

    engine.half.build_metadata = built
    engine.store.lookup = 1.0
    engine.run()
    # It asked, and had no answer.
    assert saves and not any(save.unasked for save in saves)
    warm(engine)
    engine.store.lookup = 1.0
    for _ in range(5):
        engine.run()
    del saves[:]
    engine.run()
    assert saves and all(save.unasked for save in saves)


def test_blocks_that_were_stored_a_moment_ago_are_known():
    from cairn.vllm.recent_saves import RecentSaves

    clock = Clock()
    recent = RecentSaves(clock)
    keys = [i.to_bytes(32, "big") for i in range(100_000)]
    assert not recent.has(keys[:10])
    assert recent.has(keys[:10]) and recent.has(keys[3:5])
    # One that is new: all of them are stored.
    assert not recent.has(keys[5:11]) and recent.has(keys[:11])
    clock.now += 61
    assert not recent.has(keys[:10]) and recent.has(keys[:10])
    # Only so many are remembered, the last ones.
    assert not recent.has(keys)
    assert recent.has(keys[-60_000:]) and not recent.has(keys[:10])
    assert len(recent._stored) <= 65536


def test_workers_do_not_store_again_what_nobody_asked_for():
    from cairn.vllm.metadata import Metadata, SaveJob
    from cairn.vllm.namespace import Plan
    from cairn.vllm.worker import WorkerHalf

    saved = []
    store = types.SimpleNamespace(options=Options(), counters=Counters(), namespace=bytes(32))
    half = WorkerHalf(store, Plan(None, BLOCK, True), 0)
    half._pages = types.SimpleNamespace(save=saved.extend, close=lambda: None)
    keys = [bytes([i]) * 32 for i in range(4)]
    for unasked, count in ((False, 1), (False, 2), (True, 3), (True, 3), (False, 4)):
        job = SaveJob(keys, 0, [1, 2, 3, 4], None, unasked=unasked)
        half.start_saves(Metadata(bytes(32), [], [job]))
        assert len(saved) == count
    half.close()


def test_of_several_ranks_the_slowest_counts():
    from cairn.vllm.metadata import LoadTimes

    one, two = LoadTimes({"a": (1.0, 2), "b": (0.5, 0)}), LoadTimes({"a": (0.7, 5), "c": (2.0, 0)})
    assert one.aggregate(two).loads == {"a": (1.0, 5), "b": (0.5, 0), "c": (2.0, 0)}


def test_workers_tell_how_long_loads_took():
    import threading

    from cairn.vllm.metadata import LoadJob, LoadTimes, Metadata
    from cairn.vllm.namespace import Plan
    from cairn.vllm.worker import WorkerHalf

    gate = threading.Event()

    class Pages:
        def fence(self):
            return None

        def load(self, job, fence):
            assert job.limit == 0.25
            gate.wait(60)
            return {1}

        def drain(self, seconds):
            return True

        def close(self):
            pass

    store = types.SimpleNamespace(
        options=Options(), counters=Counters(), namespace=bytes(32), close=lambda: None
    )
    half = WorkerHalf(store, Plan(None, BLOCK, True), 0)
    half._pages = Pages()
    half.start_loads(Metadata(bytes(32), [LoadJob("r", [bytes(32)] * 2, 0, [7, 8], 0.25)]))
    assert half.finished(False) == set() and half.take_times() is None
    gate.set()
    while not half.finished(True):
        pass
    times = half.take_times()
    assert isinstance(times, LoadTimes)
    [(seconds, failed)] = times.loads.values()
    assert seconds > 0 and failed == 1
    assert half.take_times() is None
    half.close()
