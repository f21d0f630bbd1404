"""Makes the namespace of the chunks of LMCache's in-process mode, and refuses setups whose chunks
cannot be named correctly."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from lmcache.v1.token_database import ChunkedTokenDatabase

from cairn._engine.limits import MAX_BLOCK_TOKENS, MAX_PART
from cairn._engine.options import Options
from cairn.types import NamespaceSpec, OpaqueLayout

if TYPE_CHECKING:
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from vllm.config import VllmConfig

__all__ = ["ConnectorOptions", "check_setup", "hash_scheme", "make_spec", "read_settings"]

_LOG = logging.getLogger("cairn")
# The keys of LMCache among our settings.
_FOREIGN = ("module_path", "class_name")


@dataclass(frozen=True)
class ConnectorOptions(Options):
    """Settings of the in-process mode."""

    engine: str = ""
    """A name for all that makes chunks differ and that neither LMCache nor vLLM tells: needed where
    the engine is not vLLM."""


def read_settings(config: LMCacheEngineConfig, plugin: str) -> ConnectorOptions:
    """Settings of one plug-in out of LMCache's `extra_config`. ValueError names the one that is
    wrong."""
    prefix = f"remote_storage_plugin.{plugin}."
    # "cairn." is also how the settings of a plug-in "cairn.other" begin.
    others = tuple(
        f"remote_storage_plugin.{other}."
        for other in config.remote_storage_plugins or ()
        if other.startswith(f"{plugin}.")
    )
    settings = {
        name[len(prefix) :]: value
        for name, value in (config.extra_config or {}).items()
        if name.startswith(prefix) and not name.startswith(others)
    }
    return ConnectorOptions.read({k: v for k, v in settings.items() if k not in _FOREIGN}, prefix)


def check_setup(config: LMCacheEngineConfig, metadata: LMCacheMetadata) -> None:
    """ValueError: a setting with which chunks would be wrong, or could not be stored.

    RuntimeError: an engine's version that lacks what is used.
    """
    for name, wanted, reason in (
        ("remote_serde", "naive", "since only whole chunks are stored, as they are"),
        ("use_layerwise", False, "since a chunk is stored with all of its layers"),
        (
            "enable_blending",
            False,
            "since a blended chunk depends on text that its key does not have",
        ),
    ):
        if getattr(config, name) != wanted:
            raise ValueError(
                f"setting '{name}': got {getattr(config, name)!r}, expected {wanted!r}, {reason}"
            )
    if metadata.chunk_size > MAX_BLOCK_TOKENS:
        raise ValueError(
            f"setting 'chunk_size': got {metadata.chunk_size}, expected at most {MAX_BLOCK_TOKENS}"
        )
    if metadata.get_num_groups() != 1:
        raise ValueError(f"the model has {metadata.get_num_groups()} groups of layers, expected 1")
    if (size := _chunk_bytes(metadata)) > MAX_PART:
        raise ValueError(
            f"setting 'chunk_size': a chunk of {metadata.chunk_size} tokens "
            f"has {size} bytes on each rank, expected at most {MAX_PART}"
        )
    vllm_config = _vllm_config()
    if vllm_config is None:
        return
    from cairn.vllm.drafts import check_no_draft_kv
    from cairn.vllm.namespace import check_config
    from cairn.vllm.ranks import check_one_rank_only

    check_config(vllm_config)
    check_one_rank_only(vllm_config)
    check_no_draft_kv(vllm_config)
    # LMCache loads between a look-up's promise and the step that needs it, and not every load
    # brings what was promised.
    reason = (
        "since after a synchronous load that fails vLLM else computes from "
        "wrong positions (vllm#49250)"
    )
    if vllm_config.use_v2_model_runner:
        raise ValueError(f"environment variable 'VLLM_USE_V2_MODEL_RUNNER': expected 0, {reason}")
    if vllm_config.scheduler_config.async_scheduling:
        raise ValueError(f"setting 'async_scheduling': got true, expected false, {reason}")
    if vllm_config.lora_config is not None:
        raise ValueError(
            "setting 'enable_lora': got true, expected false, since LMCache's keys have no adapters"
        )
    if vllm_config.model_config.enable_prompt_embeds:
        raise ValueError(
            "setting 'enable_prompt_embeds': got true, expected false, "
            "since LMCache's keys have no embeddings"
        )


def make_spec(
    config: LMCacheEngineConfig, metadata: LMCacheMetadata, options: ConnectorOptions, plugin: str
) -> NamespaceSpec:
    """Everything that a chunk depends on and that is not in LMCache's key. ValueError: something is
    unknown.

    The worker is in LMCache's key.
    """
    vllm_config = _vllm_config()
    if vllm_config is None:
        for name in ("revision", "engine"):
            if not getattr(options, name):
                raise ValueError(
                    f"setting 'remote_storage_plugin.{plugin}.{name}' is missing: "
                    "LMCache does not tell what KV was computed with"
                )
        revision, numerics, engine = options.revision, f"torch {torch.__version__}", ""
    else:
        from cairn.vllm.namespace import machine, numerics_of, revision_of

        cache = vllm_config.cache_config
        revision, numerics = revision_of(vllm_config, options), numerics_of(vllm_config)
        engine = (
            f"vllm cache_dtype={cache.cache_dtype} block_size={cache.block_size} on {machine()}"
        )
    return NamespaceSpec(
        model=os.path.basename(os.path.normpath(metadata.model_name)) or "model",
        revision=revision,
        numerics=_short(f"{numerics} {options.engine}".strip(), 256),
        tenant=options.tenant,
        salt=options.salt.encode(),
        weight_epoch=options.weight_epoch,
        layout=OpaqueLayout(
            _short(
                f"lmcache {importlib.metadata.version('lmcache')} "
                f"shapes={[list(s) for s in metadata.get_shapes()]} "
                f"dtypes={metadata.get_dtypes()} kv_shape={tuple(metadata.kv_shape)} "
                f"mla={metadata.use_mla} workers={metadata.world_size} "
                f"{engine} {options.engine}".strip(),
                1024,
            ),
            max_part_bytes=_chunk_bytes(metadata),
            block_tokens=metadata.chunk_size,
        ),
        key_scheme=hash_scheme(config),
    )


def hash_scheme(config: LMCacheEngineConfig) -> str:
    """Differs for processes that give the same tokens different chunk hashes.

    LMCache asks vLLM for the hash and falls back to Python's own; what the chain begins with
    depends on PYTHONHASHSEED, and is one value for all of a process. So LMCache hashes a few tokens
    here.
    """
    # Its constructor would start the chain again, for vLLM as well.
    database = ChunkedTokenDatabase.__new__(ChunkedTokenDatabase)
    name = config.pre_caching_hash_algorithm
    database.hash_func = database._get_vllm_hash_func(name)
    if database.hash_func is hash:
        _LOG.warning(
            "cairn: chunks are named by Python's own hash, for which collisions "
            "can be made, and which without PYTHONHASHSEED differs in each process: "
            "set 'pre_caching_hash_algorithm' to sha256_cbor"
        )
        name = "builtin"
    probe = str(database._hash_tokens([1, 2, 3]))
    return f"lmcache-{name}-{hashlib.sha256(probe.encode()).hexdigest()[:32]}"


def _chunk_bytes(metadata: LMCacheMetadata) -> int:
    shapes: Sequence[torch.Size] = metadata.get_shapes()
    dtypes: Sequence[torch.dtype] = metadata.get_dtypes()
    return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes))


def _vllm_config() -> VllmConfig | None:
    """The configuration of the vLLM engine that LMCache runs in; vLLM names it while it starts a
    worker."""
    if "vllm.config" not in sys.modules:
        return None
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()


def _short(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text[: limit - len(digest)] + digest
