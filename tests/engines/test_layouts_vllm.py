"""The layouts that vLLM's CPU build runs, through the connector: answers of an engine without it,
cold, in a new process, and after kill -9 of the node."""

import pytest

from conftest import ALONE, ENGINE, Counts, Engine, same
from layout_models import PROMPT_TOKENS, make, prompt


@pytest.fixture
def model(request, tmp_path):
    folder = tmp_path / request.param
    make(request.param).save_pretrained(folder)
    return folder


FULL = PROMPT_TOKENS // ENGINE["block_size"]  # Blocks of a layer without a window.
WINDOWED = 3  # Blocks with one of the last 95 of 288 tokens.
BLOCKS = {
    "mha": FULL,
    "mqa": FULL,
    # A KV cache group for each kind of layer, or several: groups have equally many layers.
    "gemma2": FULL + WINDOWED,
    "gemma3": FULL + 5 * WINDOWED,
    "gpt_oss": FULL + WINDOWED,
    "mistral": WINDOWED,
}


@pytest.mark.parametrize("model", BLOCKS, indirect=True)
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
        assert counts.blocks() == BLOCKS[model.name]
        assert ask() == FULL * ENGINE["block_size"]
        assert counts.since()["fetched_bytes"] > 0
        counts.flush()
    node.kill()
    node = start_node(*disk)
    with Counts(node) as counts:
        assert ask() == FULL * ENGINE["block_size"]
        assert counts.since()["from_disk"] > 0
