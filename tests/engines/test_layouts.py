"""Each way in which layers keep KV, with tiny models of transformers: stored, used again, used by
another process, and found on disk after kill -9, with the answers that the model gives alone."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

import cairn
import cairn.hf
import layout_models
from conftest import BUILD, Counts, stored
from layout_models import GENERATE, PROMPT_TOKENS, cache_for, make, prompt

BLOCK = 64
NAMES = list(layout_models.MODELS)
DECODERS = [name for name in NAMES if name != "t5"]
CLOSE = {"atol": 1e-3, "rtol": 0}
WITH_LOGITS = GENERATE | {"return_dict_in_generate": True, "output_logits": True}

# (heads, dim) of the planes of each layer that keeps KV, and how many others there are.
KEPT = {
    "mha": ([[("k", 4, 32), ("v", 4, 32)]] * 3, 0),
    "mqa": ([[("k", 1, 32), ("v", 1, 32)]] * 3, 0),
    "gqa": ([[("k", 2, 40), ("v", 2, 40)]] * 3, 0),
    "uneven": ([[("k", n, 20), ("v", n, 20)] for n in (6, 2, 1, 3)], 0),
    "deepseek_v2": ([[("latent", 1, 48), ("k_rope", 1, 16)]] * 3, 0),
    "deepseek_v3": ([[("latent", 1, 48), ("k_rope", 1, 16)]] * 3, 0),
    "gemma3n": ([[("k", 2, 32), ("v", 2, 32)]] * 4, 0),  # transformers has no layer for the rest.
    "cla": ([[("k", 2, 20), ("v", 2, 20)]] * 3, 3),
    "yoco": ([[("k", 2, 20), ("v", 2, 20)]] * 4, 3),
    "mistral": ([[("k", 2, 32), ("v", 2, 32)]] * 3, 0),
    "gemma2": ([[("k", 2, 32), ("v", 2, 32)]] * 4, 0),
    "t5": ([[("k", 4, 24), ("v", 4, 24)]] * 3, 0),
}


def blocks_of(name):
    # The last block of an encoder's input is stored, too, filled up.
    return -(-PROMPT_TOKENS // BLOCK) if name == "t5" else PROMPT_TOKENS // BLOCK


def token_bytes(name):
    return sum(4 * heads * dim for layer in KEPT[name][0] for _, heads, dim in layer)


def block_bytes(name):
    layers, empty = KEPT[name]
    return stored(BLOCK * token_bytes(name), len(layers) + empty)


def ask(model, ids, through=None):
    """Tokens and logits."""
    answer = (through or model).generate(ids, **WITH_LOGITS)
    return answer.sequences, torch.stack(answer.logits)


def same(answer, expected):
    assert torch.equal(answer[0], expected[0])
    torch.testing.assert_close(answer[1], expected[1], **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_cold_warm_and_after_a_restart(name, start_node, tmp_path):
    model, ids = make(name), prompt(1)
    expected = ask(model, ids)
    node = start_node("--disk.path", str(tmp_path))
    with Counts(node) as counts:
        with cache_for(model, node.grpc) as cache:
            same(ask(model, ids, cache), expected)
            assert counts.blocks() == blocks_of(name)
            assert counts.since()["fetched_bytes"] == 0
        with cache_for(model, node.grpc) as cache:
            same(ask(model, ids, cache), expected)
            assert counts.since()["fetched_bytes"] == blocks_of(name) * block_bytes(name)
            assert cache.counters()["internal_errors"] == 0
        counts.flush()
    node.kill()
    again = start_node("--disk.path", str(tmp_path))
    with Counts(again) as counts, cache_for(model, again.grpc) as cache:
        same(ask(model, ids, cache), expected)
        assert counts.since()["from_disk"] > 0
        assert counts.since()["fetched_bytes"] == blocks_of(name) * block_bytes(name)
        assert cache.counters()["bypassed_requests"] == 0


def test_another_process_uses_them(start_node):
    node = start_node()
    expected = {}
    for name in NAMES:
        model = make(name)
        with cache_for(model, node.grpc) as cache:
            expected[name] = cache.generate(prompt(1), **GENERATE)[0].tolist()
    script = pathlib.Path(layout_models.__file__)
    with Counts(node) as counts:
        child = subprocess.run(
            [sys.executable, script, "--ask-all", node.grpc],
            check=True,
            stdout=subprocess.PIPE,
            timeout=300,
        )
        answers = json.loads(child.stdout)
        for name in NAMES:
            assert answers[name]["tokens"] == expected[name], name
            assert answers[name]["loaded_blocks"] == blocks_of(name), name
        # It stored what was not asked for again: the prompts' last tokens fill no block.
        assert counts.since()["fetched_bytes"] == sum(
            blocks_of(name) * block_bytes(name) for name in NAMES
        )


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_is_used(name, start_node):
    """KV of another prompt under this one's keys changes the answer, else nothing was loaded."""
    model, ids = make(name), prompt(1)
    with cache_for(model, start_node().grpc) as cache:
        other = prompt(2)
        cache.generate(other, **GENERATE)
        right = cache._keys
        cache._keys = lambda _: right(other)
        wrong = ask(model, ids, cache)
        assert (wrong[1] - ask(model, ids)[1]).abs().max() > 10 * CLOSE["atol"]


@pytest.mark.parametrize("name", DECODERS)
def test_longer_prompts_go_on_from_shorter_ones(name, start_node):
    """In a model with windows, the rest of the prompt needs tokens that left the first one's
    window."""
    model = make(name)
    longer = torch.cat([prompt(1), prompt(3, 200)], 1)
    branch = torch.cat([prompt(1)[:, :200], prompt(4, 150)], 1)
    node = start_node()
    with Counts(node) as counts, cache_for(model, node.grpc) as cache:
        cache.generate(prompt(1), **GENERATE)
        for ids, shared in ((longer, 4), (branch, 3)):
            before = counts.since()["fetched_bytes"]
            same(ask(model, ids, cache), ask(model, ids))
            assert counts.since()["fetched_bytes"] - before == shared * block_bytes(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_namespace_has_the_planes(name, start_node):
    with cache_for(make(name), start_node().grpc) as cache:
        groups = cache._store.spec.layout.groups
        layers, empty = KEPT[name]
        found = [[(p.name, p.heads, p.dim) for p in group.planes] for group in groups]
        assert [planes for planes in found if planes] == layers
        assert found.count([]) == empty


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("uneven", "cla", "yoco")])
def test_cairn_size_says_what_the_node_allocates(name, start_node, tmp_path):
    model = make(name)
    model.config.to_json_file(tmp_path / "config.json")
    said = subprocess.run(
        [BUILD / "bin/cairn", "size", tmp_path, "--recipe", "raw", "--dtype", "f32", "--json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    kinds = {kv["of"]: kv for kv in json.loads(said.stdout)["kv"]}
    kv = kinds["encoder_input" if name == "t5" else "sequence"]
    row = kv["recipes"][0]
    assert kv["raw_bytes_per_token"] == token_bytes(name)
    node = start_node()
    with cache_for(model, node.grpc) as cache:
        cache.generate(prompt(1), **GENERATE)
    with cairn.Client(node.grpc, client_name="engine-tests") as client:
        host = client.stat(deadline=10.0).tiers[0]
    assert host.blocks == blocks_of(name)
    allocated = host.used_bytes / host.blocks
    assert abs(row["block_room_in_host"] / allocated - 1) <= 0.03


def test_a_cache_that_dropped_its_window_is_not_stored(start_node, caplog):
    model, ids = make("mistral"), prompt(1)
    with cache_for(model, start_node().grpc) as cache:
        with torch.no_grad():
            usual = model(ids, use_cache=True).past_key_values
        assert cache.save(ids, usual) == 0
        assert "has only its window" in caplog.text


def test_an_input_with_padding_is_computed(start_node):
    model, ids = make("t5"), prompt(1)
    ids[0, -3:] = model.config.pad_token_id
    with cache_for(model, start_node().grpc) as cache:
        for _ in range(2):
            same(ask(model, ids, cache), ask(model, ids))
        assert cache.counters()["bypassed_requests"] == 2


def test_an_input_that_differs_at_its_end_shares_nothing(start_node):
    """An encoder's first token looks at the last one."""
    model, ids = make("t5"), prompt(1)
    other = ids.clone()
    other[0, -1] += 1 if other[0, -1] < 400 else -1
    node = start_node()
    with Counts(node) as counts, cache_for(model, node.grpc) as cache:
        cache.generate(ids, **GENERATE)
        same(ask(model, other, cache), ask(model, other))
        assert counts.since()["fetched_bytes"] == 0
        assert counts.blocks() == 2 * blocks_of("t5")


def test_each_class_refuses_the_other_one_s_models():
    with pytest.raises(ValueError, match="use EncoderCache"):
        cairn.hf.PrefixCache(make("t5"), address="127.0.0.1:1", revision="1")
    with pytest.raises(ValueError, match="use PrefixCache"):
        cairn.hf.EncoderCache(make("mha"), address="127.0.0.1:1", revision="1")
