"""The scheduler's half of vLLM's connector for models whose layers keep a state: which checkpoints
are stored, from which blocks, and what is offered. Stand-ins replace vLLM; the node is real."""

import dataclasses
import random
import types

import pytest

from test_vllm_pools import (  # noqa: F401
    World,
    caches_of,
    groups_of,
    random_prompts,
    standins,
    tokens_of,
)
from vllm_standins import FullAttentionSpec, KVConnectorRole, MambaSpec, engine_config

NOWHERE = 0


def groups_with_states(*sizes):
    """As `groups_of`; a window "state" keeps states."""
    groups = []
    for number, (tokens, window) in enumerate(sizes):
        if window != "state":
            [group] = groups_of((tokens, window))
        else:
            group = types.SimpleNamespace(kv_cache_spec=MambaSpec(tokens))
        group.layer_names = [f"layer{number}"]
        groups.append(group)
    return groups


class StateWorld(World):
    """Steps end where vLLM ends them: at the ends of states' blocks. What the block table has at a
    state's place is another state, except after a load."""

    def __init__(self, node, groups, serial, **settings):
        super().__init__(node, groups, serial, **settings)
        self.states = [n for n, pool in enumerate(self.plan.pools) if pool.states]
        self.size = max(self.plan.pools[n].block_tokens for n in self.states)

    def source(self, pool, number):
        return super().source(pool, number) + (500_000 if pool in self.states else 0)

    def offers_at(self, tokens):
        """What the engine hands over after a step that ended there."""
        return [
            (pool, self.source(pool, tokens // size - 1), tokens)
            for pool in self.states
            if tokens % (size := self.plan.pools[pool].block_tokens) == 0
        ]

    def compute(self, request, computed, chunk=1 << 20):
        while computed < request.num_tokens:
            end = self.step_end(request, computed, chunk)
            self.offers = {request.request_id: self.offers_at(end)}
            saves = self.run_step(request, computed, end - computed).saves
            computed = end
            self.push(request, saves, computed)
        self.offers = {}
        self.half.on_finished(request)

    def step_end(self, request, computed, chunk):
        if computed >= request.num_prompt_tokens:
            return computed + 1  # An answer grows token by token.
        end = min(request.num_prompt_tokens, computed + chunk)
        aligned = end // self.size * self.size
        if computed < aligned < end < request.num_prompt_tokens:
            end = aligned
        # The end of a block in which a step has begun, the last one's, and where prompts part.
        places = (
            computed + self.size if computed % self.size else 0,
            request.num_prompt_tokens - 1,
            request.shared_prefix_boundary,
        )
        stops = (tokens // self.size * self.size for tokens in places)
        return min((stop for stop in stops if computed < stop < end), default=end)

    def checkpoints(self, request):
        """The lengths of the states at the node, of all pools."""
        return sorted(
            {
                (block + 1) * self.plan.pools[pool].block_tokens
                for pool in self.states
                for block in range(request.num_tokens // self.plan.pools[pool].block_tokens)
                if (pool, self.key(request.block_hashes, pool, block)) in self.stored
            }
        )


@pytest.fixture
def world(node, serial):
    made = []

    def make(*sizes, **settings):
        made.append(StateWorld(node, groups_with_states(*sizes), serial(), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


MODEL = ((16, None), (64, "state"), (64, "state"))


def test_a_prompt_is_restored_to_its_last_checkpoint(world):
    one = world(*MODEL)
    tokens = tokens_of(1, 300)
    assert one.prompt(tokens) == 0
    # 18 blocks of attention, and the states after 256 tokens.
    assert len(one.stored) == 18 + 2
    assert one.prompt(tokens) == 256
    assert one.prompt(tokens + tokens_of(2, 50)) == 256
    # The last token of this one is computed, and nothing is before 256.
    assert one.prompt(tokens[:256]) == 0
    assert one.checkpoints(one.request(tokens)) == [192, 256]
    assert one.prompt(tokens[:256]) == 192


@pytest.mark.parametrize(
    ("interval", "between"), [(0, []), (200, [256, 448, 640, 832]), (1, range(64, 960, 64))]
)
def test_of_the_steps_checkpoints_one_is_kept_in_each_interval(world, interval, between):
    one = world(*MODEL, state_interval=interval)
    tokens = tokens_of(1, 1000)
    one.prompt(tokens, chunk=64)
    assert one.checkpoints(one.request(tokens)) == [*between, 960]
    if interval == 200:
        assert one.prompt(tokens[:700] + tokens_of(2, 30)) == 640


def test_a_checkpoint_is_where_a_step_ended(world):
    """Steps of 1,000 tokens end at 960 and at 1,920: those after 500 and 1,000 are kept there."""
    one = world(*MODEL, state_interval=500)
    tokens = tokens_of(1, 3000)
    one.prompt(tokens, chunk=1000)
    assert one.checkpoints(one.request(tokens)) == [960, 1920, 2880, 2944]


def test_where_the_engine_sees_prompts_part_the_third_one_goes_on(world):
    one = world(*MODEL, state_interval=0)
    first = tokens_of(1, 300)
    one.prompt(first)
    sibling = one.request(first[:170] + tokens_of(2, 100))
    sibling.shared_prefix_boundary = 160
    one.half.on_new_request(sibling)
    assert one.offered(sibling) == 0
    one.allocate(sibling, 0, 0)
    one.compute(sibling, 0)
    assert one.checkpoints(sibling) == [128, 256]
    assert one.prompt(first[:170] + tokens_of(3, 100)) == 128


def one_step(one, request, tokens, offers):
    """The states that are stored after a step over these tokens."""
    one.half.on_new_request(request)
    one.offers = {request.request_id: offers}
    saves = one.run_step(request, 0, tokens).saves
    return [(save.pool, save.blocks, save.first) for save in saves if save.pool in one.states]


def test_only_whole_checkpoints_are_stored(world):
    one = world((16, None), (64, "state"), (32, "state"))
    tokens = tokens_of(1, 300)
    both = [(1, 7, 256), (2, 8, 256)]
    for offers, stored in (
        (both, [(1, [7], 3), (2, [8], 7)]),
        (both[:1], []),
        ([(1, 7, 256), (2, NOWHERE, 256)], []),
        # Within a block of one group, or of all.
        ([(1, 7, 224), (2, 8, 224)], []),
        ([(1, 7, 250), (2, 8, 250)], []),
        # Nothing asked for this place.
        ([(1, 7, 192), (2, 8, 192)], []),
        ([(1, 7, 192), (2, 8, 192), *both], [(1, [7], 3), (2, [8], 7)]),
        ([], []),
    ):
        request = one.request(tokens)
        assert one_step(one, request, 300, offers) == stored, offers
        one.half.on_finished(request)


def test_a_checkpoint_is_stored_once(world):
    one = world(*MODEL)
    request = one.request(tokens_of(1, 300))
    assert len(one_step(one, request, 300, one.offers_at(256))) == 2
    assert one_step(one, request, 300, one.offers_at(256)) == []


def test_a_request_that_does_not_run_stores_nothing(world):
    """After a load, the engine hands over what has just come."""
    one = world(*MODEL)
    request = one.request(tokens_of(1, 300))
    one.half.on_new_request(request)
    one.offers = {request.request_id: one.offers_at(256)}
    assert one.run_step().saves == []


@pytest.mark.parametrize("generated", [False, True])
def test_generated_tokens(world, generated):
    """Where the answer ends is known at its end alone, so each checkpoint is kept there."""
    one = world(*MODEL, save_generated=generated)
    tokens = tokens_of(1, 300)
    request = one.request(tokens, prompt=100)
    one.half.on_new_request(request)
    one.allocate(request, 0, one.offered(request))
    one.compute(request, 0)
    assert one.checkpoints(request) == ([64, 128, 192, 256] if generated else [64])
    assert one.prompt([*tokens, 1]) == (256 if generated else 64)


def test_after_a_failed_load_a_shorter_length_is_offered_and_all_is_stored_again(world):
    one = world(*MODEL, state_interval=128)
    tokens = tokens_of(1, 300)
    one.prompt(tokens, chunk=128)
    request = one.request(tokens)
    assert one.checkpoints(request) == [128, 256]
    one.half.on_new_request(request)
    for length in (256, 128):
        assert one.offered(request) == length
        one.allocate(request, 0, length)
        one.ended(request, failed=True)
    assert one.offered(request) == 0
    one.allocate(request, 0, 0)
    before, one.stored = one.stored, set()
    one.compute(request, 0, chunk=128)
    assert one.stored == before


def test_blocks_that_the_engine_has_are_not_loaded_and_parts_of_blocks_not_written_to(world):
    one = world(*MODEL)
    tokens = tokens_of(1, 300)
    one.prompt(tokens)
    assert one.prompt(tokens, local=192) == 64
    assert one.prompt(tokens, local=256) == 0
    request = one.request(tokens)
    one.half.on_new_request(request)
    assert one.offered(request, local=80) == 0


def test_a_load_without_a_place_for_the_states_is_refused(world):
    from cairn.vllm.metadata import check_places

    one = world(*MODEL)
    tokens = tokens_of(1, 300)
    one.prompt(tokens)
    request = one.request(tokens)
    one.half.on_new_request(request)
    job = one.allocate(request, 0, one.offered(request))
    check_places(job)
    one.ended(request)
    job.pools[1].blocks = []
    with pytest.raises(ValueError, match="no place for the blocks of pool 1 before token 256"):
        check_places(job)


def test_windows_are_stored_where_states_are(world):
    """The window before a checkpoint may begin in a block of an earlier step."""
    one = world((16, None), (16, 100), (64, "state"), window_interval=16, state_interval=100)
    tokens = tokens_of(1, 300)
    one.prompt(tokens, chunk=64)
    request = one.request(tokens)
    assert one.checkpoints(request) == [128, 256]
    windows = [
        block for block in range(18) if (1, one.key(request.block_hashes, 1, block)) in one.stored
    ]
    # The last 99 tokens before 128 and 256, and before the end at 288 that has no state.
    assert set(range(1, 8)) | set(range(9, 16)) <= set(windows)
    assert 0 not in windows and 8 not in windows
    for cut, length in ((200, 128), (300, 256)):
        assert one.prompt(tokens[:cut] + tokens_of(2, 30)) == length


def test_random_models_prompts_and_losses(world):
    """What is offered is the longest length at which every pool has what plain Python says that it
    needs. A prompt that was stored comes back to its last checkpoint."""
    draw = random.Random(6)
    hits = 0
    for _ in range(25):
        size = 16 * draw.choice((1, 2, 4, 34))
        sizes = [(size, "state")] * draw.randint(1, 3)
        sizes += [(draw.choice((16, size)), None)] * draw.randint(0, 1)
        sizes += [(16, draw.choice((2, 17, 100)))] * draw.randint(0, 1)
        draw.shuffle(sizes)
        one = world(*sizes, state_interval=draw.choice((0, 1, 100, 4096)))
        hits += random_prompts(one, draw, most=700, most_local=2)
    assert hits > 25


# ---- the start ----


def test_a_layout_has_the_states_without_their_padding(world):
    one = world((16, None), (544, "state"))
    assert [dataclasses.astuple(pool) for pool in one.plan.spec.layout.pools] == [
        ("group0_full", 16, 256, 1, True),
        ("group1_state", 544, 100, 1, False),
    ]


def draft(method):
    return types.SimpleNamespace(method=method, use_eagle_block_drop=lambda: method == "eagle")


@pytest.mark.parametrize(
    ("state", "where", "changes", "text"),
    [
        (
            {"mamba_cache_mode": "none"},
            "cache_config",
            {"enable_prefix_caching": False},
            "'enable_prefix_caching': got false.*start it with --enable-prefix-caching",
        ),
        (
            {"mamba_cache_mode": "all"},
            "cache_config",
            {},
            "'mamba_cache_mode': got 'all'.*expected 'align'",
        ),
        ({}, "cache_config", {"use_replayssm": True}, "'use_replayssm': got true"),
        (
            {"state_content_size_bytes": (64 << 20) + 1},
            "cache_config",
            {},
            "'tensor_parallel_size': got 1, expected more: the states of 1 layers have 67108865",
        ),
        *[
            ({}, "", {"speculative_config": draft(method)}, f"got '{method}'.*a state.*none")
            for method in ("ngram", "eagle", "mtp")
        ],
    ],
)
def test_setups_that_are_refused_are_named(state, where, changes, text):
    from cairn.vllm import CairnConnector

    config = engine_config("127.0.0.1:1", draft_revision="1")
    for name, value in changes.items():
        setattr(getattr(config, where) if where else config, name, value)
    groups = [
        types.SimpleNamespace(kv_cache_spec=spec, layer_names=["a"])
        for spec in (FullAttentionSpec(16, 1, 4, "torch.float16"), MambaSpec(16, **state))
    ]
    for some in (groups, groups[1:]):
        with pytest.raises(ValueError, match=text):
            CairnConnector(config, KVConnectorRole.SCHEDULER, caches_of(some))


def test_models_without_states_need_no_prefix_cache():
    from cairn.vllm.namespace import make_plan, read_options

    config = engine_config("127.0.0.1:1")
    config.cache_config.enable_prefix_caching = False
    assert make_plan(config, caches_of(groups_of((16, None), (16, 40))), read_options(config)).pools
