"""The beginnings of prompts, for models that only decode."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from cairn.hf.blocks import load_blocks, save_blocks
from cairn.hf.layers import KeptLayer, cache_of_a_token, layers_of, recording_cache
from cairn.hf.requests import is_plain
from cairn.hf.session import ModelCache
from cairn.keys import block_keys
from cairn.types import Match

__all__ = ["PrefixCache"]

_LOG = logging.getLogger("cairn")


class PrefixCache(ModelCache):
    """Gives a model the KV of the beginnings of prompts, and stores the KV that the model computed.

    For decoders whose layers keep keys and values of each token, all of them or those of a window,
    or read the KV of other layers. If the node is slow, full or cannot be reached, the model only
    computes everything itself. Not thread-safe, because models are not.
    """

    def __init__(self, model: Any, *, block_tokens: int = 64, **settings: Any) -> None:
        """`settings`: those of docs/program/engines/huggingface.md, such as `address`. Runs one
        token through the model.

        ValueError: a setting is not valid, or the model is not supported. RuntimeError: a version
        of transformers that lacks what is used. A node that cannot be reached is no error, because
        it may come later.
        """
        super().__init__(model, _probe, block_tokens, settings)

    def generate(self, inputs: Any = None, generation_config: Any = None, **arguments: Any) -> Any:
        """`model.generate`, with the prompt's beginning from the node; stores the prompt
        afterwards.

        `inputs`, or `input_ids`: [1, tokens]. A call that is not plain greedy search or sampling of
        one sequence bypasses the cache, and so do arguments of the model that keys do not cover.
        """
        inputs = self._inputs_of(inputs, generation_config, arguments)
        if not is_plain(self._model, inputs, arguments):
            return self._bypass(inputs, arguments)
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
        now. For a model with sliding windows, the cache must be one of `restore`: others drop the
        tokens that left the window."""
        return self._save(input_ids, cache, 0)

    def _keys(self, input_ids: torch.Tensor) -> list[bytes]:
        tokens = input_ids[0].to("cpu", torch.int64).contiguous().numpy()
        return block_keys(self._store.namespace, tokens, self._block_tokens)

    def _restore(self, input_ids: torch.Tensor) -> tuple[DynamicCache, int]:
        empty = recording_cache(self._model.config)
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
        blocks, kept = load_blocks(self._store, keys, found, self._layers, self._block_tokens)
        cache = recording_cache(self._model.config)
        if blocks:
            for index, planes in enumerate(kept):
                if planes is not None:
                    cache.update(*planes, index)
        return cache, blocks

    def _save(self, input_ids: torch.Tensor, cache: DynamicCache, first: int) -> int:
        try:
            keys = self._keys(input_ids)
            return save_blocks(self._store, keys, first, cache, self._layers, self._block_tokens)
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: storing failed")
            return 0


def _probe(model: Any) -> list[KeptLayer]:
    """Planes by layer, from what the model itself makes of one token."""
    return layers_of(cache_of_a_token(model), model.config.get_text_config(decoder=True))
