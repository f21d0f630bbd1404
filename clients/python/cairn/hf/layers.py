"""The KV that the layers of a model keep of a token, and the namespace that follows from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from cairn._engine.options import Options
from cairn._engine.weights import weights_revision
from cairn.types import DType, LayerGroup, Layout, NamespaceSpec, NativeLayout, Plane

__all__ = [
    "KeptLayer",
    "KeptPlane",
    "block_bytes",
    "cache_of_a_token",
    "layers_of",
    "namespace_of",
    "native_layout",
    "recording_cache",
]

_DTYPES = {torch.float16: DType.F16, torch.bfloat16: DType.BF16, torch.float32: DType.F32}


@dataclasses.dataclass(frozen=True)
class KeptPlane:
    """One of the two tensors of a layer in transformers' caches, [1, heads, tokens, dim]."""

    name: str
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def row_bytes(self) -> int:
        """The bytes of one token."""
        return self.heads * self.dim * self.dtype.itemsize


KeptLayer = tuple[KeptPlane, ...]
"""Two planes, or none: such a layer reads the KV of another one, or keeps a state alone."""


def recording_cache(config: Any) -> DynamicCache:
    """A cache for the model whose layers with a window keep everything that they got.

    Their results for attention are the usual ones, so the model's answers do not change. The
    rest is there to be stored: any later prompt may need the window before its own first token.
    """
    cache = DynamicCache(config=config)
    for layer in cache.layers:
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.activate_past_recording()
    return cache


def cache_of_a_token(model: Any) -> DynamicCache:
    """A cache with one token, as a decoder itself makes it. ValueError: it has an encoder, too."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            "the model has an encoder and a decoder, expected a decoder alone: use EncoderCache"
        )
    cache = recording_cache(model.config)
    with torch.no_grad():
        model(
            torch.zeros((1, 1), dtype=torch.int64, device=model.device),
            past_key_values=cache,
            use_cache=True,
        )
    return cache


_WITH_STATES = (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def layers_of(cache: Cache, config: Any, with_states: bool = False) -> list[KeptLayer]:
    """The layers of a cache that one token went through. `with_states`: layers may keep states too.

    ValueError names a layer that keeps something other than keys and values of each token.
    """
    latent = getattr(config, "kv_lora_rank", None)
    layers: list[KeptLayer] = []
    for index, layer in enumerate(cache.layers):
        if type(layer) in _WITH_STATES and not with_states:
            raise ValueError(
                f"layer {index} of the model keeps a state, "
                "expected keys and values of each token in all layers: use HybridCache"
            )
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, *_WITH_STATES):
            raise ValueError(
                f"layer {index} of the model keeps a {type(layer).__name__}, "
                "expected keys and values of each token in all layers"
            )
        if not isinstance(layer, DynamicLayer) or not layer.is_initialized:
            layers.append(())
            continue
        # Multi-head latent attention: transformers keeps the latent where keys are, and the one key
        # with the positions where values are.
        names = ("latent", "k_rope") if latent == layer.keys.shape[3] else ("k", "v")
        planes = [
            KeptPlane(name, t.shape[1], t.shape[3], t.dtype, t.device)
            for name, t in zip(names, (layer.keys, layer.values))
        ]
        for plane in planes:
            if plane.dtype not in _DTYPES:
                raise ValueError(
                    f"layer {index} of the model has KV of type {plane.dtype}, "
                    f"expected one of {list(_DTYPES)}"
                )
        layers.append(tuple(planes))
    if not any(layers):
        raise ValueError("no layer of the model keeps KV of each token")
    return layers


def block_bytes(layers: Sequence[KeptLayer], block_tokens: int) -> int:
    """Payload of one block."""
    return block_tokens * sum(plane.row_bytes for layer in layers for plane in layer)


def native_layout(layers: Sequence[KeptLayer], block_tokens: int) -> NativeLayout:
    """A layer for each of the model's, without planes if it keeps nothing of its own."""
    return NativeLayout(
        [
            LayerGroup(1, [Plane(p.name, p.heads, p.dim, _DTYPES[p.dtype]) for p in planes])
            for planes in layers
        ],
        kv_heads=max(plane.heads for layer in layers for plane in layer),
        block_tokens=block_tokens,
    )


def namespace_of(
    model: Any, device: torch.device, layout: Layout, options: Options, kind: str = ""
) -> NamespaceSpec:
    """`device`: where KV is computed. `kind`: what else than the KV of a sequence this is.

    ValueError: nobody knows which weights the model has.
    """
    config = model.config
    revision = options.revision
    if not revision:
        if getattr(model, "peft_config", None) or getattr(model, "_hf_peft_config_loaded", False):
            raise ValueError(
                "the model has adapters: name their weights and the model's "
                "with the setting 'revision'"
            )
        revision = weights_revision(config._name_or_path, getattr(config, "_commit_hash", None))
    # Where the model came from says nothing about its KV, nor does the version that wrote the file.
    settings = {
        k: v
        for k, v in config.to_dict().items()
        if k not in ("_name_or_path", "transformers_version")
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    )
    return NamespaceSpec(
        model=os.path.basename(os.path.normpath(config._name_or_path)) or config.model_type,
        revision=f"{revision} config:{digest[:32]}" + (f" {kind}" if kind else ""),
        numerics=(
            f"transformers {transformers.__version__} torch {torch.__version__} "
            f"{config._attn_implementation} "
            f"{device.type} {where}"
        ),
        tenant=options.tenant,
        salt=options.salt.encode(),
        weight_epoch=options.weight_epoch,
        layout=layout,
    )
