"""The layouts that vLLM's CPU build runs, through the connector: answers of an engine without it,
cold, in a new process, and after kill -9 of the node."""

import pytest
import torch

from conftest import ALONE, ENGINE, Counts, Engine, same, stored
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
    if len(set(expected[0]["logprobs"])) == 1:
        # Seen of gpt_oss without AVX-512. Any token is right then, whatever the cache brought.
        pytest.skip("vLLM gives every token the same probability with this model on this machine")
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


@pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(),
    reason="without AMX, vLLM keeps no beginnings of prompts of such models to compare with",
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_latent_vector_is_stored_once_and_loaded_by_all_ranks(
    engine_log, start_node, tmp_path, ranks
):
    """Two ranks are compared with themselves, since sums in other orders differ."""
    make("mla").save_pretrained(tmp_path / "mla")
    ids, node = prompt(1)[0].tolist(), start_node()
    setup = {"dtype": "bfloat16", "max_model_len": 2048, "tensor_parallel_size": ranks}
    if ranks == 1:
        setup |= ALONE
    connector = {"address": node.grpc, "revision": "seed 20", "lookup_timeout": 5.0}
    # The rest of a prompt alone gives other tokens than all of it in 16 bits, in vLLM itself too.
    with Engine(tmp_path / "mla", engine_log(), enable_prefix_caching=True, **setup) as engine:
        cold, warm = engine.ask(ids), engine.ask(ids)
    with Counts(node) as counts:
        with Engine(tmp_path / "mla", engine_log(), connector=connector, **setup) as engine:
            same(engine.ask(ids), cold)
        blocks = counts.blocks()
        with Engine(tmp_path / "mla", engine_log(), connector=connector, **setup) as engine:
            answers = engine.ask(ids)
        same(answers, warm)
        tokens = answers[0]["cached"] // blocks
        assert blocks == PROMPT_TOKENS // tokens
        # A block of each layer has 512 + 64 numbers of 16 bits for each token.
        payload = 2 * tokens * 576 * 2
        assert counts.since()["fetched_bytes"] == ranks * blocks * stored(payload)
