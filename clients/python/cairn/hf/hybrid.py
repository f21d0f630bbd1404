"""The beginnings of prompts, for models some of whose layers keep a state."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from cairn._engine.limits import MAX_COLUMNS, MAX_PART
from cairn._engine.pool_store import PoolQuestion, PoolStore, PoolTarget
from cairn.hf.blocks import EmptyBlocks, save_blocks
from cairn.hf.layers import (
    KeptLayer,
    block_bytes,
    cache_of_a_token,
    layers_of,
    recording_cache,
)
from cairn.hf.requests import is_plain
from cairn.hf.session import ModelCache
from cairn.hf.states import (
    KeptState,
    checkpoint_bytes,
    checkpoint_of,
    restore_states,
    states_of,
)
from cairn.keys import block_keys, pool_keys
from cairn.types import Part, Pool, PooledLayout, PoolNeed, Rect

__all__ = ["HybridCache"]

_LOG = logging.getLogger("cairn")
_KV, _STATES = 0, 1  # The pools.
_KV_RECT = Rect(_KV, _KV + 1, 0, 1)
_NEEDS = (PoolNeed(_KV), PoolNeed(_STATES, 1))


class HybridCache(ModelCache):
    """Gives a model the KV and the states of the beginnings of prompts, and stores what the model
    computed.

    For decoders some of whose layers keep one state in place of KV of each token (gated delta nets,
    Mamba, short convolutions). A prompt can go on only where a checkpoint of all states was stored:
    after its last full block, after each multiple of `state_interval` tokens on the way, and where
    an earlier prompt parts from it. The model therefore computes a prompt in pieces that end
    there. If the node is slow, full or cannot be reached, the model only computes everything
    itself. Not thread-safe, because models are not.
    """

    def __init__(
        self, model: Any, *, block_tokens: int = 64, state_interval: int = 4096, **settings: Any
    ) -> None:
        """As that of PrefixCache. `state_interval`: tokens from a checkpoint to the next one, on
        the way; 0: none on the way."""
        if state_interval < 0:
            raise ValueError(f"setting 'state_interval': got {state_interval}, expected at least 0")
        # Rounded, as checkpoints are where blocks end.
        self._interval = -(-state_interval // block_tokens) * block_tokens
        self._states: list[KeptState] = []
        super().__init__(model, self._probe, block_tokens, settings, layout_of=self._layout)

    def _probe(self, model: Any) -> list[KeptLayer]:
        cache = cache_of_a_token(model)
        layers = layers_of(cache, model.config.get_text_config(decoder=True), with_states=True)
        self._states = states_of(cache)
        if not self._states:
            raise ValueError("no layer of the model keeps a state: use PrefixCache")
        return layers

    def _layout(self, layers: list[KeptLayer], block_tokens: int) -> PooledLayout:
        size = checkpoint_bytes(self._states)
        self._columns = -(-size // MAX_PART)
        if self._columns > MAX_COLUMNS:
            raise ValueError(
                f"the states of the model have {size} bytes, "
                f"expected at most {MAX_COLUMNS * MAX_PART}"
            )
        kept = [
            [f"{plane.name} {plane.heads}x{plane.dim} {plane.dtype}" for plane in layer]
            for layer in layers
        ]
        states = [f"{s.layer}.{s.number} {s.recurrent} {s.shape} {s.dtype}" for s in self._states]
        text = f"{kept} {states}"
        return PooledLayout(
            f"transformers {hashlib.sha256(text.encode()).hexdigest()}",
            [
                Pool("kv", block_tokens, block_bytes(layers, block_tokens), chained=True),
                Pool("state", block_tokens, min(size, MAX_PART), self._columns),
            ],
            block_tokens,
        )

    def generate(self, inputs: Any = None, generation_config: Any = None, **arguments: Any) -> Any:
        """`model.generate`, with the prompt's beginning from the node; stores the prompt before.

        As that of PrefixCache.
        """
        inputs = self._inputs_of(inputs, generation_config, arguments)
        if not is_plain(self._model, inputs, arguments):
            return self._bypass(inputs, arguments)
        return self._model.generate(inputs, past_key_values=self.prefill(inputs), **arguments)

    def prefill(self, input_ids: torch.Tensor) -> DynamicCache:
        """A cache for `past_key_values` with the prompt up to its last full block, never its last
        token. The model computes the blocks that the node does not have, and they are stored.

        `input_ids`: [1, tokens].
        """
        try:
            return self._prefill(input_ids)
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: restoring or storing failed, the model computes")
            return recording_cache(self._model.config)

    def _prefill(self, input_ids: torch.Tensor) -> DynamicCache:
        assert isinstance(self._store, PoolStore)
        tokens = input_ids[0].to("cpu", torch.int64).contiguous().numpy()
        keys = block_keys(self._store.namespace, tokens, self._block_tokens)
        most = (input_ids.shape[1] - 1) // self._block_tokens * self._block_tokens
        cache, there, shared = self._restore(self._store, keys, most)
        for end in self._ends(there, shared, most):
            with torch.no_grad():
                self._model.base_model(
                    input_ids[:, there:end], past_key_values=cache, use_cache=True
                )
            self._save(keys, cache, max(there, min(shared, end)), end)
            there = end
        return cache

    def _ends(self, there: int, shared: int, most: int) -> Iterator[int]:
        """Where the pieces of a prompt end that begins after `there` tokens."""
        ends = {most, shared}
        if self._interval:
            ends.update(range(self._interval, most, self._interval))
        return iter(sorted(end for end in ends if there < end <= most))

    def _restore(
        self, store: PoolStore, keys: list[bytes], most: int
    ) -> tuple[DynamicCache, int, int]:
        """A cache, how many tokens it has, and of how many the node has the KV."""
        empty = recording_cache(self._model.config)
        keys = keys[: most // self._block_tokens]
        if not keys:
            return empty, 0, 0
        question = PoolQuestion(keys, _NEEDS, self._block_tokens, most)
        found = store.begin_pool_lookup(question).result()
        if found is None:
            return empty, 0, 0
        if found.tokens == 0:
            return empty, 0, found.shared_tokens
        blocks = found.tokens // self._block_tokens
        kv = EmptyBlocks(self._layers, blocks, self._block_tokens)
        checkpoint = torch.empty(checkpoint_bytes(self._states), dtype=torch.uint8)
        targets = [PoolTarget(_KV, 0, kv.into, _KV_RECT)]
        for rect, piece in self._cut(checkpoint):
            targets.append(PoolTarget(_STATES, blocks - 1, [piece], rect))
        if not store.load_pools(keys[:blocks], _NEEDS, found.tokens, targets):
            return empty, 0, 0
        for index, planes in enumerate(kv.layers(blocks)):
            if planes is not None:
                empty.update(*planes, index)
        restore_states(empty, self._states, checkpoint)
        return empty, found.tokens, found.shared_tokens

    def _save(self, keys: list[bytes], cache: DynamicCache, begin: int, end: int) -> None:
        """Blocks that the node does not have, and the states behind them."""
        first, blocks = begin // self._block_tokens, end // self._block_tokens
        save_blocks(
            self._store, keys[:blocks], first, cache, self._layers, self._block_tokens, _KV_RECT
        )
        [key] = pool_keys(keys[blocks - 1 : blocks], 1, _STATES)
        position = end - self._block_tokens
        pieces = self._cut(checkpoint_of(cache, self._states))
        parts = [Part(key, piece, None, position, rect) for rect, piece in pieces]
        self._store.save(parts, [piece.numel() for _, piece in pieces])

    def _cut(self, checkpoint: torch.Tensor) -> list[tuple[Rect, torch.Tensor]]:
        """The parts of a checkpoint."""
        return [
            (
                Rect(_STATES, _STATES + 1, column, column + 1),
                checkpoint[column * MAX_PART : (column + 1) * MAX_PART],
            )
            for column in range(self._columns)
        ]
