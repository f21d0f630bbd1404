"""Which worker of an engine has which part of a block: pipelines, context parallelism and replicas.
Stand-ins replace vLLM."""

import types

import pytest

from vllm_standins import (
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    cache_config,
    engine_config,
    stage_of,
    standing_in,
)

LAYERS, BLOCK = 5, 16
PAGE = BLOCK * 4 * 2 * 2  # Bytes of a block in one layer: 4 numbers of keys and of values.


@pytest.fixture(autouse=True)
def standins(monkeypatch):
    with standing_in(lambda device: 0):
        from vllm.platforms import current_platform

        monkeypatch.setattr(current_platform, "kind", "no GPU")
        yield


def config_of(rank=0, pipeline=1, tensor=1, decode=1, prefill=1, **settings):
    config = engine_config("127.0.0.1:1", **settings)
    vars(config.parallel_config).update(
        rank=rank,
        pipeline_parallel_size=pipeline,
        tensor_parallel_size=tensor,
        decode_context_parallel_size=decode,
        prefill_context_parallel_size=prefill,
    )
    return config


def caches_of(*groups, replicas=1):
    """Groups from (spec, names of its layers)."""
    caches = cache_config(1, 64, BLOCK, 1, 8, "BLHNC")
    caches.kv_tp_replicas = replicas
    caches.kv_cache_groups = [
        types.SimpleNamespace(kv_cache_spec=spec, layer_names=list(names)) for spec, names in groups
    ]
    return caches


def full():
    return FullAttentionSpec(BLOCK, 1, 4, "torch.float16")


def apart():
    """Keys lie apart from values."""
    spec = full()
    spec.num_head_slots = 2
    return spec


class Scaled(FullAttentionSpec):
    @property
    def page_size_bytes(self):
        return super().page_size_bytes + 32


def scaled():
    return Scaled(BLOCK, 1, 4, "torch.float16")


def state():
    return MambaSpec(BLOCK)


def window():
    return SlidingWindowSpec(BLOCK, 1, 4, "torch.float16", 40)


def stage(number, stages):
    """The names of the layers of a stage."""
    return [f"layer{i}" for i in range(*stage_of(LAYERS, number, stages))]


def plan_of(config, caches):
    from cairn.vllm.namespace import make_plan, read_options

    return make_plan(config, caches, read_options(config))


def engine(pipeline, tensor):
    """The plans of the scheduler, which has the first stage's layers, and of each worker."""
    plans = [plan_of(config_of(0, pipeline, tensor), caches_of((full(), stage(0, pipeline))))]
    for rank in range(pipeline * tensor):
        caches = caches_of((full(), stage(rank // tensor, pipeline)))
        plans.append(plan_of(config_of(rank, pipeline, tensor), caches))
    return plans


def test_all_of_an_engine_name_its_kv_alike():
    scheduler, *workers = engine(pipeline=2, tensor=2)
    assert all(worker.spec == scheduler.spec for worker in workers)
    assert all(worker.ranks == scheduler.ranks for worker in workers)
    layout = scheduler.spec.layout
    # Two layers, and three.
    assert (layout.parts, layout.max_part_bytes) == (4, 3 * PAGE)
    assert [worker.own_bytes for worker in workers] == [2 * PAGE, 2 * PAGE, 3 * PAGE, 3 * PAGE]
    assert [list(scheduler.ranks.parts_of(rank)) for rank in range(4)] == [[0], [1], [2], [3]]
    assert all(scheduler.ranks.stores(rank) for rank in range(4))


def test_engines_of_other_shapes_share_nothing():
    specs = [engine(pipeline, tensor)[0].spec for pipeline in (1, 2, 5) for tensor in (1, 2)]
    alone = caches_of((full(), stage(0, 1)))
    for sizes in ({"decode": 2}, {"prefill": 2}, {"decode": 2, "prefill": 2}):
        specs.append(plan_of(config_of(tensor=2, **sizes), alone).spec)
    specs.append(plan_of(config_of(tensor=4), caches_of((full(), stage(0, 1)), replicas=2)).spec)
    assert len({repr(spec) for spec in specs}) == len(specs)


def test_a_pipeline_that_is_cut_elsewhere_shares_nothing(monkeypatch):
    from vllm.distributed import utils

    before = plan_of(config_of(pipeline=2), caches_of((full(), stage(0, 2)))).spec
    ends = [0, 4, LAYERS]
    monkeypatch.setattr(
        utils, "get_pp_indices", lambda layers, stage, stages: (ends[stage], ends[stage + 1])
    )
    after = plan_of(config_of(pipeline=2), caches_of((full(), stage(0, 2)))).spec
    assert (before.layout.max_part_bytes, after.layout.max_part_bytes) == (3 * PAGE, 4 * PAGE)
    assert before.layout.description != after.layout.description


def test_heads_alone_are_named_as_ever():
    layout = engine(pipeline=1, tensor=2)[0].spec.layout
    assert f"page_bytes={PAGE} layers=5 " in layout.description
    assert " tp=2 on " in layout.description


def test_the_first_of_those_with_the_same_bytes_stores_them():
    caches = caches_of((full(), stage(0, 1)), replicas=4)
    plans = [plan_of(config_of(rank, tensor=8), caches) for rank in range(8)]
    ranks = plans[0].ranks
    assert plans[0].spec.layout.parts == 2
    assert [list(ranks.parts_of(rank)) for rank in range(8)] == [[0]] * 4 + [[1]] * 4
    assert [rank for rank in range(8) if ranks.stores(rank)] == [0, 4]


@pytest.mark.parametrize(
    ("tensor", "decode", "prefill", "replicas", "parts"),
    [
        (6, 1, 1, 4, 6),  # Replicas that end between two shards.
        (4, 2, 1, 4, 4),  # Ranks with the same heads have other tokens.
        (2, 1, 2, 2, 4),
    ],
)
def test_where_it_is_not_known_who_has_the_same_bytes_all_store(
    tensor, decode, prefill, replicas, parts
):
    config = config_of(tensor=tensor, decode=decode, prefill=prefill)
    plan = plan_of(config, caches_of((full(), stage(0, 1)), replicas=replicas))
    assert plan.spec.layout.parts == parts
    assert all(plan.ranks.stores(rank) for rank in range(parts))


def test_a_block_of_which_ranks_have_every_second_token_is_twice_as_long():
    caches = caches_of((full(), stage(0, 1)))
    plan = plan_of(config_of(tensor=2, decode=2), caches)
    assert plan.block_tokens == plan.spec.layout.block_tokens == 2 * BLOCK
    assert plan.own_bytes == plan.spec.layout.max_part_bytes == 5 * PAGE
    caches.kv_cache_groups[0].kv_cache_spec.dcp_sharded = False
    assert plan_of(config_of(tensor=2, decode=2), caches).block_tokens == BLOCK


def test_stages_with_several_groups():
    def at(number):
        names = stage(number, 2)
        return plan_of(
            config_of(number, pipeline=2), caches_of((full(), names[:1]), (window(), names[1:]))
        )

    first, last = at(0), at(1)
    assert first.spec == last.spec
    assert [pool.max_part_bytes for pool in first.spec.layout.pools] == [3 * PAGE, 3 * PAGE]
    assert [pool.parts for pool in first.spec.layout.pools] == [2, 2]
    assert [pool.own_bytes for pool in first.pools] == [PAGE, PAGE]
    assert [pool.own_bytes for pool in last.pools] == [PAGE, 2 * PAGE]


def wrapped(names):
    """Layers whose blocks differ, as vLLM tells workers."""
    return types.SimpleNamespace(
        block_size=BLOCK, kv_cache_specs={name: full() for name in names}
    ), names


@pytest.mark.parametrize(
    ("groups", "sizes", "text"),
    [
        (
            lambda: [(full(), ["a"]), (window(), ["b"])],
            {"tensor": 2, "decode": 2},
            "'decode_context_parallel_size': got 2 for a model with 2 KV cache groups, expected 1",
        ),
        (
            lambda: [(full(), ["a"]), (window(), ["b"])],
            {"tensor": 2, "prefill": 2},
            "'prefill_context_parallel_size': got 2 for a model with 2 KV cache groups",
        ),
        (
            lambda: [(full(), ["a"]), (window(), [])],
            {"pipeline": 2},
            "'pipeline_parallel_size': got 2, expected less: a stage has no layer of KV cache "
            "group 1",
        ),
        (
            lambda: [wrapped(["a", "b"])],
            {"pipeline": 2},
            "'pipeline_parallel_size': got 2, expected 1: layers of KV cache group 0 have blocks "
            "of different sizes",
        ),
        (
            lambda: [(full(), ["a"])],
            {"pipeline": 2, "codec": "int8"},
            "codec': got 'int8', expected none: with pipeline or context parallelism",
        ),
    ],
)
def test_what_workers_could_not_agree_on_is_refused(groups, sizes, text):
    with pytest.raises(ValueError, match=text):
        plan_of(config_of(**sizes), caches_of(*groups()))


def test_a_draft_in_a_pipeline_is_refused():
    config = config_of(pipeline=2)
    config.speculative_config = types.SimpleNamespace(
        method="eagle", use_eagle_block_drop=lambda: True
    )
    with pytest.raises(ValueError, match="pipeline_parallel_size': got 2 with a draft, expected 1"):
        plan_of(config, caches_of((full(), ["a"])))


def test_a_worker_s_place_is_that_in_its_own_engine():
    from cairn.vllm.ranks import rank_of

    # Several engines may count their workers together.
    assert [rank_of(config_of(rank, 2, 2)) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rank_of(config_of(5, tensor=2, prefill=2, pipeline=2)) == 5


# ---- the setting store_tp ----

HEADS = 8


def shared_plan(
    tensor, *, store_tp=4, layout="BLHNC", replicas=1, groups=(full, window), **settings
):
    """The plan of an engine with `tensor` ranks of a model with 8 KV heads."""
    config = config_of(tensor=tensor, store_tp=store_tp, **settings)
    config.model_config.get_total_num_kv_heads = lambda: HEADS
    specs = [group() for group in groups]
    for spec in specs:
        if hasattr(spec, "num_kv_heads"):
            spec.num_kv_heads = max(1, HEADS // tensor)
    caches = caches_of(*((spec, [f"group{i}"]) for i, spec in enumerate(specs)), replicas=replicas)
    caches.kv_cache_layout = layout
    return plan_of(config, caches)


@pytest.mark.parametrize("groups", [(full,), (full, window)])
def test_engines_with_any_number_of_ranks_that_divides_it_name_their_kv_alike(groups):
    plans = {tensor: shared_plan(tensor, groups=groups) for tensor in (1, 2, 4)}
    assert len({repr(plan.spec) for plan in plans.values()}) == 1
    spec = plans[1].spec
    layouts = [spec.layout] if len(groups) == 1 else spec.layout.pools
    # Of a quarter of the heads.
    assert [(at.parts, at.max_part_bytes) for at in layouts] == [(4, 2 * PAGE)] * len(groups)
    assert list(plans[1].ranks.parts_of(0)) == [0, 1, 2, 3]
    assert [list(plans[2].ranks.parts_of(rank)) for rank in (0, 1)] == [[0, 1], [2, 3]]
    assert "store_tp=4" in spec.layout.description
    assert "num_kv_heads=2" in spec.layout.description
    assert repr(shared_plan(2, store_tp=2, groups=groups).spec) != repr(spec)


def test_ranks_with_the_same_heads_share_their_parts_with_fewer_ranks():
    many, few = (
        shared_plan(tensor, store_tp=8, replicas=replicas, groups=(full,))
        for tensor, replicas in ((16, 2), (2, 1))
    )
    assert many.spec == few.spec
    assert [list(many.ranks.parts_of(rank)) for rank in (0, 1, 2, 15)] == [[0], [0], [1], [7]]
    assert list(few.ranks.parts_of(1)) == [4, 5, 6, 7]


def test_what_all_ranks_have_alike_is_loaded_by_any_number_of_them(monkeypatch):
    class MLAAttentionSpec(FullAttentionSpec):
        pass

    from vllm.v1 import kv_cache_interface

    monkeypatch.setattr(kv_cache_interface, "MLAAttentionSpec", MLAAttentionSpec)

    def latent():
        return MLAAttentionSpec(BLOCK, 1, 4, "torch.float16")

    def plan(tensor):
        config = config_of(tensor=tensor, store_tp=1)
        config.model_config.get_total_num_kv_heads = lambda: 128
        return plan_of(config, caches_of((latent(), ["layer"]), replicas=tensor))

    assert plan(1).spec == plan(8).spec
    assert [list(plan(8).ranks.parts_of(rank)) for rank in (0, 7)] == [[0], [0]]


@pytest.mark.parametrize(
    ("tensor", "other", "text"),
    [
        (8, {}, "got 4, expected a multiple of 8"),
        (1, {"store_tp": 3}, "a divisor of 8"),
        (1, {"store_tp": 16}, "a divisor of 8"),
        (16, {"store_tp": 16}, "16 ranks store parts of a block, and the model has 8 KV heads"),
        (1, {"layout": "BLNHC"}, "expected 1: pages are in the order BLNHC"),
        (1, {"pipeline": 2}, "expected 0 with pipeline or context"),
        (2, {"decode": 2, "groups": (full,)}, "expected 0 with pipeline or context"),
        (1, {"groups": (full, state)}, "layers of KV cache group 1 keep a state"),
        (1, {"groups": (full, apart)}, "a block of a layer has 2 places for 8 heads"),
        (1, {"groups": (scaled,)}, "has 2080 bytes, and its 1024 keys and values"),
    ],
)
def test_parts_that_are_not_the_same_for_all_are_refused(tensor, other, text):
    with pytest.raises(ValueError, match=f"store_tp': .*{text}"):
        shared_plan(tensor, **other)
