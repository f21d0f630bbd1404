"""A store that becomes slow and fast again below the real vLLM: once loading takes longer than
computing, the node is not asked any more, and the answers stay what they are."""

import time

import pytest
import torch
import transformers

import layout_models
import make_model
from conftest import ALONE, ENGINE, Counts, Engine, numbers, same, wait_until
from rows.throttle import Throttle

PROMPTS = [numbers(seed, 992) for seed in (201, 202, 203)]
PROMPT = PROMPTS[0]
HIT = 960
LONG = 120  # Seconds.


@pytest.fixture(params=["one group", "windows"])
def model(request, tmp_path, monkeypatch):
    """Wide between its layers, so that it takes long to compute, and keeps little KV."""
    if request.param == "windows":
        monkeypatch.setitem(layout_models.COMMON, "intermediate_size", 8192)
        made = layout_models.make("gemma3")
    else:
        torch.manual_seed(3)
        config = make_model.llama_config()
        config.intermediate_size = 16384
        made = transformers.LlamaForCausalLM(config).to(torch.float32)
    for name, weights in made.named_parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.01 if "mlp" in name else 0.15)
    made.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def counters(engine):
    engine.send(counters=True)
    return engine.receive()


def unasked(counts):
    return counts["unasked_requests"] + counts["unasked_late_requests"]


def test_a_slow_store_is_not_asked_again_until_it_is_fast(model, engine_log, start_node):
    with Engine(model, engine_log(), **ENGINE, **ALONE) as engine:
        expected = {tuple(prompt): engine.ask(prompt) for prompt in PROMPTS}
    node = start_node()
    connector = {"path": "grpc", "revision": "seed 20", "fetch": "measured", "lookup_timeout": 5.0}
    with (
        Throttle(node.grpc) as wire,
        Engine(
            model, engine_log(), connector={"address": wire.address, **connector}, **ENGINE, **ALONE
        ) as engine,
        Counts(node) as counts,
    ):

        def ask(prompt=PROMPT):
            [answer] = answers = engine.ask(prompt)
            same(answers, expected[tuple(prompt)])
            return answer["cached"]

        # Cold, which says what computing costs; and then from the node.
        for prompt in PROMPTS:
            assert ask(prompt) == 0
        counts.wait_blocks(3 * 31)
        wait_until(lambda: ask() == HIT, LONG, "a hit")

        def not_asked():
            """Nine requests one after the other are computed, and no question reaches the node."""
            before = counters(engine)
            cached = [ask(prompt) for prompt in PROMPTS * 3]
            after = counters(engine)
            return (
                cached == [0] * 9
                and unasked(after) == unasked(before) + 9
                and (after["lookups"], after["loads"]) == (before["lookups"], before["loads"])
            )

        # A prompt takes minutes to load.
        wire.rate, begin = 10_000, time.monotonic()
        wait_until(not_asked, LONG, "requests that do not ask")
        slow = counters(engine)
        assert slow["late_loads"] > 0
        assert slow["probes"] < 2 + (time.monotonic() - begin)

        wire.rate = 1e12
        wait_until(lambda: ask() == HIT, LONG, "a hit after the store is fast again")
        found = counters(engine)
        assert found["probes"] > 0  # The last one may have begun while the wire was slow.
        assert found["internal_errors"] == 0
