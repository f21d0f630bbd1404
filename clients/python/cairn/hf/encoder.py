"""Keeps the keys and values that cross-attention reads, for models with an encoder and a
decoder."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from cairn.hf.blocks import load_blocks, save_blocks
from cairn.hf.layers import KeptLayer, layers_of
from cairn.hf.requests import is_plain
from cairn.hf.session import ModelCache
from cairn.keys import block_key

__all__ = ["EncoderCache"]

_LOG = logging.getLogger("cairn")
_FILLER = -1  # Behind the last token of an input.


class EncoderCache(ModelCache):
    """Gives a decoder the keys and values that cross-attention makes of an encoder's input, so that
    the encoder does not run again for the same input.

    An encoder looks at its input as a whole, so a block is of use only with all others of the same
    input: all of them come from the node, or the encoder runs. The decoder's own KV is not stored.
    If the node is slow, full or cannot be reached, the model only computes everything itself. Not
    thread-safe, because models are not.
    """

    def __init__(self, model: Any, *, block_tokens: int = 64, **settings: Any) -> None:
        """As that of PrefixCache."""
        super().__init__(model, _probe, block_tokens, settings, "cross-attention")

    def generate(self, inputs: Any = None, generation_config: Any = None, **arguments: Any) -> Any:
        """`model.generate`, with cross-attention's KV from the node; stores it otherwise.

        `inputs`, or `input_ids`: [1, tokens] of the encoder. Inputs that bypass PrefixCache bypass
        this cache too, and so does an input with the token for padding, which the model masks.
        """
        inputs = self._inputs_of(inputs, generation_config, arguments)
        if not is_plain(
            self._model, inputs, arguments, ("decoder_input_ids",)
        ) or self._has_padding(inputs):
            return self._bypass(inputs, arguments)
        cache, restored = self._restore(inputs)
        if restored:
            # Its length is all that is asked of it: attention reads what the cache has.
            arguments["encoder_outputs"] = BaseModelOutput(
                last_hidden_state=torch.zeros(
                    (1, inputs.shape[1], self._model.config.hidden_size),
                    dtype=self._model.dtype,
                    device=self._model.device,
                )
            )
        output = self._model.generate(inputs, past_key_values=cache, **arguments)
        if not restored:
            self._save(inputs, cache)
        return output

    def _has_padding(self, inputs: torch.Tensor) -> bool:
        pad = self._model.config.pad_token_id
        return pad is not None and bool((inputs == pad).any())

    def _keys(self, input_ids: torch.Tensor) -> list[bytes]:
        """The keys of all blocks, the last one filled up. Each stands for the whole input."""
        tokens = input_ids[0].to("cpu", torch.int64).tolist()
        whole = hashlib.sha256(input_ids[0].to("cpu", torch.int64).numpy().tobytes()).digest()
        size = self._block_tokens
        keys: list[bytes] = []
        for begin in range(0, len(tokens), size):
            block = tokens[begin : begin + size]
            block += [_FILLER] * (size - len(block))
            keys.append(
                block_key(
                    self._store.namespace,
                    block,
                    keys[-1] if keys else None,
                    b"encoder input " + whole,
                )
            )
        return keys

    def _restore(self, input_ids: torch.Tensor) -> tuple[EncoderDecoderCache, bool]:
        empty = self._cache(DynamicCache())
        try:
            keys = self._keys(input_ids)
            found = self._store.match(keys)
            if found is None:
                return empty, False
            with found:
                if found.matched_blocks < len(keys):
                    return empty, False
                blocks, kept = load_blocks(
                    self._store, keys, found, self._layers, self._block_tokens
                )
            if blocks < len(keys):
                return empty, False
            cross = DynamicCache()
            tokens = input_ids.shape[1]
            for index, planes in enumerate(kept):
                assert planes is not None
                cross.update(*(plane[:, :, :tokens] for plane in planes), index)
            return self._cache(cross), True
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: restoring failed, the model computes")
            return empty, False

    def _cache(self, cross: DynamicCache) -> EncoderDecoderCache:
        """With what is there of cross-attention, and nothing of the decoder."""
        config = self._model.config.get_text_config(decoder=True)
        return EncoderDecoderCache(DynamicCache(config=config), cross)

    def _save(self, input_ids: torch.Tensor, cache: EncoderDecoderCache) -> None:
        try:
            save_blocks(
                self._store,
                self._keys(input_ids),
                0,
                cache.cross_attention_cache,
                self._layers,
                self._block_tokens,
            )
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: storing failed")


def _probe(model: Any) -> list[KeptLayer]:
    """Planes of cross-attention by layer, from what the model itself makes of one token."""
    if not getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("the model only decodes, expected an encoder too: use PrefixCache")
    one = torch.ones((1, 1), dtype=torch.int64, device=model.device)
    with torch.no_grad():
        output = model(input_ids=one, decoder_input_ids=one, use_cache=True)
    if not isinstance(output.past_key_values, EncoderDecoderCache):
        raise ValueError(
            f"the model keeps a {type(output.past_key_values).__name__}, "
            "expected an EncoderDecoderCache"
        )
    layers = layers_of(output.past_key_values.cross_attention_cache, model.config)
    if not all(layers):
        raise ValueError("a layer of the decoder reads nothing of the encoder")
    return layers
