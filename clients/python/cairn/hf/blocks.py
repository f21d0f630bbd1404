"""KV between the caches of transformers and the blocks of a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from cairn._engine.store import Store
from cairn.hf.layers import KeptLayer, block_bytes
from cairn.types import Match, Part, Rect

__all__ = ["EmptyBlocks", "load_blocks", "save_blocks"]

_PUSH_PARTS = 16  # Parts in one call to the node.


class EmptyBlocks:
    """Tensors of the form that the model uses, where the tokens of a head follow each other, for
    blocks to be loaded into."""

    def __init__(self, layers: Sequence[KeptLayer], blocks: int, block_tokens: int) -> None:
        self._layers = layers
        self._block_tokens = block_tokens
        self._kept = [
            [torch.empty((1, p.heads, blocks * block_tokens, p.dim), dtype=p.dtype) for p in layer]
            for layer in layers
        ]
        self.into = [
            [
                plane[0, head, i * block_tokens : (i + 1) * block_tokens]
                for planes in self._kept
                for plane in planes
                for head in range(plane.shape[1])
            ]
            for i in range(blocks)
        ]
        """The memory of each block."""

    def layers(self, blocks: int) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
        """The tensors of each layer with the first `blocks` blocks, on its device. None: it keeps
        nothing."""
        tensors: list[tuple[torch.Tensor, torch.Tensor] | None] = []
        for layer, planes in zip(self._layers, self._kept):
            if not layer:
                tensors.append(None)
                continue
            k, v = (
                plane[:, :, : blocks * self._block_tokens].to(facts.device)
                for facts, plane in zip(layer, planes)
            )
            tensors.append((k, v))
        return tensors


def load_blocks(
    store: Store, keys: list[bytes], found: Match, layers: Sequence[KeptLayer], block_tokens: int
) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor] | None]]:
    """How many blocks came, and for each layer what it keeps of them, if it keeps anything."""
    empty = EmptyBlocks(layers, len(keys), block_tokens)
    failed = store.load(keys, 0, empty.into, found=found)
    blocks = min(failed, default=len(keys))
    return blocks, empty.layers(blocks)


def save_blocks(
    store: Store,
    keys: list[bytes],
    first: int,
    cache: Cache,
    layers: Sequence[KeptLayer],
    block_tokens: int,
    rect: Rect | None = None,
) -> int:
    """Stores the blocks from `keys[first]` on. Returns how many the node has now. `rect`: their
    place in a layout of several pools.

    The last block may be filled in part: what is missing is stored as zeros. ValueError: the cache
    has other KV than `layers`, or has dropped some.
    """
    size = block_bytes(layers, block_tokens)
    stored = first
    while first < len(keys):
        batch = range(first, min(first + _PUSH_PARTS, len(keys)))
        parts = [
            Part(
                keys[i],
                list(_pieces(cache, layers, i * block_tokens, block_tokens)),
                parent=keys[i - 1] if i else None,
                first_position=i * block_tokens,
                rect=rect,
            )
            for i in batch
        ]
        stored += sum(store.save(parts, [size] * len(parts)))
        first = batch.stop
    return stored


def _pieces(
    cache: Cache, layers: Sequence[KeptLayer], begin: int, tokens: int
) -> Iterator[torch.Tensor]:
    for index, planes in enumerate(layers):
        layer: Any = cache.layers[index]
        if not planes:
            continue
        if layer.keys.shape[2] != layer.get_seq_length():
            raise ValueError(
                f"layer {index} of the cache has only its window, {layer.keys.shape[2]} of "
                f"{layer.get_seq_length()} tokens: use the cache that `restore` returns"
            )
        for tensor, facts in zip((layer.keys, layer.values), planes):
            piece = tensor[0, :, begin : begin + tokens].to("cpu").contiguous()
            missing = tokens - piece.shape[1]
            if (
                piece.shape != (facts.heads, tokens - missing, facts.dim)
                or piece.dtype != facts.dtype
            ):
                raise ValueError(
                    f"KV of shape {tuple(piece.shape)} {piece.dtype}, "
                    f"expected {(facts.heads, tokens, facts.dim)} {facts.dtype}"
                )
            if missing:
                piece = torch.nn.functional.pad(piece, (0, 0, 0, missing))
            yield piece
