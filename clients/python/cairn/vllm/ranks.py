"""Which of an engine's workers has which part of a block.

A block's parts are a row, one for each worker, pipeline stage by stage:

    pipeline 2, tensor 2       worker  0       1       2       3
                               layers  0..15   0..15   16..31  16..31
                               heads   0..3    4..7    0..3    4..7
                               part    0       1       2       3

With the setting `store_tp`, a worker has several parts (`columns.py`). With decode context
parallelism, a worker has every n-th token of a block instead of all of them, and a block is n times
as long. Workers that have the same bytes share a part, which the first of them stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cairn.vllm.columns import columns_of
from cairn.vllm.drafts import has_draft_kv
from cairn.vllm.pools import specs_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["Ranks", "check_one_rank_only", "rank_of", "ranks_of"]

_SIZES = (
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
)


@dataclass(frozen=True)
class Ranks:
    """The workers of an engine, on which all of them agree."""

    parts: int = 1
    """How many a block has."""
    stages: tuple[int, ...] = ()
    """How many of the model's layers each stage of a pipeline has. Empty: there is one stage."""
    replicas: int = 1
    """As many workers after each other have the same part."""
    token_shards: int = 1
    """A block has this many times the tokens that a worker has of it."""
    context: str = ""
    """How they are distributed, as a text. Empty: they are not."""
    columns: int = 1
    """How many parts a worker has of a block, one after the other."""
    shared: bool = False
    """With engines that have another number of tensor ranks."""

    def parts_of(self, rank: int) -> range:
        """The parts that a worker loads."""
        first = rank // self.replicas * self.columns
        return range(first, first + self.columns)

    def stores(self, rank: int) -> bool:
        """Whether a worker stores its part."""
        return rank % self.replicas == 0

    def most_bytes(self, layer_bytes: int, own_bytes: int) -> int:
        """The bytes of a part at most, which all workers find alike.

        `layer_bytes`: a part of one layer. `own_bytes`: a part at this worker.
        """
        return layer_bytes * max(self.stages) if self.stages else own_bytes

    def described(self, tensor: int) -> str:
        """Everything that decides which bytes a part has. `tensor`: how many ranks share the
        heads."""
        if self.shared:
            return f"store_tp={self.parts}"
        stages = f" pp={'+'.join(str(layers) for layers in self.stages)}" if self.stages else ""
        replicas = f" replicas={self.replicas}" if self.replicas > 1 else ""
        return f"tp={tensor}{stages}{self.context}{replicas}"


def ranks_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, setting: str = "", store_tp: int = 0
) -> Ranks:
    """`setting`: the whole name of `store_tp`.

    ValueError: parts of a block that cannot be told apart, or that not every worker has.
    """
    parallel = vllm_config.parallel_config
    pipeline, decode, prefill = (getattr(parallel, name) for name in _SIZES)
    tensor = parallel.tensor_parallel_size
    groups = kv_cache_config.kv_cache_groups
    for name, size in zip(_SIZES[1:], (decode, prefill)):
        if size > 1 and len(groups) > 1:
            raise ValueError(
                f"setting '{name}': got {size} for a model with {len(groups)} KV cache groups, "
                "expected 1, since groups divide the tokens of a block differently"
            )
    if pipeline > 1:
        if has_draft_kv(vllm_config):
            raise ValueError(
                f"setting '{_SIZES[0]}': got {pipeline} with a draft, expected 1, "
                "since only the last stage has the draft's KV"
            )
        _check_stage(kv_cache_config, pipeline)
    whole = decode == prefill == 1
    sharded = [getattr(spec, "dcp_sharded", True) for group in groups for spec in specs_of(group)]
    replicas = getattr(kv_cache_config, "kv_tp_replicas", 1) if whole else 1  # Since 0.31.
    if tensor % replicas:
        replicas = 1
    if store_tp:
        if pipeline > 1 or not whole:
            raise ValueError(
                f"setting '{setting}': got {store_tp}, expected 0 with pipeline or context "
                "parallelism, which cut a block by other things than heads"
            )
        shards = tensor // replicas
        columns = columns_of(setting, store_tp, shards, vllm_config, kv_cache_config)
        return Ranks(parts=store_tp, replicas=replicas, columns=columns, shared=True)
    return Ranks(
        parts=pipeline * prefill * tensor // replicas,
        stages=_stages(vllm_config, pipeline),
        replicas=replicas,
        token_shards=decode if all(sharded) else 1,
        context=""
        if whole
        else f" dcp={decode}/{parallel.cp_kv_cache_interleave_size} pcp={prefill}",
    )


def _check_stage(kv_cache_config: KVCacheConfig, pipeline: int) -> None:
    """All stages must know the bytes of each other's blocks."""
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        if not group.layer_names:
            raise ValueError(
                f"setting '{_SIZES[0]}': got {pipeline}, expected less: a stage has no layer of "
                f"KV cache group {number}, of which each stage stores a part"
            )
        if hasattr(group.kv_cache_spec, "kv_cache_specs"):
            raise ValueError(
                f"setting '{_SIZES[0]}': got {pipeline}, expected 1: "
                f"layers of KV cache group {number} have blocks of different sizes"
            )


def _stages(vllm_config: VllmConfig, pipeline: int) -> tuple[int, ...]:
    if pipeline == 1:
        return ()
    from vllm.distributed.utils import get_pp_indices

    layers = vllm_config.model_config.get_total_num_hidden_layers()
    cuts = (get_pp_indices(layers, stage, pipeline) for stage in range(pipeline))
    return tuple(end - begin for begin, end in cuts)


def rank_of(vllm_config: VllmConfig) -> int:
    """The place of this worker among those of its engine: stages first, then tensor ranks."""
    parallel: Any = vllm_config.parallel_config
    count = (
        parallel.pipeline_parallel_size
        * parallel.prefill_context_parallel_size
        * parallel.tensor_parallel_size
    )
    return int(parallel.rank % count)


def check_one_rank_only(vllm_config: VllmConfig) -> None:
    """ValueError: workers that differ in more than their heads, where the caller's keys or parts
    tell only those apart."""
    for name in _SIZES:
        if (size := getattr(vllm_config.parallel_config, name)) != 1:
            raise ValueError(f"setting '{name}': got {size}, expected 1")
