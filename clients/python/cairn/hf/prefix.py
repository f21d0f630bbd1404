"""Keeps prefixes of Hugging Face `generate` at a cache node: docs/engines/huggingface.md.

prefixes = cairn.hf.PrefixCache(model, address="127.0.0.1:7400")
output = prefixes.generate(input_ids, max_new_tokens=50)
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import GenerationMode

from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn._engine.versions import check_version
from cairn._engine.weights import weights_revision
from cairn.keys import block_keys
from cairn.types import DType, LayerGroup, Match, NamespaceSpec, NativeLayout, Part, Plane

__all__ = ["PrefixCache"]

_LOG = logging.getLogger("cairn")
_DTYPES = {torch.float16: DType.F16, torch.bfloat16: DType.BF16, torch.float32: DType.F32}
_PUSH_PARTS = 16  # Parts in one call to the node.
# Arguments of `generate` that do not reach the model, and those with which it does not run as
# usual.
_AROUND_THE_MODEL = {
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "streamer",
}
_OTHER_WAYS = {
    "assistant_model",
    "custom_generate",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "past_key_values",
    "synced_gpus",
}


class PrefixCache:
    """Gives a model the KV of the beginnings of prompts, and stores the KV that the model computed.

    For decoders whose layers all attend to everything. If the node is slow, full or cannot be
    reached, the model only computes everything itself. Not thread-safe, because models are not.
    """

    def __init__(self, model: Any, *, block_tokens: int = 64, **settings: Any) -> None:
        """`settings`: those of docs/engines/huggingface.md, such as `address`. Runs one token
        through the model.

        ValueError: a setting is not valid, or the model is not supported. RuntimeError: a version
        of transformers that was not tested. A node that cannot be reached is no error, because it
        may come later.
        """
        check_version("transformers", transformers.__version__)
        options = Options.read(settings)
        self._model = model
        self._block_tokens = block_tokens
        self._layers = _probe(model)
        self._block_bytes = block_tokens * sum(
            heads * dim * dtype.itemsize for layer in self._layers for heads, dim, dtype, _ in layer
        )
        self._store = Store(
            options, _spec(model, self._layers, block_tokens, options), "huggingface"
        )
        self._store.wait_open(2.0)

    def generate(self, inputs: Any = None, generation_config: Any = None, **arguments: Any) -> Any:
        """`model.generate`, with the prompt's beginning from the node; stores the prompt
        afterwards.

        `inputs`, or `input_ids`: [1, tokens]. What is not plain greedy search or sampling of one
        sequence bypasses the cache, and so do arguments of the model that keys do not cover.
        """
        if inputs is None:
            inputs = arguments.pop("input_ids", None)
        arguments["generation_config"] = generation_config
        if not self._usable(inputs, arguments):
            self._store.counters.add("bypassed_requests")
            return self._model.generate(inputs, **arguments)
        cache, restored = self._restore(inputs)
        output = self._model.generate(inputs, past_key_values=cache, **arguments)
        self._save(inputs, cache, restored)
        return output

    def restore(self, input_ids: torch.Tensor) -> DynamicCache:
        """A cache for `past_key_values` with as much of the prompt as the node has, never its last
        token."""
        return self._restore(input_ids)[0]

    def save(self, input_ids: torch.Tensor, cache: DynamicCache) -> int:
        """Stores the full blocks of the prompt out of `cache`. Returns how many the node has
        now."""
        return self._save(input_ids, cache, 0)

    def counters(self) -> dict[str, float]:
        """What happened since the start, by name."""
        return self._store.counters.totals()

    def close(self) -> None:
        """Ends the session."""
        self._store.close()

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _usable(self, inputs: Any, arguments: dict[str, Any]) -> bool:
        if not isinstance(inputs, torch.Tensor) or inputs.ndim != 2 or inputs.shape[0] != 1:
            return False
        given = {name: value for name, value in arguments.items() if value is not None}
        if any(name in given for name in _OTHER_WAYS):
            return False
        settings = {name: value for name, value in given.items() if name not in _AROUND_THE_MODEL}
        try:
            # As `generate` does it: keywords over the given configuration over the model's own.
            config, for_model = self._model._prepare_generation_config(
                settings.pop("generation_config", None), **settings
            )
            mode = config.get_generation_mode()
        except Exception:
            return False  # `generate` says what is wrong.
        mask = for_model.pop("attention_mask", None)
        return (
            not for_model  # Nothing that changes KV, or shows what is not computed.
            and (mask is None or bool((mask == 1).all()))
            # With a cache that is not empty, assisted modes of transformers 5.19 give other tokens.
            and mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
            and (config.num_return_sequences or 1) == 1
            and config.use_cache is not False
            and config.cache_implementation is None
        )

    def _keys(self, input_ids: torch.Tensor) -> list[bytes]:
        tokens = input_ids[0].to("cpu", torch.int64).contiguous().numpy()
        return block_keys(self._store.namespace, tokens, self._block_tokens)

    def _restore(self, input_ids: torch.Tensor) -> tuple[DynamicCache, int]:
        empty = DynamicCache(config=self._model.config)
        try:
            keys = self._keys(input_ids)[: (input_ids.shape[1] - 1) // self._block_tokens]
            found = self._store.match(keys)
            if found is None or found.matched_blocks == 0:
                return empty, 0
            with found:
                return self._load(keys[: found.matched_blocks], found)
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: restoring failed, the model computes")
            return empty, 0

    def _load(self, keys: list[bytes], found: Match) -> tuple[DynamicCache, int]:
        """Loads directly into tensors of the form that the model uses, where the tokens of a head
        follow each other."""
        size = self._block_tokens
        planes = [
            torch.empty((1, heads, len(keys) * size, dim), dtype=dtype)
            for layer in self._layers
            for heads, dim, dtype, _ in layer
        ]
        into = [
            [
                plane[0, head, i * size : (i + 1) * size]
                for plane in planes
                for head in range(plane.shape[1])
            ]
            for i in range(len(keys))
        ]
        failed = self._store.load(keys, 0, into, found=found)
        blocks = min(failed, default=len(keys))
        cache = DynamicCache(config=self._model.config)
        if blocks:
            for index, layer in enumerate(self._layers):
                k, v = (
                    planes[2 * index][:, :, : blocks * size],
                    planes[2 * index + 1][:, :, : blocks * size],
                )
                cache.update(k.to(layer[0][3]), v.to(layer[1][3]), index)
        return cache, blocks

    def _save(self, input_ids: torch.Tensor, cache: DynamicCache, first: int) -> int:
        try:
            keys = self._keys(input_ids)
            stored = first
            while first < len(keys):
                batch = range(first, min(first + _PUSH_PARTS, len(keys)))
                parts = [self._part(cache, keys, i) for i in batch]
                stored += sum(self._store.save(parts, [self._block_bytes] * len(parts)))
                first = batch.stop
            return stored
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: storing failed")
            return 0

    def _part(self, cache: DynamicCache, keys: list[bytes], index: int) -> Part:
        begin, end = index * self._block_tokens, (index + 1) * self._block_tokens
        pieces = []
        for layer, planes in zip(cache.layers, self._layers):
            for tensor, (heads, dim, dtype, _) in zip((layer.keys, layer.values), planes):
                piece = tensor[0, :, begin:end].to("cpu").contiguous()
                if piece.shape != (heads, end - begin, dim) or piece.dtype != dtype:
                    raise ValueError(
                        f"KV of shape {tuple(piece.shape)} {piece.dtype}, "
                        f"expected {(heads, end - begin, dim)} {dtype}"
                    )
                pieces.append(piece)
        return Part(
            keys[index], pieces, parent=keys[index - 1] if index else None, first_position=begin
        )


_PlaneFacts = tuple[int, int, torch.dtype, torch.device]  # KV heads, head size, type, place.


def _probe(model: Any) -> list[tuple[_PlaneFacts, _PlaneFacts]]:
    """Shapes of K and V by layer, from what the model itself makes of one token."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(
            torch.zeros((1, 1), dtype=torch.int64, device=model.device),
            past_key_values=cache,
            use_cache=True,
        )
    layers = []
    for index, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            raise ValueError(
                f"layer {index} of the model keeps a {type(layer).__name__}, "
                "expected full attention in all layers"
            )
        planes = [(t.shape[1], t.shape[3], t.dtype, t.device) for t in (layer.keys, layer.values)]
        for _, _, dtype, _ in planes:
            if dtype not in _DTYPES:
                raise ValueError(
                    f"layer {index} of the model has KV of type {dtype}, "
                    f"expected one of {list(_DTYPES)}"
                )
        layers.append((planes[0], planes[1]))
    return layers


def _spec(
    model: Any, layers: list[tuple[_PlaneFacts, _PlaneFacts]], block_tokens: int, options: Options
) -> NamespaceSpec:
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
    device = layers[0][0][3]
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    )
    groups = [
        LayerGroup(
            1,
            [
                Plane(name, heads, dim, _DTYPES[dtype])
                for name, (heads, dim, dtype, _) in zip("kv", planes)
            ],
        )
        for planes in layers
    ]
    return NamespaceSpec(
        model=os.path.basename(os.path.normpath(config._name_or_path)) or config.model_type,
        revision=f"{revision} config:{digest[:32]}",
        numerics=(
            f"transformers {transformers.__version__} torch {torch.__version__} "
            f"{config._attn_implementation} "
            f"{device.type} {where}"
        ),
        tenant=options.tenant,
        salt=options.salt.encode(),
        weight_epoch=options.weight_epoch,
        layout=NativeLayout(
            groups, kv_heads=max(p[0] for layer in layers for p in layer), block_tokens=block_tokens
        ),
    )
