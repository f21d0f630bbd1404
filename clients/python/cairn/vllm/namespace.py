"""Makes the namespace of vLLM's KV, and refuses setups whose KV cannot be named correctly."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cairn import _native
from cairn._engine.limits import MAX_BLOCK_TOKENS, MAX_PART
from cairn._engine.options import Options
from cairn._engine.weights import weights_revision
from cairn.errors import Error
from cairn.types import NamespaceSpec, OpaqueLayout, PooledLayout
from cairn.vllm import compat
from cairn.vllm.adapters import AdapterRules, adapter_rules
from cairn.vllm.columns import spec_of_column
from cairn.vllm.drafts import (
    check_drafts,
    check_groups,
    draft_identity,
    has_draft_kv,
    needs_proof,
)
from cairn.vllm.inputs import KnownInputs, known_inputs
from cairn.vllm.options import ConnectorOptions
from cairn.vllm.pools import PoolPlan, first_spec, is_full_attention, layer_bytes, make_pools
from cairn.vllm.ranks import Ranks, ranks_of
from cairn.vllm.states import check_states

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = [
    "EXTRA",
    "Coding",
    "Plan",
    "check_config",
    "machine",
    "make_plan",
    "numerics_of",
    "read_options",
    "revision_of",
]

EXTRA = "kv_connector_extra_config."

_CODED_TOKENS = (16, 32, 64, 128, 256)
_MAX_DESCRIPTION = 1024
# Hashes that nobody can find a second input for; they cover tokens, salt and all before the block.
_SAFE_HASHES = ("sha256", "sha256_cbor")


@dataclass(frozen=True)
class Coding:
    """In what blocks are stored, if not as the engine packed them."""

    codec: str
    """With all its parameters."""
    layers: int
    heads: int
    """The heads of a rank."""
    k_dim: int
    v_dim: int
    bfloat16: bool
    """Numbers in the engine's pages. False: half precision."""


@dataclass(frozen=True)
class Plan:
    """The values that scheduler and workers of one engine need. They agree on all of them, except
    for `own_bytes` here and in pools."""

    spec: NamespaceSpec
    block_tokens: int
    """With pools: of a unit. A prompt has a key for each unit."""
    engine_keys: bool
    """Keys are vLLM's own block hashes; False: ours, over tokens and salt."""
    blocks: int = 0
    """How many the engine has. 0: as many as the first axis of its tensors."""
    coding: Coding | None = None
    adapters: AdapterRules = AdapterRules()
    proof_blocks: int = 0
    """Without pools: this many blocks after those that are offered must be at the node, too."""
    inputs: KnownInputs = KnownInputs()
    pools: tuple[PoolPlan, ...] = ()
    """Empty: all layers have full attention and the same blocks."""
    ranks: Ranks = Ranks()
    own_bytes: int = 0
    """Without pools: of each part of a block at this worker. 0: as many as the layout says."""


def read_options(vllm_config: VllmConfig) -> ConnectorOptions:
    """ValueError names the setting that is wrong."""
    return ConnectorOptions.read(vllm_config.kv_transfer_config.kv_connector_extra_config, EXTRA)


def check_config(vllm_config: VllmConfig) -> None:
    """The checks that are possible before the model is loaded.

    RuntimeError: a version of vLLM that lacks what is used. ValueError: a setting with which KV
    from the cache would be wrong, or a failed load would fail its request.
    """
    compat.check()
    transfer, cache = vllm_config.kv_transfer_config, vllm_config.cache_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ValueError(
            f"setting 'kv_load_failure_policy': got '{transfer.kv_load_failure_policy}', "
            "expected 'recompute', since else a cache that fails would fail requests"
        )
    if getattr(cache, "calculate_kv_scales", False):
        raise ValueError(
            "setting 'calculate_kv_scales': got true, expected false, "
            "since scales then differ by engine"
        )
    check_drafts(vllm_config)
    if vllm_config.model_config.runner_type != "generate":
        raise ValueError(
            f"setting 'runner': got '{vllm_config.model_config.runner_type}', expected 'generate'"
        )


def make_plan(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, options: ConnectorOptions
) -> Plan:
    """ValueError: a model or setting whose KV this adapter cannot name, or cannot encode."""
    groups = kv_cache_config.kv_cache_groups
    check_groups(vllm_config, groups)
    check_states(vllm_config, groups)
    proofs = needs_proof(vllm_config, groups)
    ranks = ranks_of(vllm_config, kv_cache_config, EXTRA + "store_tp", options.store_tp)
    if len(groups) != 1 or not is_full_attention(groups[0]):
        return _pooled_plan(vllm_config, kv_cache_config, options, proofs, ranks)
    kv = first_spec(groups[0])
    layers = layer_bytes(groups[0], kv_cache_config, ranks.columns)
    own_bytes = sum(layers)
    part_bytes = ranks.most_bytes(layers[0], own_bytes)
    block_tokens = kv.block_size * ranks.token_shards
    _check_block(block_tokens, part_bytes)
    coding, stored_as = None, ""
    if options.codec:
        if has_draft_kv(vllm_config):
            raise ValueError(
                f"setting '{EXTRA}codec': got '{options.codec}', expected none: "
                "the KV of a draft model is stored as vLLM packed it, and the target's with it"
            )
        if ranks.stages or ranks.context or ranks.shared:
            raise ValueError(
                f"setting '{EXTRA}codec': got '{options.codec}', expected none: with pipeline or "
                "context parallelism, or the setting store_tp, KV is stored as vLLM packed it"
            )
        coding, part_bytes = _coding(options.codec, kv, layers)
        own_bytes = 0
        stored_as = f"codec={coding.codec} "
    engine_keys = _has_engine_keys(vllm_config, kv_cache_config, block_tokens)
    layout = OpaqueLayout(
        description=stored_as
        + _layout(
            vllm_config,
            kv_cache_config,
            f"page_bytes={layers[0]}" if ranks.stages else _sizes(layers),
            repr(spec_of_column(kv, ranks.columns)),
            stored_as,
            ranks,
        ),
        max_part_bytes=part_bytes,
        parts=ranks.parts,
        block_tokens=block_tokens,
    )
    spec = _spec(vllm_config, options, layout, engine_keys)
    return Plan(
        spec,
        block_tokens,
        engine_keys,
        kv_cache_config.num_blocks,
        coding,
        adapter_rules(vllm_config.lora_config, options.fixed_adapters),
        int(proofs[0]),
        known_inputs(vllm_config, options, EXTRA + "media", engine_keys),
        ranks=ranks,
        own_bytes=own_bytes,
    )


def _pooled_plan(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    options: ConnectorOptions,
    proofs: Sequence[bool],
    ranks: Ranks,
) -> Plan:
    """A pool for each group."""
    groups = kv_cache_config.kv_cache_groups
    pools = make_pools(kv_cache_config, proofs, ranks)
    if options.codec:
        raise ValueError(
            f"setting '{EXTRA}codec': got '{options.codec}', expected none: "
            "KV of several kinds of layers, or states, is stored as vLLM packed it. With vLLM's "
            "setting disable_hybrid_kv_cache_manager, layers with windows may be of one kind with "
            "others"
        )
    for pool in pools:
        if pool.states and pool.part_bytes > MAX_PART:
            raise ValueError(
                "setting 'tensor_parallel_size': got "
                f"{vllm_config.parallel_config.tensor_parallel_size}, expected more: the states of "
                f"{len(pool.layers)} layers have {pool.part_bytes} bytes on each rank, expected "
                f"at most {MAX_PART}"
            )
        _check_block(pool.block_tokens, pool.part_bytes)
    unit = math.gcd(*(pool.block_tokens for pool in pools))
    engine_keys = _has_engine_keys(vllm_config, kv_cache_config, unit)
    layout = PooledLayout(
        description=_layout(
            vllm_config,
            kv_cache_config,
            "pools",
            " ".join(_described(group, kv_cache_config, ranks) for group in groups),
            "",
            ranks,
        ),
        pools=[pool.pool(ranks.parts) for pool in pools],
        block_tokens=unit,
    )
    spec = _spec(vllm_config, options, layout, engine_keys)
    return Plan(
        spec,
        unit,
        engine_keys,
        kv_cache_config.num_blocks,
        adapters=adapter_rules(vllm_config.lora_config, options.fixed_adapters),
        inputs=known_inputs(vllm_config, options, EXTRA + "media", engine_keys),
        pools=pools,
        ranks=ranks,
    )


def _described(group: Any, kv_cache_config: KVCacheConfig, ranks: Ranks) -> str:
    if ranks.stages:
        return repr(first_spec(group))
    sizes = layer_bytes(group, kv_cache_config, ranks.columns)
    text = f"{len(sizes)}*{spec_of_column(first_spec(group), ranks.columns)!r}"
    return text if len(set(sizes)) == 1 else f"{text} {_sizes(sizes)}"


def _sizes(layers: Sequence[int]) -> str:
    """The bytes of a block in each layer, as a text."""
    sizes = [layers[0]] if len(set(layers)) == 1 else layers
    return f"page_bytes={','.join(str(size) for size in sizes)} layers={len(layers)}"


def _check_block(tokens: int, part_bytes: int) -> None:
    if tokens > MAX_BLOCK_TOKENS:
        raise ValueError(f"setting 'block_size': got {tokens}, expected at most {MAX_BLOCK_TOKENS}")
    if part_bytes > MAX_PART:
        raise ValueError(
            f"setting 'block_size': a block of {tokens} tokens "
            f"has {part_bytes} bytes on each rank, expected at most {MAX_PART}"
        )


def _has_engine_keys(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, unit: int) -> bool:
    return vllm_config.cache_config.prefix_caching_hash_algo in _SAFE_HASHES and compat.hash_tokens(
        vllm_config, kv_cache_config
    ) in (None, unit)


def _spec(
    vllm_config: VllmConfig,
    options: ConnectorOptions,
    layout: OpaqueLayout | PooledLayout,
    engine_keys: bool,
) -> NamespaceSpec:
    draft = draft_identity(vllm_config, options)
    return NamespaceSpec(
        model=os.path.basename(os.path.normpath(vllm_config.model_config.model)),
        revision=revision_of(vllm_config, options) + (f" draft:{draft}" if draft else ""),
        numerics=numerics_of(vllm_config),
        tenant=options.tenant,
        salt=options.salt.encode(),
        weight_epoch=options.weight_epoch,
        layout=layout,
        key_scheme=_key_scheme(vllm_config) if engine_keys else "cairn",
    )


def _coding(codec: str, kv: Any, layers: Sequence[int]) -> tuple[Coding, int]:
    """And the bytes of a block, at most."""
    name = f"setting '{EXTRA}codec': got '{codec}'"
    if len(set(layers)) > 1:
        raise ValueError(f"{name}, expected none: the model's layers have KV of different sizes")
    dtype = str(kv.dtype)
    if dtype not in ("torch.float16", "torch.bfloat16"):
        raise ValueError(f"{name}, expected none: KV of {dtype} is not encoded, only of 16 bits")
    if kv.block_size not in _CODED_TOKENS:
        raise ValueError(
            f"{name}, expected none: a block has {kv.block_size} tokens, "
            f"and is encoded with one of {_CODED_TOKENS}"
        )
    planes = kv.block_size * kv.num_kv_heads * (kv.head_size + kv.head_size_v) * 2
    if kv.page_size_bytes != planes:
        raise ValueError(
            f"{name}, expected none: a block of a layer has {kv.page_size_bytes} bytes, "
            f"and keys and values alone would have {planes}"
        )
    shape = (len(layers), kv.num_kv_heads, kv.head_size, kv.head_size_v, kv.block_size)
    try:
        canonical, most = _native.coded_block(codec, shape)
    except Error as error:
        raise ValueError(f"{name}: {error}") from error
    return Coding(canonical, *shape[:4], dtype == "torch.bfloat16"), most


def revision_of(vllm_config: VllmConfig, options: Options) -> str:
    """The weights, and how their configuration was read, as that contains overrides of RoPE."""
    model = vllm_config.model_config
    revision = options.revision
    if not revision:
        if vllm_config.load_config.load_format == "dummy":
            raise ValueError(
                f"load_format 'dummy' has no weights: name what they are with '{EXTRA}revision'"
            )
        revision = weights_revision(model.model, model.revision)
    config = json.dumps(model.hf_config.to_dict(), sort_keys=True, default=str)
    return (
        f"{revision} config:{hashlib.sha256(config.encode()).hexdigest()[:32]} "
        f"quantization:{model.quantization}"
    )


def numerics_of(vllm_config: VllmConfig) -> str:
    """The versions, the machine and the type of numbers that computed the KV."""
    import vllm

    return (
        f"vllm {vllm.__version__} torch {torch.__version__} {machine()} "
        f"{vllm_config.model_config.dtype}"
    )


def machine() -> str:
    """Platform and instruction set: CPU attention packs K in a form of its own for each."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.device_name)
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return (
        f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}{' AMX' if amx else ''}"
    )


def _layout(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    sizes: str,
    groups: str,
    before: str,
    ranks: Ranks,
) -> str:
    """Everything that decides the bytes of a page, in a text that follows `before`."""
    text = (
        f"vllm {sizes} "
        f"layout={kv_cache_config.kv_cache_layout} "
        f"cache_dtype={vllm_config.cache_config.cache_dtype} "
        f"{ranks.described(vllm_config.parallel_config.tensor_parallel_size)} "
        f"on {machine()} {groups}"
    )
    most = _MAX_DESCRIPTION - len(before)
    if len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text[: most - len(digest)] + digest


def _key_scheme(vllm_config: VllmConfig) -> str:
    """Names the hash and what its chain begins with: other seeds give other keys for the same
    tokens."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed

    name = vllm_config.cache_config.prefix_caching_hash_algo
    hash_fn = get_hash_fn_by_name(name)
    return f"vllm-{name}-{hash_fn(resolve_none_hash_seed(hash_fn)).hex()[:32]}"
