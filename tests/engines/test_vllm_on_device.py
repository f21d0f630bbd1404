"""The connector's path for GPUs in the real vLLM, on a CPU: `device_connector` has the fake device
copy the engine's pages."""

import pytest

from conftest import CROWD, CROWD_TOKENS, A_LONGER, A, B, Counts, ENGINE, Engine, same, tail


def on_device(node, **settings):
    return {"connector": {"address": node.grpc, **settings}, "on_device": True, **ENGINE}


def test_answers_are_those_without_a_cache(tiny, engine_log, start_node, reference):
    """A second process reads what the first one wrote."""
    node = start_node()
    with Counts(node) as counts:
        with Engine(tiny, engine_log(), **on_device(node)) as engine:
            same(engine.ask(A), reference(A))
        assert counts.blocks() == 31
        with Engine(tiny, engine_log(), **on_device(node)) as engine:
            warm = engine.ask(A)
            same(warm, reference(A))
            assert warm[0]["cached"] == 960
            longer = engine.ask(A_LONGER)
            same(longer, reference(A_LONGER))
            assert longer[0]["cached"] == 960
            same(engine.ask(B), reference(B))


@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize("path", ["host first", "device first"])
def test_bytes_are_those_of_pages_in_host_memory(
    tiny, engine_log, start_node, reference, path, parts
):
    """Both ways of taking pages store the same bytes under the same keys, also in parts."""
    node = start_node()
    connector = {"address": node.grpc, "store_tp": parts}
    ways = [{"connector": connector, **ENGINE}, on_device(node, store_tp=parts)]
    first, second = ways if path == "host first" else reversed(ways)
    with Engine(tiny, engine_log(), **first) as engine:
        same(engine.ask(A), reference(A))
    with Engine(tiny, engine_log(), **second) as engine:
        warm = engine.ask(A)
        same(warm, reference(A))
        assert warm[0]["cached"] == 960


def test_a_crowd_that_preempts_itself(tiny, engine_log, start_node, reference):
    """More requests than the engine has blocks for: they are preempted while their blocks are
    stored."""
    node = start_node()
    with Engine(
        tiny,
        engine_log(),
        **{**on_device(node), "num_gpu_blocks_override": 100, "max_model_len": 1024},
    ) as engine:
        for _ in range(2):
            same(engine.ask(*CROWD, tokens=CROWD_TOKENS), reference(crowded=True))


def test_a_codec_is_refused_because_vllm_packs_keys_on_a_cpu(tiny, engine_log, start_node):
    """vLLM's own operation says so: its CPU kernels want keys in an order of their own."""
    log = engine_log()
    node = start_node()
    with pytest.raises(RuntimeError):
        Engine(tiny, log, **{**on_device(node, codec="int8:group=32"), "dtype": "bfloat16"})
    assert "where K and V lie in the engine's pages is not proved" in tail(log, 400)
