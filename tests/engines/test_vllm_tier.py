"""The secondary tier below vLLM's own offloading, in the real engine."""

import contextlib
import hashlib
import os
import pickle

import pytest

import cairn
import layout_models
from conftest import ALONE, ENGINE, HERE, A, B, C, Counts, Engine, numbers, same, wait_until
from kv_events import Published

# The engine's processes import cpu_offload.
PATH = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


def offload(node, **more):
    tier = {"type": "CairnTier", "module_path": "cairn.vllm", "address": node.grpc, **more}
    return {
        "spec_name": "CpuTieringSpec",
        "spec_module_path": "cpu_offload",
        "cpu_bytes_to_use": 64 << 20,
        "secondary_tiers": [tier],
    }


def test_a_second_process_reads_chunks_and_a_failing_node_is_a_miss(
    tiny, engine_log, start_node, reference
):
    node = start_node()
    with Counts(node) as counts:
        with Engine(tiny, engine_log(), PATH, offload=offload(node), **ENGINE, **ALONE) as engine:
            same(engine.ask(A), reference(A))
            # The last chunk's store may wait for a later step.
            same(engine.ask(B), reference(B))
            wait_until(lambda: counts.blocks() >= 60, 20, "60 chunks at the node")
            assert counts.since()["fetched_bytes"] == 0
        with Engine(tiny, engine_log(), PATH, offload=offload(node), **ENGINE, **ALONE) as engine:
            warm = engine.ask(A)
            same(warm, reference(A))
            # All 31 chunks: vLLM itself computes the last token again.
            assert warm[0]["cached"] == 992
            assert counts.since()["fetched_bytes"] > 30 * 32768
            node.freeze()
            same(engine.ask(B), reference(B))
            node.kill()
            same(engine.ask(C), reference(C))


@pytest.mark.parametrize("describe", [False, True], ids=["hashes", "tokens"])
def test_the_nodes_chunks_are_in_the_engines_events(tiny, engine_log, start_node, describe):
    node = start_node()
    settings = {**offload(node), "self_describing_kv_events": describe}
    with (
        Published() as published,
        Counts(node) as counts,
        Engine(
            tiny,
            engine_log(),
            PATH,
            offload=settings,
            kv_events_config=published.config,
            **{**ENGINE, **ALONE, "enable_prefix_caching": True},
        ) as engine,
    ):
        engine.ask(A)
        wait_until(lambda: counts.blocks() >= 30, 20, "30 chunks at the node")
        told, device, seed = {}, {}, 500
        while len(told.keys() & device.keys()) < 30:
            # vLLM publishes in its steps, and only if there is something new.
            engine.ask(numbers(seed, 40))
            seed += 1
            for event in published.stored():
                if event.ownership == "cairn":
                    assert (event.medium, event.locality) == ("CPU", "REMOTE")
                    [hash] = event.block_hashes
                    told[hash] = event.token_ids
                elif event.medium == "GPU":
                    for i, hash in enumerate(event.block_hashes):
                        device[hash] = event.token_ids[i * 32 : (i + 1) * 32]
    # The same hashes as of the engine's own blocks, and the same tokens if vLLM was asked to add
    # them.
    for hash in told.keys() & device.keys():
        assert told[hash] == (device[hash] if describe else [])


# ---- models with several KV cache groups ----


def mask(group):
    """As docs/inside/formats/keys.md has it for pools."""
    if group == 0:
        return 0
    digest = hashlib.sha256(b"cairn.pool.v1" + group.to_bytes(4, "little")).digest()
    return int.from_bytes(digest, "big")


def groups_of(keys, groups):
    """The group of each key: the chunks of one place in a prompt have one hash in all groups."""
    numbers = {int.from_bytes(key, "big") for key in keys}

    def others(number, group):
        """The other groups' chunks of the same place, if the key is of this group."""
        hash = number ^ mask(group)
        return sum(hash ^ mask(other) in numbers for other in range(groups) if other != group)

    # For a wrong group there is one at most, which is the key's own group's.
    found = {}
    for key in keys:
        number = int.from_bytes(key, "big")
        best = max(range(groups), key=lambda group: others(number, group))
        if others(number, best) > 1:
            found[key] = best
    return found


def stored_keys(client):
    """The keys of a node's blocks."""
    found = []
    with client.watch(snapshot=True) as stream:
        while (event := stream.next(20.0)).kind is not cairn.EventKind.SNAPSHOT_END:
            found.append(event.key)
    return found


STATES = {
    "dtype": "bfloat16",
    "block_size": 128,
    "max_num_batched_tokens": 128,
    "enable_prefix_caching": True,
    "prefix_cache_retention_interval": None,
}
HYBRIDS = [
    # Five layers with windows of 96 tokens and one without: a group for each.
    pytest.param("gemma3", 6, {}, id="windows"),
    # Three layers with a state and one with attention. Each block of states is kept.
    pytest.param("qwen3_next", 4, STATES, id="states"),
]


@pytest.mark.parametrize(("name", "groups", "engine"), HYBRIDS)
def test_models_with_several_groups(name, groups, engine, engine_log, start_node, tmp_path):
    """A second process restores what the first one stored. If a node has lost the chunks of one
    group, it computes. Other bytes of one group change the answer: they do reach the model."""
    layout_models.make(name).save_pretrained(tmp_path / name)
    model, ids = tmp_path / name, layout_models.prompt(1)[0].tolist()

    def start(node=None):
        more = {} if node is None else {"offload": offload(node, revision="seed 20")}
        return Engine(model, engine_log(), PATH, **more, **{**ENGINE, **ALONE, **engine})

    def ask(node):
        with start(node) as one:
            [answer] = one.ask(ids)
        return answer

    [expected] = [ask(None)]
    whole, less, wrong = start_node(), start_node(), start_node()
    with Counts(whole) as counts, start(whole) as cold:
        same(cold.ask(ids), [expected])
        # What waits for a later step is stored with the next prompt.
        cold.ask(numbers(5, 40))
        wait_until(lambda: counts.blocks() >= 2 * groups, 20, "chunks at the node")
        cold.send(namespace=True)
        spec = pickle.loads(bytes.fromhex(cold.receive()))
    warm = ask(whole)
    same([warm], [expected])
    assert warm["cached"] >= len(ids) // 2

    with contextlib.ExitStack() as stack:
        source, fewer, broken = (
            stack.enter_context(cairn.Client(node.grpc)) for node in (whole, less, wrong)
        )
        for client in (source, fewer, broken):
            fingerprint = client.open_namespace(spec, deadline=10.0).fingerprint
        group_of = groups_of(stored_keys(source), groups)
        assert set(group_of.values()) == set(range(groups))
        for key in stored_keys(source):
            # A chunk alone at its place is of full attention, which is not the first group.
            group = group_of.get(key)
            row = bytearray(spec.layout.max_part_bytes)
            with source.match(fingerprint, [key], deadline=10.0) as found:
                assert not source.fetch(found.lease, [row]).failed
            for client, data in (
                (fewer, None if group == 0 else row),
                (broken, bytes(byte ^ 0x55 for byte in row) if group == 0 else row),
            ):
                if data is not None:
                    part = cairn.Part(key, bytes(data))
                    assert client.push(fingerprint, [part]) == [None]
    without = ask(less)
    same([without], [expected])
    assert without["cached"] == 0
    with_others = ask(wrong)
    assert with_others["cached"] == warm["cached"]
    # A state's bytes move log-probabilities by 30 times what `same` allows, and no token.
    moved = [abs(a - b) for a, b in zip(with_others["logprobs"], expected["logprobs"])]
    assert with_others["ids"] != expected["ids"] or max(moved) > 0.01
