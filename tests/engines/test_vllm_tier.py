"""The secondary tier below vLLM's own offloading, in the real engine."""

import os

import pytest

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
