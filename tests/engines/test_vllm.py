"""The connector in the real vLLM, with a small random model: every path on which KV is reused, and
every way a node may fail.

Hits are counted at the node. `reference` is the same engine without a connector.
"""

import pickle

import pytest

import cairn
from conftest import (
    ALONE,
    A,
    A_LONGER,
    B,
    BLOCK,
    C,
    CROWD,
    CROWD_TOKENS,
    D,
    ENGINE,
    Counts,
    Engine,
    same,
    stored,
    timed,
)

PAYLOAD = 2 * 2 * BLOCK * 2 * 32 * 4  # Layers, K and V, tokens, heads, head size, float32.
BLOCK_BYTES = stored(PAYLOAD)


@pytest.fixture(scope="session")
def disk(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


def settings(node, **more):
    return {"address": node.grpc, **more}


def test_cold_warm_prefix_and_miss(tiny, engine_log, start_node, reference):
    """A second process reads what the first one wrote: counted to the block."""
    node = start_node()
    with Counts(node) as counts:
        with Engine(tiny, engine_log(), connector=settings(node), **ENGINE) as engine:
            same(engine.ask(A), reference(A))
        # The engine has ended: what it stored is there. 992 tokens are 31 blocks.
        assert counts.blocks() == 31
        assert counts.since()["fetched_bytes"] == 0
        with Engine(tiny, engine_log(), connector=settings(node), **ENGINE) as engine:
            warm = engine.ask(A)
            same(warm, reference(A))
            # The last token is computed, so 30 blocks are of use.
            assert warm[0]["cached"] == 960
            assert counts.since()["fetched_bytes"] == 30 * BLOCK_BYTES
            longer = engine.ask(A_LONGER)
            same(longer, reference(A_LONGER))
            assert longer[0]["cached"] == 960
            assert counts.since()["fetched_bytes"] == 60 * BLOCK_BYTES
            counts.wait_blocks(31 + 9)
            same(engine.ask(B), reference(B))
            assert counts.since()["fetched_bytes"] == 60 * BLOCK_BYTES


def test_faults_while_an_engine_runs(tiny, engine_log, start_node, reference, disk):
    """One engine; its node is killed, comes back from disk, has damaged bytes, hangs."""
    first = start_node("--disk.path", str(disk))
    port = first.grpc.rpartition(":")[2]
    again = ("--listen", f"127.0.0.1:{port}", "--disk.path", str(disk))
    with Engine(tiny, engine_log(), connector=settings(first), **ENGINE, **ALONE) as engine:
        with Counts(first) as counts:
            same(engine.ask(A), reference(A))
            counts.wait_blocks(31)
            counts.flush()
        first.kill()
        # Dead: nothing is lost but time, and not much of it.
        answers, seconds = timed(lambda: engine.ask(A))
        same(answers, reference(A))
        assert answers[0]["cached"] == 0
        assert seconds < 5

        second = start_node(*again)
        with Counts(second) as counts:
            # Back, with an empty memory: the engine finds it by itself, and the blocks come from
            # disk.
            for _ in range(100):
                same(engine.ask(A), reference(A))
                if counts.since()["fetched_bytes"]:
                    break
            assert counts.since()["fetched_bytes"] == 30 * BLOCK_BYTES
            assert counts.since()["from_disk"] > 0
        second.kill()

        assert flip_bytes(disk) > 0
        third = start_node(*again, "--disk.scrub_rate", "0B")
        with Counts(third) as counts:
            for _ in range(100):
                same(engine.ask(A), reference(A))
                if counts.since()["corrupt_blocks"]:
                    break
            assert counts.since()["corrupt_blocks"] > 0
            # Damaged blocks go as they are read, and what was computed instead is stored: soon all
            # is whole again.
            for _ in range(100):
                before = counts.since()["fetched_bytes"]
                same(engine.ask(A), reference(A))
                if (
                    counts.blocks() == 31
                    and counts.since()["fetched_bytes"] - before == 30 * BLOCK_BYTES
                ):
                    break
            corrupt = counts.since()["corrupt_blocks"]
            before = counts.since()["fetched_bytes"]
            same(engine.ask(A), reference(A))
            assert counts.since()["fetched_bytes"] - before == 30 * BLOCK_BYTES
            assert counts.since()["corrupt_blocks"] == corrupt

        third.freeze()
        for prompt in (A, B, C):
            answers, seconds = timed(lambda: engine.ask(prompt))
            same(answers, reference(prompt))
            assert seconds < 5
        third.thaw()
        with Counts(third) as counts:
            for _ in range(200):
                same(engine.ask(D), reference(D))
                if counts.since()["fetched_bytes"]:
                    break
            assert counts.since()["fetched_bytes"] == 30 * BLOCK_BYTES


def flip_bytes(folder):
    """One byte in the middle of every stored page of 4 KiB that has any. Returns how many."""
    flipped = 0
    for path in folder.rglob("*"):
        if not path.is_file() or path.stat().st_size < 1 << 20:
            continue
        with path.open("r+b") as file:
            for offset in range(0, path.stat().st_size, 4096):
                file.seek(offset + 2048)
                byte = file.read(1)
                if byte and byte != b"\0":
                    file.seek(offset + 2048)
                    file.write(bytes([byte[0] ^ 0x55]))
                    flipped += 1
    return flipped


def test_a_crowd_with_preemption_and_two_engines(tiny, engine_log, start_node, reference):
    """Eight requests at once in an engine with room for less, cold and warm; then next to a second
    engine at one node."""
    node = start_node()
    small = {**ENGINE, **ALONE, "num_gpu_blocks_override": 100, "max_model_len": 1024}
    with Counts(node) as counts:
        with (
            Engine(tiny, engine_log(), connector=settings(node), **small) as one,
            Engine(tiny, engine_log(), connector=settings(node), **small) as two,
        ):
            same(one.ask(*CROWD, tokens=CROWD_TOKENS), reference(crowded=True))
            counts.wait_blocks(8 * 15)
            before = counts.since()["fetched_bytes"]
            for engine in (one, two):
                engine.send(prompts=CROWD, tokens=CROWD_TOKENS)
            for engine in (one, two):
                same(engine.receive(), reference(crowded=True))
            # 480 tokens are 15 blocks; 14 of them are of use to a first run, more after a
            # preemption.
            assert counts.since()["fetched_bytes"] - before >= 2 * 8 * 14 * BLOCK_BYTES

            # The node dies under the load of both.
            for engine in (one, two):
                engine.send(prompts=CROWD, tokens=CROWD_TOKENS)
            node.kill()
            for engine in (one, two):
                same(engine.receive(), reference(crowded=True))


def test_chunks_prefix_caching_salts_and_reset(tiny, engine_log, start_node, reference):
    """Local and remote hits in one prompt, prompts computed in pieces, tenants apart, and an engine
    that forgets."""
    node = start_node()
    with Counts(node) as counts:
        options = {
            **ENGINE,
            **ALONE,
            "enable_prefix_caching": True,
            "max_num_batched_tokens": 256,
            "num_gpu_blocks_override": 90,
        }
        with Engine(tiny, engine_log(), connector=settings(node), **options) as engine:
            same(engine.ask(A), reference(A))
            counts.wait_blocks(31)
            same(engine.ask(A), reference(A))
            assert counts.since()["fetched_bytes"] == 0  # The engine's own cache had it.
            # Other prompts push part of it out, and the rest comes from the node.
            same(engine.ask(B, C), reference(B, C))
            same(engine.ask(A), reference(A))
            assert 0 < counts.since()["fetched_bytes"] <= 30 * BLOCK_BYTES

            blocks, fetched = counts.blocks(), counts.since()["fetched_bytes"]
            same(engine.ask(A, salts=["red"]), reference(A))
            counts.wait_blocks(blocks + 31)
            same(engine.ask(A, salts=["blue"]), reference(A))
            counts.wait_blocks(blocks + 62)
            assert counts.since()["fetched_bytes"] == fetched

            engine.send(reset=True)
            assert engine.receive() is True
            blocks, fetched = counts.blocks(), counts.since()["fetched_bytes"]
            same(engine.ask(A), reference(A))
            assert counts.since()["fetched_bytes"] == fetched
            counts.wait_blocks(blocks + 31)


def test_wrong_bytes_under_a_right_checksum_change_the_tokens(
    tiny, engine_log, start_node, reference
):
    """Else the tests above could pass without anything being loaded."""
    right, wrong = start_node(), start_node()
    with Engine(tiny, engine_log(), connector=settings(right), **ENGINE, **ALONE) as engine:
        same(engine.ask(A), reference(A))
        engine.send(namespace=True)
        spec = pickle.loads(bytes.fromhex(engine.receive()))
    with cairn.Client(right.grpc) as source, cairn.Client(wrong.grpc) as target:
        namespace = source.open_namespace(spec, deadline=10).fingerprint
        assert target.open_namespace(spec, deadline=10).fingerprint == namespace
        parents = {}
        with source.watch(namespace, snapshot=True) as events:
            for event in events:
                if event.kind == cairn.EventKind.SNAPSHOT_END:
                    break
                parents[event.parent] = event.key
        keys = [parents[None]]
        while keys[-1] in parents:
            keys.append(parents[keys[-1]])
        assert len(keys) == 31
        with source.match(namespace, keys, deadline=10) as match:
            into = [bytearray(PAYLOAD) for _ in keys]
            source.fetch(match.lease, into)
        swapped = into[1:] + into[:1]
        answers = target.push(
            namespace,
            [
                cairn.Part(key, data, parent=parent, first_position=BLOCK * i)
                for i, (key, data, parent) in enumerate(zip(keys, swapped, [None, *keys]))
            ],
        )
        assert answers == [None] * 31
    with (
        Counts(wrong) as counts,
        Engine(tiny, engine_log(), connector=settings(wrong), **ENGINE, **ALONE) as engine,
    ):
        answers = engine.ask(A)
        assert counts.since()["fetched_bytes"] == 30 * BLOCK_BYTES
        assert answers[0]["ids"] != reference(A)[0]["ids"]


def test_tensor_parallel_ranks_keep_their_own_parts(tiny, engine_log, start_node):
    """Two ranks store and load halves of a block; they are compared with themselves, since sums in
    other orders differ."""
    node, answers = start_node(), []
    with Counts(node) as counts:
        for hits in (0, 30):
            with Engine(
                tiny, engine_log(), connector=settings(node), tensor_parallel_size=2, **ENGINE
            ) as engine:
                before = counts.since()["fetched_bytes"]
                answers.append(engine.ask(A))
                # Over shared memory a lease counts all parts of its blocks, and each rank has one.
                assert counts.since()["fetched_bytes"] - before == hits * 2 * 2 * stored(
                    PAYLOAD // 2
                )
            assert counts.blocks() == 31
    same(*answers)


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)])
def test_engines_with_another_number_of_ranks_share_blocks(
    tiny, engine_log, start_node, reference, ranks
):
    """One stores, and the other one loads what it did not compute itself."""
    node = start_node()
    connector = settings(node, store_tp=2)
    with Counts(node) as counts:
        for hits, count in zip((0, 30), ranks):
            with Engine(
                tiny, engine_log(), connector=connector, tensor_parallel_size=count, **ENGINE
            ) as engine:
                answers = engine.ask(A)
                same(answers, reference(A))
                assert answers[0]["cached"] == hits * BLOCK
        assert counts.blocks() == 31


def test_one_engine_prefills_and_another_one_decodes(tiny, engine_log, start_node, reference):
    node = start_node()
    more = {"connector": settings(node), **ENGINE, **ALONE}
    with Counts(node) as counts:
        with (
            Engine(tiny, engine_log(), role="kv_producer", **more) as prefills,
            Engine(tiny, engine_log(), role="kv_consumer", **more) as decodes,
        ):
            [first] = prefills.ask(A, tokens=1)
            assert first["ids"] == reference(A)[0]["ids"][:1]
            counts.wait_blocks(31)
            answers = decodes.ask(A)
            same(answers, reference(A))
            assert answers[0]["cached"] == 960
            # One only stores, and the other one only loads.
            before = counts.since()["fetched_bytes"]
            same(prefills.ask(A), reference(A))
            assert counts.since()["fetched_bytes"] == before
            same(decodes.ask(B), reference(B))
        # The engines have ended: what they stored is there.
        assert counts.blocks() == 31


def test_stages_of_a_pipeline_keep_their_own_layers(tiny, engine_log, start_node, reference):
    """vLLM's runner for CPUs makes what stages hand over when it warms up, which it skips in eager
    mode."""
    node, compiles_nothing = start_node(), {"VLLM_USE_AOT_COMPILE": "0"}
    with Counts(node) as counts:
        for hits in (0, 30):
            with Engine(
                tiny,
                engine_log(),
                compiles_nothing,
                connector=settings(node),
                pipeline_parallel_size=2,
                enforce_eager=False,
                **ENGINE,
            ) as engine:
                answers = engine.ask(A)
            same(answers, reference(A))
            assert answers[0]["cached"] == hits * BLOCK
            assert counts.blocks() == 31


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"connector": {"adress": "x"}}, "adress.*expected one of"),
        ({"kv_load_failure_policy": "fail"}, "kv_load_failure_policy.*expected 'recompute'"),
    ],
)
def test_wrong_settings_end_the_start_with_their_names(tiny, engine_log, changes, text):
    import re

    from vllm_engine import transfer_config

    options = {**ENGINE}
    transfer = transfer_config(changes.pop("connector", {}), None)
    transfer.update(changes)
    log = engine_log()
    with pytest.raises(RuntimeError):
        Engine(tiny, log, kv_transfer_config=transfer, **options, **ALONE)
    assert re.search(text, log.read_text())
