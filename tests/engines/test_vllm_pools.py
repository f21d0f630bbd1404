"""The connector in the real vLLM, with a model of several KV cache groups: five layers with windows
of 96 tokens and one with full attention, in blocks of 32. What is reused, and what may be lost."""

import concurrent.futures
import contextlib
import pickle

import pytest

import cairn
import layout_models
from conftest import ALONE, ENGINE, Counts, Engine, numbers, same
from test_vllm import flip_bytes

FIRST = numbers(1, 300)
SIBLINGS = [FIRST[:270] + numbers(seed, 60) for seed in (2, 3)]
CROWD = [numbers(1000 + i, 300) for i in range(6)]
CROWD_TOKENS = 100
# Less than the crowd needs: 6 groups x 10 blocks for a prompt, and more for its answer.
SMALL = {**ENGINE, **ALONE, "num_gpu_blocks_override": 160, "max_model_len": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "gemma3"
    layout_models.make("gemma3").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model, engine_log):
    """Answers without a connector."""
    with Engine(model, engine_log(), **ENGINE, **ALONE) as engine:
        found = {tuple(ids): engine.ask(ids)[0] for ids in (FIRST, *SIBLINGS)}
        crowd = engine.ask(*CROWD, tokens=CROWD_TOKENS)
    return lambda *prompts, crowded=False: crowd if crowded else [found[tuple(p)] for p in prompts]


def settings(node):
    return {"address": node.grpc, "revision": "seed 20", "lookup_timeout": 5.0}


def test_prompts_that_part_a_crowd_and_a_disk_that_lies(
    model, engine_log, start_node, expected, tmp_path
):
    """One engine whose node dies, and comes back with damaged bytes."""
    disk = tmp_path / "disk"
    first = start_node("--disk.path", str(disk))
    again = ("--listen", first.grpc, "--disk.path", str(disk), "--disk.scrub_rate", "0B")
    with Engine(model, engine_log(), connector=settings(first), **SMALL) as engine:
        with Counts(first) as counts:
            cached = []
            # 9 full blocks, and the 3 of each window before 288. Then what is new: 2 full ones, and
            # of each window 1 before 256, where the prompts part, and 2 before 320. Then without
            # that 1.
            for ids, blocks in ((FIRST, 24), (SIBLINGS[0], 41), (SIBLINGS[1], 53), (FIRST, 53)):
                answers = engine.ask(ids)
                same(answers, expected(ids))
                cached.append(answers[0]["cached"])
                counts.wait_blocks(blocks)
            # The first sibling finds where the prompts part, and stores the windows there.
            assert cached == [0, 0, 256, 288]
            # Cold, with preemptions, and warm.
            for _ in range(2):
                same(engine.ask(*CROWD, tokens=CROWD_TOKENS), expected(crowded=True))
            before = counts.since()["matched_tokens"]
            same(engine.ask(*CROWD, tokens=CROWD_TOKENS), expected(crowded=True))
            assert counts.since()["matched_tokens"] - before >= 6 * 288
            counts.flush()
        first.kill()
        answers = engine.ask(FIRST)
        same(answers, expected(FIRST))
        assert answers[0]["cached"] == 0

        assert flip_bytes(disk) > 0
        second = start_node(*again)
        with Counts(second) as counts:
            for _ in range(100):
                same(engine.ask(FIRST), expected(FIRST))
                if counts.since()["corrupt_blocks"]:
                    break
            assert counts.since()["corrupt_blocks"] > 0
            # What was computed instead is stored: soon all is whole again.
            for _ in range(100):
                answers = engine.ask(FIRST)
                same(answers, expected(FIRST))
                if answers[0]["cached"] == 288:
                    break
            assert answers[0]["cached"] == 288
            same(engine.ask(*CROWD, tokens=CROWD_TOKENS), expected(crowded=True))


def test_one_group_s_blocks_are_lost_or_wrong(model, engine_log, start_node, expected):
    """Without the last window of one group, the prompt is restored to an earlier length. Other
    bytes of one group change the tokens: they do reach the model."""
    nodes = [start_node() for _ in range(3)]
    whole, less, wrong = nodes

    def start(node):
        connector = {**settings(node), "window_interval": 128}
        return Engine(model, engine_log(), connector=connector, **ENGINE, **ALONE)

    with contextlib.ExitStack() as stack:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            engines = [stack.enter_context(engine) for engine in pool.map(start, nodes)]
        counts = stack.enter_context(Counts(whole))
        same(engines[0].ask(FIRST), expected(FIRST))
        # The 7 blocks of each window that prompts need after 128, 256 and 288 tokens.
        counts.wait_blocks(9 + 5 * 7)
        engines[0].send(namespace=True)
        spec = pickle.loads(bytes.fromhex(engines[0].receive()))
        copy_blocks(spec, *nodes)
        [without], [other] = (engine.ask(FIRST) for engine in engines[1:])
    same([without], expected(FIRST))
    assert without["cached"] == 256
    assert other["cached"] == 288
    assert other["ids"] != expected(FIRST)[0]["ids"]


def copy_blocks(spec, whole, less, wrong):
    """To `less` without the last block of a window, and to `wrong` with other bytes in that
    window."""
    assert [pool.chained for pool in spec.layout.pools].count(True) == 1
    lost = next(n for n, pool in enumerate(spec.layout.pools) if not pool.chained)
    with contextlib.ExitStack() as stack:
        source, fewer, broken = (
            stack.enter_context(cairn.Client(node.grpc)) for node in (whole, less, wrong)
        )
        for client in (source, fewer, broken):
            namespace = client.open_namespace(spec, deadline=10.0).fingerprint
        last = last_block(source, namespace, spec, lost)
        for event in stored(source, namespace):
            rect = cairn.Rect(event.pool, event.pool + 1, 0, 1)
            data = bytearray(spec.layout.pools[event.pool].max_part_bytes)
            with source.match(namespace, [event.key], deadline=10.0) as found:
                assert not source.fetch(found.lease, [data], rect=rect).failed
            part = cairn.Part(event.key, data, parent=event.parent, rect=rect)
            if event.key != last:
                assert fewer.push(namespace, [part]) == [None]
            if event.pool == lost:
                part = part._replace(data=bytes(reversed(data)))
            assert broken.push(namespace, [part]) == [None]


def stored(client, namespace):
    """The node's blocks, parents before children."""
    found = []
    with client.watch(namespace, snapshot=True) as stream:
        while (event := stream.next(20.0)).kind is not cairn.EventKind.SNAPSHOT_END:
            found.append(event)
    ordered, known = [], {None}
    while found:
        ready = [event for event in found if event.parent in known]
        assert ready, "a block without its parent"
        known.update(event.key for event in ready)
        ordered += ready
        found = [event for event in found if event.key not in known]
    return ordered


def last_block(client, namespace, spec, pool):
    """The key of a pool's last block of the only prompt."""
    full = next(n for n, other in enumerate(spec.layout.pools) if other.chained)
    chain = [event.key for event in stored(client, namespace) if event.pool == full]
    # Masks are their own inverses: the unit's key, then the other pool's.
    [unit] = cairn.pool_keys([chain[-1]], 1, full)
    return cairn.pool_keys([unit], 1, pool)[0]
