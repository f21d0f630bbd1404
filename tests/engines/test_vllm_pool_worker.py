"""The connector's half in a worker of a model with several KV cache groups, without an engine, with
a real node."""

import time

import pytest
import torch

import cairn
from cairn._engine.options import Options
from cairn._engine.pool_store import PoolQuestion, PoolStore
from cairn.vllm.metadata import Metadata, PoolBlocks, PoolLoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.pools import PoolPlan
from cairn.vllm.worker import WorkerHalf
from conftest import wait_until
from test_vllm_worker import LAYERS, PAGE, SIZE, keys_of

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
