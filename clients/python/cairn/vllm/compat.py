"""The differences between the versions of vLLM, and what the adapters use of it.

Versions are told apart by what they have, never by their number. All other files use what is the
same in all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cairn._engine.surface import Implements, Surface
from cairn._engine.versions import check_version
from cairn.types import TierKind

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.tiering.base import JobResult

__all__ = [
    "SURFACE",
    "begin_tier",
    "check",
    "hash_tokens",
    "hit_sources",
    "job_result",
]


def check() -> None:
    """RuntimeError: a version of vLLM that lacks what is used."""
    import vllm

    check_version("vllm", vllm.__version__, SURFACE)


def hit_sources() -> Mapping[TierKind, Any]:
    """The names of tiers in vLLM's metrics. Since 0.32; empty before."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return {}
    return {TierKind.HOST: CacheHitSource.HOST, TierKind.DISK: CacheHitSource.DISK}


def hash_tokens(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int | None:
    """Tokens that one of a request's block hashes stands for. None: as many as a block has."""
    if hasattr(kv_cache_config, "hash_block_size"):  # Since 0.32.
        return kv_cache_config.hash_block_size
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    return resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1]


def begin_tier(
    begin: Callable[..., None], spec: Any, view: memoryview, tier_type: str, detector: Any
) -> None:
    """Calls the `__init__` of a secondary tier's base."""
    if "backpressure_detector" in inspect.signature(begin).parameters:  # Since 0.31.
        begin(spec, view, tier_type, detector)
    else:
        begin(spec, view, tier_type)


def job_result(
    job: int, success: bool, keys: list[Any] | None, seconds: float, size: int
) -> JobResult:
    """A transfer of a tier that has ended, after `seconds` and with `size` bytes."""
    from vllm.v1.kv_offload.tiering.base import JobResult

    more = {}
    if "transfer_bytes" in inspect.signature(JobResult).parameters:  # Since 0.31.
        more["transfer_bytes"] = size
    return JobResult(job, success, successful_keys=keys, transfer_time=seconds, **more)


_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
_OFFLOAD = "vllm.v1.kv_offload"

SURFACE = Surface(
    package="vllm",
    uses={
        _BASE: {
            "KVConnectorBase_V1": (
                "__init__(vllm_config, role, kv_cache_config)",
                "_get_connector_metadata()",
            ),
            "KVConnectorMetadata": None,
            "KVConnectorRole": ("SCHEDULER", "WORKER"),
            "KVConnectorTransferResults": "finished_recving=, failed_recving=",
            "SupportsHMA": ("request_finished_all_groups(request, block_ids)",),
        },
        _METRICS: {
            "KVConnectorStats": ("data",),
            "KVConnectorPromMetrics": (
                "__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)",
                "_counter_cls",
            ),
        },
        "vllm.config.vllm": {
            "VllmConfig": (
                "cache_config",
                "compilation_config",
                "kv_events_config",
                "kv_transfer_config",
                "load_config",
                "lora_config",
                "model_config",
                "parallel_config",
                "speculative_config",
            ),
        },
        "vllm.config.cache": {
            "CacheConfig": ("cache_dtype", "enable_prefix_caching", "prefix_caching_hash_algo"),
        },
        "vllm.config.compilation": {"CompilationConfig": ("static_forward_context",)},
        "vllm.config.kv_events": {"KVEventsConfig": ("enable_kv_cache_events",)},
        "vllm.config.kv_transfer": {
            "KVTransferConfig": (
                "is_kv_consumer",
                "is_kv_producer",
                "kv_connector_extra_config",
                "kv_load_failure_policy",
            ),
        },
        "vllm.config.load": {"LoadConfig": ("load_format",)},
        "vllm.config.model": {
            "ModelConfig": (
                "dtype",
                "get_total_num_hidden_layers()",
                "hf_config",
                "model",
                "multimodal_config",
                "quantization",
                "revision",
                "runner_type",
            ),
        },
        "vllm.config.multimodal": {"MultiModalConfig": ("mm_processor_cache_gb",)},
        "vllm.config.parallel": {
            "ParallelConfig": (
                "cp_kv_cache_interleave_size",
                "decode_context_parallel_size",
                "pipeline_parallel_size",
                "prefill_context_parallel_size",
                "rank",
                "tensor_parallel_size",
            ),
        },
        "vllm.config.speculative": {
            "SpeculativeConfig": (
                "draft_model_config",
                "method",
                "num_speculative_tokens",
                "use_eagle_block_drop()",
            ),
        },
        "vllm.distributed.kv_events": {
            "MEDIUM_CPU": None,
            "MEDIUM_STORAGE": None,
            "BlockRemoved": "block_hashes=, medium=, group_idx=, locality=, ownership=",
            "BlockStored": (
                "block_hashes=, parent_block_hash=, token_ids=, block_size=, lora_id=, medium=, "
                "lora_name=, group_idx=, kv_cache_spec_kind=, kv_cache_spec_sliding_window=, "
                "locality=, ownership="
            ),
        },
        "vllm.distributed.utils": {"get_pp_indices": "num_hidden_layers, pp_rank, pp_size"},
        "vllm.lora.request": {
            "LoRARequest": ("load_inplace", "lora_int_id", "lora_name", "lora_path"),
        },
        "vllm.multimodal.inputs": {"MultiModalFeatureSpec": ("identifier",)},
        "vllm.platforms": {"current_platform": None},
        "vllm.utils.hashing": {"get_hash_fn_by_name": "hash_fn_name"},
        "vllm.v1.core.kv_cache_manager": {"KVCacheBlocks": ("get_block_ids()",)},
        "vllm.v1.core.kv_cache_utils": {
            "get_none_hash_seed": "",
            "maybe_convert_block_hash": "hash_bytes",
            "resolve_none_hash_seed": "hash_fn",
        },
        "vllm.v1.core.sched.output": {
            "CachedRequestData": ("num_computed_tokens", "req_ids"),
            "KVConnectorBlockState": ("boundary_state_offloads", "get_block_ids(req_id)"),
            "NewRequestData": ("num_computed_tokens", "req_id"),
            "SchedulerOutput": (
                "kv_connector_block_state",
                "num_scheduled_tokens",
                "scheduled_cached_reqs",
                "scheduled_new_reqs",
                "total_num_scheduled_tokens",
            ),
        },
        "vllm.v1.kv_cache_interface": {
            "FullAttentionSpec": (
                "block_size",
                "dtype",
                "head_size",
                "head_size_v",
                "num_kv_heads",
                "page_size_bytes",
            ),
            "KVCacheConfig": (
                "kv_cache_groups",
                "kv_cache_layout",
                "kv_cache_tensors",
                "num_blocks",
            ),
            "KVCacheTensor": ("layer_stride", "layers"),
            "KVCacheGroupSpec": ("is_eagle_group", "kv_cache_spec", "layer_names"),
            "MLAAttentionSpec": ("block_size", "page_size_bytes"),
            "MambaSpec": (
                "block_size",
                "mamba_cache_mode",
                "page_size_bytes",
                "state_content_size_bytes",
            ),
            "SlidingWindowSpec": (
                "block_size",
                "extra_retained_tokens",
                "page_size_bytes",
                "sliding_window",
            ),
            "get_kv_cache_spec_kind": "kv_cache_spec",
            "get_kv_cache_spec_sliding_window": "kv_cache_spec",
        },
        f"{_OFFLOAD}.base": {
            "Locality": ("REMOTE",),
            "LookupResult": ("HIT", "MISS", "RETRY"),
            "Medium": ("CPU", "STORAGE"),
            "OffloadingEvent": (
                "keys=, medium=, removed=, locality=, ownership=, removal_expected="
            ),
            "OffloadingSpec": ("blocks_per_chunk", "config", "tokens_per_block"),
            "ReqContext": ("req_id",),
            "RequestOffloadingContext": "",
            "make_offload_key": "block_hash, group_idx",
        },
        f"{_OFFLOAD}.config": {
            "OffloadingConfig": (
                "canonical_layout",
                "groups",
                "kv_cache_layout",
                "model",
                "parallel",
                "replicated_layout",
                "worker_kv_bytes_per_block",
            ),
            "OffloadingModelConfig": ("dtype", "name"),
            "OffloadingParallelConfig": ("dcp_size", "pcp_size", "pp_size", "tp_size"),
        },
        f"{_OFFLOAD}.tiering.async_lookup": {
            "AsyncLookupManager": (
                "__init__(tier_type)",
                "cleanup(req_id)",
                "flush()",
                "lookup(key, req_context)",
                "mark_miss(keys)",
                "shutdown()",
            ),
        },
        f"{_OFFLOAD}.tiering.base": {
            "JobResult": "job_id, success, successful_keys=, transfer_time=",
            "SecondaryTierManager": ("_primary_kv_view",),
            "TransferJob": ("chunk_ids", "is_promotion", "job_id", "keys"),
        },
        "vllm.v1.outputs": {
            "KVConnectorOutput": (
                "failed_recving",
                "finished_recving",
                "invalid_block_ids",
                "kv_connector_worker_meta",
            )
        },
        "vllm.v1.request": {
            "Request": (
                "all_token_ids",
                "block_hashes",
                "cache_salt",
                "lora_request",
                "mm_features",
                "num_preemptions",
                "num_prompt_tokens",
                "num_tokens",
                "pooling_params",
                "prompt_embeds",
                "prompt_token_ids",
                "request_id",
                "shared_prefix_boundary",
                "skip_reading_prefix_cache",
            ),
        },
    },
    implements=(
        Implements(
            _BASE,
            "KVConnectorBase_V1",
            "cairn.vllm.connector",
            "CairnConnector",
            only_some=(
                "get_external_cache_hit_sources",
                "request_finished_all_groups",  # SupportsHMA has it.
                "supports_sleep_mode",
            ),
        ),
        Implements(_METRICS, "KVConnectorStats", "cairn.vllm.metrics", "CairnStats"),
        Implements(_METRICS, "KVConnectorPromMetrics", "cairn.vllm.metrics", "PromMetrics"),
        Implements(
            f"{_OFFLOAD}.tiering.base", "SecondaryTierManager", "cairn.vllm.tier", "CairnTier"
        ),
        Implements(
            f"{_OFFLOAD}.tiering.async_lookup",
            "AsyncLookupManager",
            "cairn.vllm.tier",
            "_Lookups",
            made_here=True,
        ),
    ),
)
"""The parts of vLLM that the adapters use and that all versions have which they start with."""
