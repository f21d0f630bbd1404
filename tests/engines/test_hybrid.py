"""Models some of whose layers keep a state, in transformers: their prompts go on at checkpoints,
with the answers that the model gives alone."""

import pytest
import torch
import transformers

import cairn
import cairn.hf
import layout_models
from cairn.hf import hybrid
from conftest import Counts
from layout_models import GENERATE, make, prompt

BLOCK, TOKENS = 64, 300
LAST = TOKENS // BLOCK * BLOCK  # The prompt's last checkpoint.
WITH_LOGITS = GENERATE | {"return_dict_in_generate": True, "output_logits": True}


class Asked:
    """A model, and how many tokens it was given in each step of the last answer's prompt."""

    def __init__(self, name):
        self.model = make(name)
        self.steps = []
        self.model.base_model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, positional, named):
        ids = positional[0] if positional else named["input_ids"]
        self.steps.append(ids.shape[1])

    def ask(self, ids, through=None):
        self.steps = []
        answer = (through or self.model).generate(ids, **WITH_LOGITS)
        self.steps = [tokens for tokens in self.steps if tokens > 1]
        return answer.sequences, torch.stack(answer.logits)

    def cache(self, node, **settings):
        return cairn.hf.HybridCache(
            self.model, address=node.grpc, revision="seed 20", lookup_timeout=5.0, **settings
        )


@pytest.fixture(params=layout_models.STATES)
def asked(request):
    return Asked(request.param)


def same(answer, expected):
    assert torch.equal(answer[0], expected[0])
    torch.testing.assert_close(answer[1], expected[1], atol=1e-3, rtol=0)


def parting(seed, shared):
    """A prompt that begins as prompt(1)."""
    return torch.cat([prompt(1)[:, :shared], prompt(seed)[:, shared:]], dim=1)


def test_cold_warm_and_after_a_restart(asked, start_node, tmp_path):
    expected = asked.ask(prompt(1))
    assert asked.steps == [TOKENS]
    node = start_node("--disk.path", str(tmp_path))
    with Counts(node) as counts:
        with asked.cache(node) as cache:
            same(asked.ask(prompt(1), cache), expected)
            assert asked.steps == [LAST, TOKENS - LAST]
            # Four blocks of keys and values, and one of states.
            assert counts.blocks() == 5
        with asked.cache(node) as cache:
            same(asked.ask(prompt(1), cache), expected)
            assert asked.steps == [TOKENS - LAST]
            assert cache.counters()["internal_errors"] == 0
        counts.flush()
    node.kill()
    again = start_node("--disk.path", str(tmp_path))
    with Counts(again) as counts, asked.cache(again) as cache:
        same(asked.ask(prompt(1), cache), expected)
        assert asked.steps == [TOKENS - LAST]
        assert counts.since()["from_disk"] > 0


def test_where_prompts_part_the_third_one_goes_on(asked, start_node):
    prompts = [prompt(1), parting(2, 170), parting(3, 150)]
    expected = [asked.ask(ids) for ids in prompts]
    steps = []
    with asked.cache(start_node()) as cache:
        for ids, answer in zip(prompts, expected):
            same(asked.ask(ids, cache), answer)
            steps.append(asked.steps)
        assert cache.counters()["internal_errors"] == 0
    # The second one finds keys and values of 128 tokens, and leaves a checkpoint there.
    assert steps == [[256, 44], [128, 128, 44], [128, 44]]


def test_checkpoints_on_the_way(asked, start_node):
    """The interval is rounded up to blocks."""
    longer, shorter = prompt(1), parting(2, 140)
    expected = [asked.ask(ids) for ids in (longer, shorter)]
    with asked.cache(start_node(), state_interval=100) as cache:
        same(asked.ask(longer, cache), expected[0])
        assert asked.steps == [128, 128, 44]
        same(asked.ask(shorter, cache), expected[1])
        assert asked.steps == [128, 44]


def test_prompts_of_less_than_a_block_and_of_whole_blocks(asked, start_node):
    with asked.cache(start_node()) as cache:
        for tokens, steps in ((40, [40]), (64, [64]), (65, [64]), (128, [64])):
            ids = prompt(5, tokens)
            expected = asked.ask(ids)
            same(asked.ask(ids, cache), expected)
            # The last token is never restored. Alone, it is no step of a prompt here.
            assert asked.steps == steps
        assert cache.counters()["internal_errors"] == 0


@pytest.mark.parametrize("pool", [0, 1])
def test_what_is_loaded_is_used(asked, start_node, monkeypatch, pool):
    """Blocks of another prompt in one pool, under this one's keys, change the answer."""
    expected = asked.ask(prompt(1))
    with asked.cache(start_node()) as cache:
        keys = cairn.block_keys(cache._store.namespace, prompt(1)[0].numpy(), BLOCK)
        monkeypatch.setattr(hybrid, "block_keys", lambda *_: keys)
        save = cache._store.save
        for ids, stored in ((prompt(2), pool), (prompt(1), 1 - pool)):
            monkeypatch.setattr(
                cache._store,
                "save",
                lambda parts, sizes, stored=stored: (
                    save(parts, sizes)
                    if parts[0].rect.layer_begin == stored
                    else [True] * len(parts)
                ),
            )
            asked.ask(ids, cache)
            assert asked.steps == [LAST, TOKENS - LAST]
        answer = asked.ask(prompt(1), cache)
        assert asked.steps == [TOKENS - LAST]
        assert not torch.allclose(answer[1], expected[1], atol=1e-3)


def test_states_of_several_parts(asked, start_node, monkeypatch):
    monkeypatch.setattr(hybrid, "MAX_PART", 1000)
    expected, node = asked.ask(prompt(1)), start_node()
    for steps in ([LAST, TOKENS - LAST], [TOKENS - LAST]):
        with asked.cache(node) as cache:
            assert cache._columns > 1
            same(asked.ask(prompt(1), cache), expected)
            assert asked.steps == steps


def test_a_dead_node_and_one_that_dies(asked, start_node):
    expected, node = asked.ask(prompt(1)), start_node()
    with asked.cache(node) as cache:
        same(asked.ask(prompt(1), cache), expected)
        node.kill()
        same(asked.ask(prompt(1), cache), expected)
        assert cache.counters()["internal_errors"] == 0
    with asked.cache(node) as cache:
        same(asked.ask(prompt(1), cache), expected)


def test_models_that_other_classes_are_for_are_refused():
    nobody = {"address": "127.0.0.1:1", "revision": "1"}
    for name in layout_models.STATES:
        with pytest.raises(ValueError, match="layer 0 of the model keeps a state.*HybridCache"):
            cairn.hf.PrefixCache(make(name), **nobody)
    with pytest.raises(ValueError, match="no layer of the model keeps a state: use PrefixCache"):
        cairn.hf.HybridCache(make("mha"), **nobody)
    with pytest.raises(ValueError, match="use EncoderCache"):
        cairn.hf.HybridCache(make("t5"), **nobody)
    alone = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    )
    with pytest.raises(ValueError, match="no layer of the model keeps KV of each token"):
        cairn.hf.HybridCache(alone, **nobody)
    with pytest.raises(ValueError, match="'state_interval': got -1, expected at least 0"):
        cairn.hf.HybridCache(make("lfm2"), state_interval=-1, **nobody)
