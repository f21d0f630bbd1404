"""The connector in the real vLLM, with a model whose layers keep a state: three gated delta nets
and one layer with attention, in blocks of 128 tokens. Where prompts go on, and what may be lost."""

import concurrent.futures
import contextlib
import pathlib
import pickle

import pytest

import layout_models
from conftest import ALONE, ENGINE, Counts, Engine, numbers, same
from test_vllm import flip_bytes
from test_vllm_pools import copy_blocks

# Steps end at 256, 512 and 640 tokens, and the engine keeps what it has at multiples of 256.
FIRST, SECOND = numbers(1, 700), numbers(5, 700)
SIBLINGS = [FIRST[:400] + numbers(seed, 200) for seed in (2, 3)]
CROWD = [numbers(1000 + i, 300) for i in range(6)]
CROWD_TOKENS = 100
STATES = {
    **ENGINE,
    **ALONE,
    "dtype": "bfloat16",  # vLLM's delta nets on a CPU know no other.
    "block_size": 128,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "enable_prefix_caching": True,
    "prefix_cache_retention_interval": 256,
}
# One request at a time, and room for hardly more: 4 blocks of attention, and 3 groups of states.
SMALL = {**STATES, "max_num_seqs": 1, "num_gpu_blocks_override": 20, "max_model_len": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "qwen3_next"
    layout_models.make("qwen3_next").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model, engine_log):
    """Answers without a connector. Steps end in the same places, because the engine's own cache has
    what the node has later: in bfloat16 other steps give other bits."""
    with Engine(model, engine_log(), **STATES) as engine:
        found = {tuple(ids): engine.ask(ids)[0] for ids in (FIRST, SIBLINGS[0], SECOND)}
        found[tuple(SIBLINGS[1])] = engine.ask(SIBLINGS[1])[0]
        crowd = [engine.ask(ids, tokens=CROWD_TOKENS)[0] for ids in CROWD]
    return lambda *prompts, crowded=False: crowd if crowded else [found[tuple(p)] for p in prompts]


def connector(node, **more):
    return {
        "address": node.grpc,
        "revision": "seed 20",
        "lookup_timeout": 5.0,
        "state_interval": 512,
        **more,
    }


def test_prompts_go_on_in_other_processes_and_after_the_node_s_restart(
    model, engine_log, start_node, expected, tmp_path
):
    disk = tmp_path / "disk"
    first = start_node("--disk.path", str(disk))
    again = ("--listen", first.grpc, "--disk.path", str(disk), "--disk.scrub_rate", "0B")

    def start():
        return Engine(model, engine_log(), connector=connector(first), **STATES)

    def asked(engine, ids):
        answers = engine.ask(ids)
        same(answers, expected(ids))
        return answers[0]["cached"]

    with Counts(first) as counts:
        with start() as engine:
            assert asked(engine, FIRST) == 0
            # 5 blocks of attention, and the states of 3 layers after 512 and 640 tokens.
            counts.wait_blocks(11)
            # From the engine's own cache, where 256 is the last state before the prompts part at
            # 384. There the states are stored now, and after 512 tokens, with one block more.
            assert asked(engine, SIBLINGS[0]) == 256
            counts.wait_blocks(18)
            assert asked(engine, SECOND) == 0
            counts.wait_blocks(29)
            assert counts.since()["fetched_bytes"] == 0
        with start() as engine:
            assert [asked(engine, ids) for ids in (FIRST, SIBLINGS[1])] == [640, 384]
            assert counts.since()["matched_tokens"] >= 640
            assert counts.since()["fetched_bytes"] > 0
        # The end of the second sibling: one block of attention, and its states.
        counts.wait_blocks(33)
        assert counts.blocks() == 33
        counts.flush()
    first.kill()
    second = start_node(*again)
    with start() as engine, Counts(second) as counts:
        assert asked(engine, FIRST) == 640
        assert counts.since()["from_disk"] > 0
    second.kill()
    assert flip_bytes(disk) > 0
    third = start_node(*again)
    with start() as engine, Counts(third) as counts:
        # Nothing that is damaged is used, whatever is left.
        for ids in (SECOND, FIRST):
            asked(engine, ids)
        assert counts.since()["corrupt_blocks"] > 0


def test_an_engine_without_room_finds_its_prompts_at_the_node(
    model, engine_log, start_node, expected
):
    """Its own cache has lost them when they come again, and its blocks go from group to group."""
    node = start_node()
    with (
        Counts(node) as counts,
        Engine(model, engine_log(), connector=connector(node), **SMALL) as engine,
    ):
        same(engine.ask(*CROWD, tokens=CROWD_TOKENS), expected(crowded=True))
        counts.wait_blocks(6 * 5)
        for _ in range(2):
            answers = engine.ask(*CROWD, tokens=CROWD_TOKENS)
            same(answers, expected(crowded=True))
            assert [answer["cached"] for answer in answers] == [256] * 6
        assert counts.since()["matched_tokens"] >= 2 * 5 * 256


def test_one_layer_s_states_are_lost_or_wrong(model, engine_log, start_node, expected):
    """Without the last checkpoint of one group, the prompt goes on at an earlier one. Other bytes
    of one group's states change the tokens: they do reach the model."""
    nodes = [start_node() for _ in range(3)]

    def start(node):
        return Engine(model, engine_log(), connector=connector(node), **STATES)

    with contextlib.ExitStack() as stack:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            engines = [stack.enter_context(engine) for engine in pool.map(start, nodes)]
        counts = stack.enter_context(Counts(nodes[0]))
        same(engines[0].ask(FIRST), expected(FIRST))
        counts.wait_blocks(11)
        engines[0].send(namespace=True)
        spec = pickle.loads(bytes.fromhex(engines[0].receive()))
        copy_blocks(spec, *nodes)
        [without], [other] = (engine.ask(FIRST) for engine in engines[1:])
    same([without], expected(FIRST))
    assert without["cached"] == 512
    assert other["cached"] == 640
    assert other["ids"] != expected(FIRST)[0]["ids"]


def test_without_the_engine_s_prefix_cache_the_start_says_what_to_do(model, engine_log, start_node):
    log, setup = engine_log(), {**STATES, "enable_prefix_caching": False}
    with pytest.raises(RuntimeError):
        Engine(model, log, connector=connector(start_node()), **setup)
    told = pathlib.Path(log).read_text(errors="replace")
    assert "start it with --enable-prefix-caching" in told
