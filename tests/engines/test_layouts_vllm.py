"""The layouts that vLLM's CPU build runs, through the connector: answers of an engine without it,
cold, in a new process, and after kill -9 of the node."""

import pytest

from conftest import ALONE, ENGINE, Counts, Engine, same, tail
from layout_models import PROMPT_TOKENS, make, prompt


@pytest.fixture
def model(request, tmp_path):
    folder = tmp_path / request.param
    make(request.param).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model", ["mha", "mqa", "gemma2"], indirect=True)
def test_answers_are_those_without_a_cache(model, engine_log, start_node, tmp_path):
    ids = prompt(1)[0].tolist()
    with Engine(model, engine_log(), **ENGINE, **ALONE) as engine:
        expected = engine.ask(ids)
    disk = ["--disk.path", str(tmp_path / "disk")]
    node = start_node(*disk)

    def ask():
        connector = {"address": node.grpc, "revision": "seed 20", "lookup_timeout": 5.0}
        with Engine(model, engine_log(), connector=connector, **ENGINE) as engine:
            answers = engine.ask(ids)
        same(answers, expected)
        return answers[0]["cached"]

    with Counts(node) as counts:
        assert ask() == 0
        assert counts.blocks() == PROMPT_TOKENS // ENGINE["block_size"]
        assert ask() == PROMPT_TOKENS // ENGINE["block_size"] * ENGINE["block_size"]
        assert counts.since()["fetched_bytes"] > 0
        counts.flush()
    node.kill()
    node = start_node(*disk)
    with Counts(node) as counts:
        assert ask() > 0
        assert counts.since()["from_disk"] > 0


@pytest.mark.parametrize("model", ["mistral"], indirect=True)
def test_windows_in_all_layers_are_refused(model, engine_log, start_node):
    """vLLM gives up the blocks before the window. After a load that failed it would compute on what
    is left there."""
    log = engine_log()
    with pytest.raises(RuntimeError):
        Engine(model, log, connector={"address": start_node().grpc}, **ENGINE)
    assert "groups are SlidingWindowSpec, expected one of full attention" in tail(log, 400)
