"""Prefixes of Hugging Face `generate`: same tokens, hits counted at the node."""

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

import cairn.hf
from cairn._engine import versions
from conftest import Counts, numbers, stored

TOKENS = 500
BLOCKS = TOKENS // 64
GENERATE = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def model(request):
    """Both: heads, layers and sizes differ."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(
        request.getfixturevalue(request.param), dtype=torch.float32
    ).eval()


def block_bytes(model):
    config = model.config
    heads, dim = (
        config.num_key_value_heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    )
    return stored(config.num_hidden_layers * 2 * heads * 64 * dim * 4, config.num_hidden_layers)


def prompt(seed, tokens=TOKENS):
    return torch.tensor([numbers(seed, tokens, below=500)])


def test_cold_and_warm_give_the_model_s_own_tokens(model, start_node):
    ids = prompt(1)
    expected = model.generate(ids, **GENERATE)
    node = start_node()
    with Counts(node) as counts:
        with cairn.hf.PrefixCache(model, address=node.grpc) as prefixes:
            assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
            assert counts.blocks() == BLOCKS and counts.since()["fetched_bytes"] == 0
        with cairn.hf.PrefixCache(model, address=node.grpc) as prefixes:
            assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
            assert counts.since()["fetched_bytes"] == BLOCKS * block_bytes(model)
            # A longer prompt that begins alike, and another one.
            longer = torch.cat([ids, prompt(2, 200)], 1)
            assert torch.equal(
                prefixes.generate(longer, **GENERATE), model.generate(longer, **GENERATE)
            )
            assert counts.since()["fetched_bytes"] == 2 * BLOCKS * block_bytes(model)
            assert counts.blocks() == 700 // 64
            other = prompt(3)
            assert torch.equal(
                prefixes.generate(other, **GENERATE), model.generate(other, **GENERATE)
            )
            assert counts.since()["fetched_bytes"] == 2 * BLOCKS * block_bytes(model)
            assert prefixes.counters()["internal_errors"] == 0


def test_restored_kv_is_what_the_model_computed_bit_for_bit(model, start_node):
    ids = prompt(4)
    with cairn.hf.PrefixCache(model, address=start_node().grpc) as prefixes:
        assert all(layer.get_seq_length() == 0 for layer in prefixes.restore(ids).layers)
        with torch.no_grad():
            computed = model(ids, use_cache=True).past_key_values
        assert prefixes.save(ids, computed) == BLOCKS
        restored = prefixes.restore(ids)
        for ours, theirs in zip(restored.layers, computed.layers, strict=True):
            assert torch.equal(ours.keys, theirs.keys[:, :, : 64 * BLOCKS])
            assert torch.equal(ours.values, theirs.values[:, :, : 64 * BLOCKS])


def test_what_is_loaded_is_used(model, start_node):
    """KV of another prompt under this one's keys changes the tokens, else nothing was loaded."""
    ids, other = prompt(5), prompt(6)
    with cairn.hf.PrefixCache(model, address=start_node().grpc) as prefixes:
        with torch.no_grad():
            assert prefixes.save(ids, model(other, use_cache=True).past_key_values) == BLOCKS
        wrong = prefixes.generate(ids, **GENERATE)
        assert not torch.equal(wrong, model.generate(ids, **GENERATE))


def test_nothing_shorter_than_the_prompt_s_last_token(model, start_node):
    ids = prompt(7, 128)
    with cairn.hf.PrefixCache(model, address=start_node().grpc) as prefixes:
        expected = model.generate(ids, **GENERATE)
        for _ in range(2):
            assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
        assert prefixes.restore(ids).get_seq_length() == 64


def test_a_dead_a_hung_and_a_restarted_node(model, start_node, tmp_path, caplog):
    ids = prompt(8)
    expected = model.generate(ids, **GENERATE)
    node = start_node("--disk.path", str(tmp_path))
    with cairn.hf.PrefixCache(
        model, address=node.grpc, load_timeout=1.0, save_timeout=1.0
    ) as prefixes:
        assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
        with Counts(node) as counts:
            counts.flush()
        node.freeze()
        with caplog.at_level(logging.WARNING, "cairn"):
            assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
        assert "goes on without" in caplog.text
        node.kill()
        assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
        again = start_node("--listen", node.grpc, "--disk.path", str(tmp_path))
        with Counts(again) as counts:
            for _ in range(100):
                assert torch.equal(prefixes.generate(ids, **GENERATE), expected)
                if counts.since()["fetched_bytes"]:
                    break
            assert counts.since()["fetched_bytes"] == BLOCKS * block_bytes(model)
        assert prefixes.counters()["internal_errors"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"attention_mask": torch.tensor([[0] + [1] * 99])},
        {"num_beams": 2},
        {"use_cache": False},
        {"prompt_lookup_num_tokens": 3},
        {"generation_config": GenerationConfig(use_cache=False, **GENERATE)},
        {"generation_config": GenerationConfig(num_beams=3, **GENERATE)},
        {"generation_config": GenerationConfig(prompt_lookup_num_tokens=3, **GENERATE)},
        {"generation_config": GenerationConfig(cache_implementation="static", **GENERATE)},
        {"position_ids": torch.arange(1, 101)[None]},
        {"output_attentions": True},
        {"num_beams": 2, "num_return_sequences": 2},
    ],
    ids=lambda arguments: "+".join(f"{name}" for name in arguments),
)
def test_what_keys_do_not_cover_bypasses_the_cache(model, start_node, arguments):
    ids = prompt(9, 100)
    given = arguments if "generation_config" in arguments else GENERATE | arguments
    node = start_node()
    with Counts(node) as counts, cairn.hf.PrefixCache(model, address=node.grpc) as prefixes:
        prefixes.save(ids, prefixes_of(model, ids))  # There is something to be wrong with.
        assert torch.equal(prefixes.generate(ids, **given), model.generate(ids, **given))
        two = torch.cat([ids, ids])
        assert torch.equal(prefixes.generate(two, **GENERATE), model.generate(two, **GENERATE))
        assert counts.blocks() == 1 and counts.since()["fetched_bytes"] == 0
        assert prefixes.counters()["bypassed_requests"] == 2


def prefixes_of(model, ids):
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    return cache


def test_the_model_s_own_configuration_counts(model, start_node, monkeypatch):
    ids = prompt(10, 100)
    with cairn.hf.PrefixCache(model, address=start_node().grpc) as prefixes:
        prefixes.save(ids, prefixes_of(model, ids))
        monkeypatch.setattr(model.generation_config, "num_beams", 2)
        assert torch.equal(prefixes.generate(ids, **GENERATE), model.generate(ids, **GENERATE))
        assert prefixes.counters()["bypassed_requests"] == 1


def test_arguments_come_as_those_of_the_model(model, start_node):
    ids = prompt(11, 100)
    expected = model.generate(ids, **GENERATE)
    node = start_node()
    with Counts(node) as counts, cairn.hf.PrefixCache(model, address=node.grpc) as prefixes:
        for _ in range(2):
            assert torch.equal(prefixes.generate(ids, GenerationConfig(**GENERATE)), expected)
            assert torch.equal(
                prefixes.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **GENERATE),
                expected,
            )
            assert torch.equal(prefixes.generate(inputs=ids, **GENERATE), expected)
        assert counts.since()["fetched_bytes"] == 5 * block_bytes(model)
        assert prefixes.counters()["bypassed_requests"] == 0
        with pytest.raises((ValueError, TypeError)):
            prefixes.generate(ids, no_such_argument=1)
        with pytest.raises((AttributeError, TypeError, ValueError)):
            prefixes.generate(ids.tolist(), **GENERATE)


def test_wrong_settings_are_named(model):
    with pytest.raises(ValueError, match="'adress' does not exist.*address"):
        cairn.hf.PrefixCache(model, adress="x")
    with pytest.raises(ValueError, match="'lookup_timeout': got 'soon', expected a number"):
        cairn.hf.PrefixCache(model, lookup_timeout="soon")


def test_untested_versions_are_refused(model, monkeypatch):
    monkeypatch.setitem(versions.TESTED, "transformers", versions.Range("98", "99"))
    with pytest.raises(
        RuntimeError, match="transformers 5.* was not tested.*at least 98 and below 99"
    ):
        cairn.hf.PrefixCache(model)
