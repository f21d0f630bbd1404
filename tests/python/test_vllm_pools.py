"""The scheduler's half of vLLM's connector for models with several KV cache groups: what it offers,
loads and stores, against a real node and plain Python. Stand-ins replace vLLM."""

import dataclasses
import random
import types

import pytest

import cairn
from conftest import SLOW, wait_until
from vllm_standins import (
    FullAttentionSpec,
    KVConnectorRole,
    SlidingWindowSpec,
    cache_config,
    engine_config,
    standing_in,
)


@pytest.fixture(autouse=True)
def standins(monkeypatch):
    with standing_in(lambda device: 0):
        from vllm.platforms import current_platform

        monkeypatch.setattr(current_platform, "kind", "no GPU")
        yield


def groups_of(*sizes):
    """Groups of one layer from (block tokens, window); a window of None is full attention."""
    return [
        types.SimpleNamespace(
            kv_cache_spec=FullAttentionSpec(tokens, 1, 4, "torch.float16")
            if window is None
            else SlidingWindowSpec(tokens, 1, 4, "torch.float16", window),
            layer_names=[f"layer{number}"],
        )
        for number, (tokens, window) in enumerate(sizes)
    ]


def caches_of(groups):
    config = cache_config(1, 64, 16, 1, 8, "BLHNC")
    config.kv_cache_groups = groups
    return config


class World:
    """A scheduler's half, the node, and the blocks that were stored, by pool and key."""

    def __init__(self, node, groups, serial, speculative=None, proofs=None, **settings):
        """`proofs`: by pool, the blocks after a length that must be there."""
        from cairn.vllm import CairnConnector

        config = engine_config(
            node.grpc, **{"lookup_timeout": SLOW, "revision": str(serial), **settings}
        )
        config.speculative_config = speculative
        self.proofs = proofs or [0] * len(groups)
        self.connector = CairnConnector(config, KVConnectorRole.SCHEDULER, caches_of(groups))
        self.half = self.connector._scheduler
        self.plan = self.connector._plan
        self.step = self.half._step
        self.client = cairn.Client(node.grpc)
        self.namespace = self.client.open_namespace(self.plan.spec, deadline=SLOW).fingerprint
        self.stored = set()
        self.offers = {}  # The states that the engine hands over in a step.
        self.names = iter(range(1 << 30))

    def close(self):
        assert self.connector._store.counters.totals()["internal_errors"] == 0
        self.connector.shutdown()
        self.client.close()

    # ---- plain Python: what is at the node, and what that is good for ----

    def unit_keys(self, tokens):
        return cairn.block_keys(self.namespace, tokens, self.plan.block_tokens)

    def key(self, keys, pool, block):
        units = self.plan.pools[pool].block_tokens // self.plan.block_tokens
        return cairn.pool_keys(keys[block * units : (block + 1) * units], units, pool)[0]

    def needed(self, pool, tokens):
        """Blocks of the pool to go on after so many tokens, token by token."""
        size, tail = self.plan.pools[pool].block_tokens, self.plan.pools[pool].tail
        begin = 0 if tail == 0 else max(0, tokens - tail)
        return sorted({token // size for token in range(begin, tokens)})

    def restorable(self, keys, tokens):
        return all(self.pool_has(pool, keys, tokens) for pool in range(len(self.plan.pools)))

    def pool_has(self, pool, keys, tokens):
        end = tokens // self.plan.pools[pool].block_tokens
        blocks = [*self.needed(pool, tokens), *range(end, end + self.proofs[pool])]
        units = self.plan.pools[pool].block_tokens // self.plan.block_tokens
        return all(
            (block + 1) * units <= len(keys) and (pool, self.key(keys, pool, block)) in self.stored
            for block in blocks
        )

    def longest(self, keys, below):
        lengths = range(self.step, below, self.step)
        return max((n for n in lengths if self.restorable(keys, n)), default=0)

    # ---- the engine ----

    def request(self, tokens, prompt=None):
        return types.SimpleNamespace(
            request_id=str(next(self.names)),
            num_tokens=len(tokens),
            num_prompt_tokens=prompt or len(tokens),
            num_preemptions=0,
            all_token_ids=tokens,
            block_hashes=self.unit_keys(tokens),
            shared_prefix_boundary=0,
            skip_reading_prefix_cache=False,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            pooling_params=None,
            cache_salt=None,
        )

    def offered(self, request, local=0):
        found = []

        def answered():
            found[:] = [self.half.matched_tokens(request, local)]
            return found[0] is not None

        wait_until(answered, SLOW, "an answer")
        return found[0]

    def ids(self, tokens, computed):
        """Block ids by group: 0 where a window has gone on. No id is there twice."""
        return tuple(
            [
                0
                if pool.tail and (block + 1) * pool.block_tokens <= computed - pool.tail
                else number * 1000 + block + 1
                for block in range(-(-tokens // pool.block_tokens))
            ]
            for number, pool in enumerate(self.plan.pools)
        )

    def run_step(self, request=None, computed=0, tokens=0):
        ids = self.ids(computed + tokens, computed) if request else ()
        names = [request.request_id] if request else []
        return self.half.build_metadata(
            types.SimpleNamespace(
                scheduled_new_reqs=[
                    types.SimpleNamespace(req_id=name, num_computed_tokens=computed)
                    for name in names
                ],
                scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]),
                num_scheduled_tokens=dict.fromkeys(names, tokens),
                total_num_scheduled_tokens=tokens,
                kv_connector_block_state=types.SimpleNamespace(
                    get_block_ids=lambda name: ids, boundary_state_offloads=self.offers
                ),
            )
        )

    def allocate(self, request, local, external):
        """Returns the load."""
        computed = local + external
        blocks = types.SimpleNamespace(get_block_ids=lambda: self.ids(max(computed, 1), computed))
        self.half.after_alloc(request, blocks, external)
        loads = self.run_step().loads
        if not external:
            assert loads == []
            return None
        [job] = loads
        assert (job.request, job.tokens) == (request.request_id, computed)
        for pool in job.pools:
            size = self.plan.pools[pool.pool].block_tokens
            needed = [b for b in self.needed(pool.pool, computed) if b >= local // size]
            assert [pool.first + i for i in range(len(pool.blocks))] == needed
            assert list(pool.blocks) == [pool.pool * 1000 + block + 1 for block in needed]
        return job

    def ended(self, request, failed=False):
        names = {request.request_id}
        self.half.on_output(
            types.SimpleNamespace(
                finished_recving=names,
                failed_recving=names if failed else set(),
                invalid_block_ids=set(),
                kv_connector_worker_meta=None,
            )
        )

    def compute(self, request, computed, chunk=1 << 20):
        """Steps of at most `chunk` tokens; what they store goes to the node."""
        while computed < request.num_tokens:
            tokens = min(chunk, request.num_tokens - computed)
            saves = self.run_step(request, computed, tokens).saves
            computed += tokens
            self.push(request, saves, computed)
        self.half.on_finished(request)

    def source(self, pool, number):
        """The engine's block with a block of the prompt."""
        return pool * 1000 + number + 1

    def push(self, request, saves, computed):
        parts = []
        for save in saves:
            pool = self.plan.pools[save.pool]
            parent = save.parent
            for i, (key, block) in enumerate(zip(save.keys, save.blocks, strict=True)):
                number = save.first + i
                assert block == self.source(save.pool, number)
                assert (number + 1) * pool.block_tokens <= computed
                assert key == self.key(request.block_hashes, save.pool, number)
                self.stored.add((save.pool, key))
                rect = cairn.Rect(save.pool, save.pool + 1, 0, 1)
                parts.append(cairn.Part(key, bytes(pool.own_bytes), parent=parent, rect=rect))
                parent = key if pool.chained else None
        if parts:
            assert self.client.push(self.namespace, parts, deadline=SLOW) == [None] * len(parts)

    def prompt(self, tokens, local=0, chunk=1 << 20):
        """A whole request. Returns the tokens that came from the node."""
        request = self.request(tokens)
        self.half.on_new_request(request)
        external = self.offered(request, local)
        self.allocate(request, local, external)
        if external:
            self.ended(request)
        self.compute(request, local + external, chunk)
        return external


@pytest.fixture
def world(node, serial):
    made = []

    def make(*sizes, **settings):
        made.append(World(node, groups_of(*sizes), serial(), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tokens_of(seed, count):
    return [(seed * 7919 + i * 31) % 50000 for i in range(count)]


def test_a_prompt_is_restored_to_its_last_block_and_windows_are_stored_by_their_tails(world):
    one = world((16, None), (16, 40), window_interval=0)
    tokens = tokens_of(1, 300)
    assert one.prompt(tokens, chunk=64) == 0
    # 18 full blocks; of the windows, those with one of the last 39 tokens before 288.
    assert len(one.stored) == 18 + 3
    assert one.prompt(tokens) == 288
    assert one.prompt(tokens[:288]) == 0  # Its last token is computed, and 272 has no window.
    assert len(one.stored) == 18 + 3 + 1
    assert one.prompt(tokens[:288]) == 272
    assert one.prompt(tokens + tokens_of(2, 50)) == 288


def test_where_prompts_part_the_third_one_goes_on(world):
    one = world((16, None), (16, 40), window_interval=0)
    first = tokens_of(1, 300)
    siblings = [first[:170] + tokens_of(seed, 100) for seed in (2, 3, 4)]
    one.prompt(first)
    assert [one.prompt(tokens) for tokens in siblings] == [0, 160, 160]


def test_the_engine_s_own_junctions_are_boundaries(world):
    one = world((16, None), (16, 40), window_interval=0)
    tokens = tokens_of(1, 300)
    request = one.request(tokens)
    request.shared_prefix_boundary = 130
    one.half.on_new_request(request)
    one.offered(request)
    one.allocate(request, 0, 0)
    one.compute(request, 0)
    assert one.prompt(tokens[:140] + tokens_of(2, 30)) == 128


def test_prompts_go_on_after_each_interval(world):
    one = world((16, None), (32, 40), window_interval=100)
    tokens = tokens_of(1, 500)
    one.prompt(tokens)
    # Multiples of 96, the largest multiple of all block lengths below 100.
    assert one.prompt(tokens[:300] + tokens_of(2, 30)) == 288
    assert one.prompt(tokens[:280] + tokens_of(3, 30)) == 192


def test_of_a_prompt_that_is_too_long_for_one_question_the_beginning_is_found(world):
    one = world((16, None), *[(16, 17)] * 31)
    tokens = tokens_of(1, 140_000)
    one.prompt(tokens, chunk=8192)
    # A node answers for 262,144 blocks: those of 8,192 units in 32 pools.
    assert one.prompt(tokens) == 131_072


def test_blocks_that_the_engine_has_are_not_loaded(world):
    one = world((16, None), (32, 70))
    tokens = tokens_of(1, 300)
    one.prompt(tokens)
    assert one.prompt(tokens, local=256) == 32
    assert one.prompt(tokens, local=288) == 0


def test_after_a_failed_load_a_shorter_length_is_offered_and_then_none(world):
    one = world((16, None), (16, 40), window_interval=64)
    tokens = tokens_of(1, 300)
    one.prompt(tokens)
    request = one.request(tokens)
    one.half.on_new_request(request)
    # The windows at 256 and at 288 have all that 272 needs.
    for length in (288, 272):
        assert one.offered(request) == length
        one.allocate(request, 0, length)
        one.ended(request, failed=True)
    assert one.offered(request) == 0
    one.allocate(request, 0, 0)
    # All of it is stored again, because the node has lost some block.
    before, one.stored = one.stored, set()
    one.compute(request, 0)
    assert one.stored == before


def test_a_request_that_ends_while_it_loads_leaves_nothing(world):
    one = world((16, None), (16, 40))
    tokens = tokens_of(1, 300)
    one.prompt(tokens)
    request = one.request(tokens)
    one.half.on_new_request(request)
    one.allocate(request, 0, one.offered(request))
    one.half.on_finished(request)
    one.ended(request, failed=True)
    assert not (one.half._requests or one.half._loading or one.half._progress)


def test_generated_tokens(world):
    """Where the answer ends is known at its end alone, so windows are stored whole there."""
    for generated, blocks in ((False, (6 + 3)), (True, 18 + 3 + 12)):
        one = world((16, None), (16, 40), save_generated=generated, window_interval=0)
        tokens = tokens_of(1, 300)
        request = one.request(tokens, prompt=100)
        one.half.on_new_request(request)
        one.allocate(request, 0, one.offered(request))
        one.compute(request, 0, chunk=50)
        assert len(one.stored) == blocks
        assert one.prompt([*tokens, 1]) == (288 if generated else 96)


def random_prompts(one, draw, most, most_local):
    """Prompts of which some go on where others were, each with what plain Python expects: `most`
    tokens more, after at most `most_local` steps that the engine has itself. How many were hits."""
    known, hits = [tokens_of(draw.randrange(1000), draw.randint(1, 700))], 0
    for _ in range(5):
        parent = draw.choice(known)
        tokens = parent[: draw.randint(0, len(parent))] + tokens_of(
            draw.randrange(1000), draw.randint(1, most)
        )
        known.append(tokens)
        expected = one.longest(one.unit_keys(tokens), len(tokens))
        local = one.step * draw.randint(0, most_local)
        local = local if local < len(tokens) else 0
        found = one.prompt(tokens, local, draw.choice((64, 100, 1 << 20)))
        assert found == max(0, expected - local), one.plan.pools
        hits += found > 0
        if local == 0:
            end = (len(tokens) - 1) // one.step * one.step
            assert one.longest(one.unit_keys(tokens), len(tokens)) == end, one.plan.pools
    return hits


def test_random_models_prompts_and_losses(world):
    """What is offered is the longest length at which every pool has what plain Python says that it
    needs. A prompt that was stored comes back to its end."""
    draw = random.Random(5)
    hits = 0
    for _ in range(25):
        sizes = [(16 * draw.choice((1, 1, 2, 3)), None)]
        sizes += [
            (16 * draw.choice((1, 2, 4)), draw.choice((1, 2, 16, 17, 33, 64, 100, 1000)))
            for _ in range(draw.randint(1, 3))
        ]
        draw.shuffle(sizes)
        one = world(*sizes, window_interval=draw.choice((0, 1, 100, 4096)))
        hits += random_prompts(one, draw, most=400, most_local=3)
    assert hits > 25


# ---- the start ----


@pytest.mark.parametrize(
    ("groups", "settings", "text"),
    [
        (
            [FullAttentionSpec(16, 1, 4, "torch.float16"), types.SimpleNamespace(block_size=16)],
            {},
            "FullAttentionSpec, SimpleNamespace, expected full attention, sliding windows and",
        ),
        (
            [SlidingWindowSpec(16, 1, 4, "torch.float16", 40 + i) for i in range(33)],
            {},
            "33 KV cache groups, expected at most 32",
        ),
        (
            [SlidingWindowSpec(16, 1, 4, "torch.float16", 40)],
            {"codec": "turbo:bits=4"},
            "codec': got 'turbo:bits=4', expected none",
        ),
        (
            [SlidingWindowSpec(65536, 1, 4, "torch.float16", 40)],
            {},
            "block_size': got 65536, expected at most 65535",
        ),
        (
            [SlidingWindowSpec(16, 1 << 20, 4, "torch.float16", 40)],
            {},
            "a block of 16 tokens has 268435456 bytes on each rank, expected at most 67108864",
        ),
    ],
)
def test_models_that_are_refused_are_named(groups, settings, text):
    from cairn.vllm import CairnConnector

    caches = caches_of(
        [types.SimpleNamespace(kv_cache_spec=spec, layer_names=["a"]) for spec in groups]
    )
    with pytest.raises(ValueError, match=text):
        CairnConnector(engine_config("127.0.0.1:1", **settings), KVConnectorRole.SCHEDULER, caches)


def test_a_layout_has_a_pool_for_each_group_and_models_of_one_group_have_none(world):
    one = world((16, None), (32, 70))
    layout = one.plan.spec.layout
    assert layout.block_tokens == 16
    assert [dataclasses.astuple(pool) for pool in layout.pools] == [
        ("group0_full", 16, 256, 1, True),
        ("group1_window_70", 32, 512, 1, False),
    ]
    from cairn.vllm.namespace import make_plan, read_options

    config = engine_config("127.0.0.1:1")
    plan = make_plan(config, caches_of(groups_of((16, None))), read_options(config))
    assert plan.pools == () and isinstance(plan.spec.layout, cairn.OpaqueLayout)
