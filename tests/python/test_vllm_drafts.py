"""vLLM's connector with draft models: what is offered, what is stored and when, and whose KV it is.
Stand-ins replace vLLM; the node is real."""

import random
import types

import pytest

import cairn
from conftest import SLOW, wait_until
from test_vllm_pools import World, caches_of, groups_of, standins, tokens_of  # noqa: F401
from vllm_standins import FullAttentionSpec, KVConnectorRole, engine_config

BLOCK = 16


def draft(method="eagle", drops=True, model="draft", tokens=3, **more):
    """A `speculative_config`. `drops`: vLLM drops the last block of a hit."""
    return types.SimpleNamespace(
        method=method,
        num_speculative_tokens=tokens,
        parallel_drafting=False,
        use_eagle_block_drop=lambda: drops and method not in ("draft_model", "ngram"),
        draft_model_config=types.SimpleNamespace(
            model=model,
            revision=None,
            quantization=None,
            dtype="torch.bfloat16",
            hf_config=types.SimpleNamespace(to_dict=lambda: more),
        ),
    )


class OneGroup:
    """A scheduler's half with one KV cache group of the target's layers and the draft's."""

    def __init__(self, node, serial, speculative, **settings):
        from cairn.vllm import CairnConnector

        config = engine_config(
            node.grpc,
            **{"lookup_timeout": SLOW, "revision": str(serial), "draft_revision": "1", **settings},
        )
        config.speculative_config = speculative
        self.configure(config)
        self.connector = CairnConnector(
            config, KVConnectorRole.SCHEDULER, caches_of(groups_of((BLOCK, None)))
        )
        self.half = self.connector._scheduler
        self.layout = self.connector._plan.spec.layout
        self.client = cairn.Client(node.grpc)
        self.namespace = self.client.open_namespace(
            self.connector._plan.spec, deadline=SLOW
        ).fingerprint
        self.names = iter(range(1 << 30))

    def configure(self, config):
        """More of vLLM's configuration."""

    def close(self):
        assert self.count("internal_errors") == 0
        self.connector.shutdown()
        self.client.close()

    def count(self, name):
        return self.connector._store.counters.totals()[name]

    def request(self, tokens, prompt=None):
        return types.SimpleNamespace(
            request_id=str(next(self.names)),
            num_tokens=len(tokens),
            num_prompt_tokens=prompt or len(tokens),
            num_preemptions=0,
            all_token_ids=tokens,
            block_hashes=cairn.block_keys(self.namespace, tokens, BLOCK),
            skip_reading_prefix_cache=False,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            pooling_params=None,
            cache_salt=None,
        )

    def offered(self, tokens, computed=0):
        request = self.request(tokens)
        self.half.on_new_request(request)
        found = []

        def answered():
            found[:] = [self.half.matched_tokens(request, computed)]
            return found[0] is not None

        wait_until(answered, SLOW, "an answer")
        blocks = types.SimpleNamespace(get_block_ids=lambda: ([*range(1, 1 + len(tokens))],))
        self.half.after_alloc(request, blocks, found[0])
        self.half.on_finished(request)
        return found[0]

    def step(self, request, computed, tokens):
        """What is stored after a step: (block's number, key)."""
        found = []
        for save in self.metadata(request, computed, tokens).saves:
            assert save.blocks == [*range(1 + save.first, 1 + save.first + len(save.keys))]
            found += [(save.first + i, key) for i, key in enumerate(save.keys)]
        return found

    def metadata(self, request, computed, tokens):
        ids = [*range(1, 2 + (computed + tokens) // BLOCK)]
        name = request.request_id
        return self.half.build_metadata(
            types.SimpleNamespace(
                scheduled_new_reqs=[
                    types.SimpleNamespace(req_id=name, num_computed_tokens=computed)
                ],
                scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]),
                num_scheduled_tokens={name: tokens},
                total_num_scheduled_tokens=tokens,
                kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda name: [ids]),
            )
        )

    def store(self, tokens):
        """A whole prompt, computed in one step."""
        request = self.request(tokens)
        self.half.on_new_request(request)
        wait_until(lambda: self.half.matched_tokens(request, 0) is not None, SLOW, "an answer")
        saved = self.step(request, 0, len(tokens))
        self.half.on_finished(request)
        data, parent, parts = bytes(self.layout.max_part_bytes), None, []
        for _, key in saved:
            parts.append(cairn.Part(key, data, parent=parent))
            parent = key
        if parts:
            assert self.client.push(self.namespace, parts, deadline=SLOW) == [None] * len(parts)
        return len(parts)


@pytest.fixture
def one_group(node, serial):
    made = []

    def make(speculative, **settings):
        made.append(OneGroup(node, serial(), speculative, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def pools(node, serial):
    made = []

    def make(*sizes, flagged=(), speculative=None, **settings):
        groups = groups_of(*sizes)
        for number, group in enumerate(groups):
            group.is_eagle_group = number in flagged
        speculative = speculative or draft()
        proofs = [int(not flagged or number in flagged) for number in range(len(groups))]
        if not speculative.use_eagle_block_drop():
            proofs = [0] * len(groups)
        settings = {"draft_revision": "1", **settings}
        made.append(World(node, groups, serial(), speculative, proofs, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---- what is offered ----


def test_a_draft_model_s_hit_is_whole(one_group):
    one = one_group(draft("draft_model"))
    assert one.store(tokens_of(1, 160)) == 10
    assert one.offered(tokens_of(1, 160)) == 144
    assert one.offered([*tokens_of(1, 160), 5]) == 160
    assert one.count("draft_shortened_lookups") == 0


def test_the_last_block_is_the_proof_of_those_before_it(one_group):
    one = one_group(draft("eagle"))
    tokens = tokens_of(1, 160)
    one.store(tokens)
    # The proof is the last block, which has the last token of the prompt.
    assert one.offered(tokens) == 144
    assert one.count("draft_shortened_lookups") == 0
    assert one.offered([*tokens, 5]) == 144
    assert one.offered(tokens[:100] + tokens_of(2, 60)) == 80
    assert one.count("draft_shortened_lookups") == 2
    # Longer prompts have the proof of more.
    one.store(tokens + tokens_of(3, 40))
    assert one.offered([*tokens, *tokens_of(3, 17)]) == 160
    assert one.offered(tokens, computed=144) == 0


def test_one_block_alone_proves_nothing(one_group):
    one = one_group(draft("mtp"))
    one.store(tokens_of(1, 16))
    assert one.offered(tokens_of(1, 40)) == 0
    assert one.count("draft_shortened_lookups") == 1


def test_an_operator_may_switch_vllm_s_drop_off(one_group):
    one = one_group(draft("eagle3", drops=False))
    one.store(tokens_of(1, 160))
    assert one.offered([*tokens_of(1, 160), 5]) == 160


@pytest.mark.parametrize("flagged", [(), (0,), (1,), (2,)])
def test_pools_with_a_draft_s_layers_need_a_block_more(pools, flagged):
    one = pools((16, None), (16, 40), (32, None), flagged=flagged, window_interval=0)
    tokens = tokens_of(1, 300)
    assert one.prompt(tokens, chunk=64) == 0
    # There are 18 blocks of 16 and 9 of 32, and the next multiple of 32 below 288 is 256.
    assert one.prompt(tokens) == 256
    assert one.connector._store.counters.totals()["draft_shortened_lookups"] == 1


def test_without_the_draft_s_blocks_the_answer_is_shorter_and_is_counted(pools):
    one = pools((16, None), (16, None), flagged=(1,))
    tokens = tokens_of(1, 320)
    request = one.request(tokens)
    one.half.on_new_request(request)
    saves = one.run_step(request, 0, 320).saves
    one.half.on_finished(request)
    target, own = saves
    assert len(target.keys) == len(own.keys) == 20
    own.keys, own.blocks = own.keys[:10], own.blocks[:10]
    one.push(request, [target, own], 320)
    assert one.prompt(tokens) == 9 * 16
    assert one.connector._store.counters.totals()["draft_shortened_lookups"] == 1


def test_random_models_with_drafts(pools):
    """As the test of models without drafts: what is offered is what plain Python finds, and a
    prompt that was stored comes back to the last place that it proves."""
    draw = random.Random(6)
    hits = 0
    for _ in range(20):
        sizes = [(16 * draw.choice((1, 1, 2, 3)), None)]
        sizes += [
            (16 * draw.choice((1, 2, 4)), draw.choice((None, 1, 2, 16, 17, 33, 100, 1000)))
            for _ in range(draw.randint(1, 3))
        ]
        draw.shuffle(sizes)
        flagged = draw.choice(((), (0,), (len(sizes) - 1,)))
        one = pools(*sizes, flagged=flagged, window_interval=draw.choice((0, 1, 100, 4096)))
        known = [tokens_of(draw.randrange(1000), draw.randint(1, 700))]
        for _ in range(5):
            parent = draw.choice(known)
            tokens = parent[: draw.randint(0, len(parent))] + tokens_of(
                draw.randrange(1000), draw.randint(1, 400)
            )
            known.append(tokens)
            keys = one.unit_keys(tokens)
            expected = one.longest(keys, len(tokens))
            local = one.step * draw.randint(0, 2)
            local = local if local < len(tokens) else 0
            found = one.prompt(tokens, local, draw.choice((64, 100, 1 << 20)))
            assert found == max(0, expected - local), (sizes, flagged)
            hits += found > 0
            if local == 0:
                proven = min(
                    len(tokens) // pool.block_tokens * pool.block_tokens - proof * pool.block_tokens
                    for pool, proof in zip(one.plan.pools, one.proofs)
                )
                end = max(0, min(proven, len(tokens) - 1) // one.step * one.step)
                assert one.longest(keys, len(tokens)) == end, (sizes, flagged)
    assert hits > 15


# ---- what is stored, and when ----


def test_drafted_tokens_are_never_stored(one_group):
    """A step computes tokens that were drafted. Only those that the target has taken are among the
    request's."""
    one = one_group(draft("draft_model"), save_generated=True)
    tokens = tokens_of(1, 40)
    request = one.request(tokens[:33], prompt=31)
    one.half.on_new_request(request)
    assert [block for block, _ in one.step(request, 0, 31)] == [0]
    # Two tokens were taken, and 16 more are drafted: the third block would be full with them.
    assert [block for block, _ in one.step(request, 31, 18)] == [1]
    # All of them were wrong.
    request.all_token_ids = tokens[:34]
    request.num_tokens = 34
    assert one.step(request, 33, 17) == []


def test_while_tokens_are_drafted_an_eagle_head_s_last_block_waits(one_group):
    one = one_group(draft("eagle"), save_generated=True)
    tokens = tokens_of(1, 100)
    request = one.request(tokens[:50], prompt=48)
    one.half.on_new_request(request)
    # The prompt's own blocks do not.
    assert [block for block, _ in one.step(request, 0, 48)] == [0, 1, 2]

    def grow(count):
        request.all_token_ids = tokens[:count]
        request.num_tokens = count
        request.block_hashes = cairn.block_keys(one.namespace, tokens[:count], BLOCK)

    grow(65)
    assert one.step(request, 61, 4) == []
    grow(80)
    assert [block for block, _ in one.step(request, 76, 8)] == [3]


def test_the_same_in_pools(pools):
    one = pools((16, None), (16, None), flagged=(1,), save_generated=True)
    tokens = tokens_of(1, 100)
    request = one.request(tokens[:70], prompt=48)
    one.half.on_new_request(request)
    stored = {}
    for computed, count in ((0, 48), (48, 22)):
        for save in one.run_step(request, computed, count).saves:
            stored.setdefault(save.pool, []).extend(range(save.first, save.first + len(save.keys)))
    assert stored == {0: [0, 1, 2, 3], 1: [0, 1, 2]}


# ---- whose KV it is ----


def spec_of(speculative, **settings):
    from cairn.vllm.namespace import make_plan, read_options

    config = engine_config("127.0.0.1:1", **settings)
    config.speculative_config = speculative
    caches = caches_of(groups_of((BLOCK, None)))
    return make_plan(config, caches, read_options(config)).spec


def test_another_draft_has_another_namespace():
    specs = [
        spec_of(None),
        spec_of(draft("draft_model"), draft_revision="1"),
        spec_of(draft("draft_model"), draft_revision="2"),
        spec_of(draft("draft_model", tokens=4), draft_revision="1"),
        spec_of(draft("eagle"), draft_revision="1"),
        spec_of(draft("draft_model", theta=2), draft_revision="1"),
    ]
    assert len({cairn.fingerprint(spec) for spec in specs}) == len(specs)
    same = spec_of(draft("draft_model", model="elsewhere"), draft_revision="1")
    assert cairn.fingerprint(same) == cairn.fingerprint(specs[1])


def test_without_kv_of_its_own_a_draft_changes_nothing():
    assert cairn.fingerprint(spec_of(draft("ngram"))) == cairn.fingerprint(spec_of(None))


def test_a_draft_s_files_are_found_out(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "draft"
    folder.mkdir()
    seen = set()
    for weights in (b"one", b"another"):
        (folder / "model.safetensors").write_bytes(weights)
        seen.add(cairn.fingerprint(spec_of(draft("eagle", model=str(folder)))))
    assert len(seen) == 2
    # MTP heads are in the target's files, of which the operator has told what they are.
    spec_of(draft("mtp", model="standin"))


@pytest.mark.parametrize(
    ("speculative", "settings", "text"),
    [
        (draft("dflash"), {}, "method': got 'dflash', expected ngram, suffix, draft_model, eagle"),
        (draft("custom_class"), {}, "method': got 'custom_class'"),
        (draft("eagle"), {}, "the draft 'draft' has: name them.*draft_revision'"),
        (draft("eagle"), {"draft_revision": "1", "codec": "turbo:bits=4"}, "codec'.*draft model"),
        (draft("eagle"), {"draft_revision": 1}, "draft_revision': got 1, expected a text"),
    ],
)
def test_drafts_that_are_refused_are_named(speculative, settings, text):
    from cairn.vllm import CairnConnector

    config = engine_config("127.0.0.1:1", **settings)
    config.speculative_config = speculative
    with pytest.raises(ValueError, match=text):
        CairnConnector(config, KVConnectorRole.SCHEDULER, caches_of(groups_of((BLOCK, None))))


def test_a_draft_model_next_to_several_groups_is_refused():
    """vLLM would write its KV over the target's: see tests/engines."""
    from cairn.vllm import CairnConnector

    config = engine_config("127.0.0.1:1", draft_revision="1")
    config.speculative_config = draft("draft_model")
    caches = caches_of(groups_of((16, None), (16, 40)))
    with pytest.raises(ValueError, match="'draft_model' for a model with 2 KV cache groups"):
        CairnConnector(config, KVConnectorRole.SCHEDULER, caches)


@pytest.mark.parametrize("stride", [1, 64])
def test_layers_of_one_group_may_have_blocks_of_different_sizes(stride):
    """vLLM groups a narrow draft's layers with the target's. It tells workers each layer's spec,
    and the scheduler the first one's. `stride`: bytes between layers for a byte of a block."""
    from cairn.vllm.namespace import make_plan, read_options

    config = engine_config("127.0.0.1:1", draft_revision="1")
    config.speculative_config = draft("eagle")
    layers = {
        "layer0": FullAttentionSpec(BLOCK, 4, 4, "torch.float16"),
        "draft0": FullAttentionSpec(BLOCK, 1, 4, "torch.float16"),
    }
    both = types.SimpleNamespace(block_size=BLOCK, kv_cache_specs=layers)
    workers = types.SimpleNamespace(kv_cache_spec=both, layer_names=list(layers))
    scheduler = types.SimpleNamespace(kv_cache_spec=layers["layer0"], layer_names=list(layers))
    other = types.SimpleNamespace(
        kv_cache_spec=FullAttentionSpec(BLOCK, 1, 4, "torch.float16"), layer_names=["layer1"]
    )
    names = {**layers, "layer1": other.kv_cache_spec}

    def plan_of(*groups):
        caches = caches_of(list(groups))
        caches.kv_cache_tensors = [
            types.SimpleNamespace(layers=[name], layer_stride=spec.page_size_bytes * stride)
            for name, spec in names.items()
        ]
        return make_plan(config, caches, read_options(config))

    plans = [plan_of(group) for group in (workers, scheduler)]
    assert plans[0] == plans[1]
    assert plans[0].pools == ()
    assert plans[0].spec.layout.max_part_bytes == BLOCK * (4 + 1) * 4 * 2 * 2
    plans = [plan_of(group, other) for group in (workers, scheduler)]
    assert plans[0] == plans[1]
    assert [pool.own_bytes for pool in plans[0].pools] == [BLOCK * 5 * 4 * 4, BLOCK * 4 * 4]
    config.kv_transfer_config.kv_connector_extra_config["codec"] = "turbo:bits=4"
    config.speculative_config = None
    for group in (workers, scheduler):
        with pytest.raises(ValueError, match="codec'.*layers have KV of different sizes"):
            plan_of(group)
