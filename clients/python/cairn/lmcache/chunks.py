"""LMCache's chunks: their names at the node, and their memory."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from cairn.types import Match

if TYPE_CHECKING:
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.memory_management import MemoryFormat, MemoryObj
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

__all__ = ["ChunkMemory", "ChunkNames", "memory_of"]

# The header of a part with one slice, as an opaque one has: docs/inside/formats/part.md.
_PART_HEADER = 128
_RETRY = 0.01


class ChunkNames:
    """Keys at the node for LMCache's keys. Thread-safe.

    A chunk at the node never changes, but LMCache's health check stores other bytes under the same
    key each time and wants to read these: that key gets a new name with each store.
    """

    def __init__(self) -> None:
        self._check = os.urandom(16)

    def to_store(self, keys: Sequence[CacheEngineKey]) -> list[bytes]:
        """Names under which chunks are stored from now on."""
        if any(_of_health_check(key) for key in keys):
            self._check = os.urandom(16)
        return self.to_load(keys)

    def to_load(self, keys: Sequence[CacheEngineKey]) -> list[bytes]:
        """Names under which chunks were stored."""
        return [self._name(key) for key in keys]

    def _name(self, key: CacheEngineKey) -> bytes:
        # Not LMCache's text for a key: tags come with requests, and a "@" in one can make it look
        # like two.
        fields = [
            key.model_name,
            key.world_size,
            key.worker_id,
            key.chunk_hash_hex,
            key._dtype_str,
            [[str(name), str(value)] for name, value in key.tags or ()],
        ]
        digest = hashlib.sha256(b"cairn.lmcache.chunk.v1" + json.dumps(fields).encode())
        if _of_health_check(key):
            digest.update(self._check)
        return digest.digest()


def _of_health_check(key: CacheEngineKey) -> bool:
    return bool(key.model_name == "test" and key.chunk_hash == 0)


class ChunkMemory:
    """Chunks of one form in LMCache's CPU memory: whole ones, and shorter ones at the end of a
    text. Thread-safe."""

    def __init__(
        self,
        backend: LocalCPUBackend,
        shape: torch.Size,
        dtype: torch.dtype,
        fmt: MemoryFormat,
        wait: float,
    ) -> None:
        """`shape`: of a whole chunk. `wait`: seconds to wait for room."""
        self._backend = backend
        self._shape, self._dtype, self._fmt, self._wait = shape, dtype, fmt, wait
        self._tokens = shape[2]
        self._token_bytes = shape.numel() * dtype.itemsize // self._tokens

    def holds(self, item: MemoryObj) -> bool:
        """Whether it is such a chunk."""
        tokens = item.get_size() // self._token_bytes
        return bool(
            0 < tokens <= self._tokens
            and item.get_memory_format() == self._fmt
            and list(item.get_shapes()) == [self._shape_of(tokens)]
            and list(item.get_dtypes()) == [self._dtype]
            and item.get_size() == tokens * self._token_bytes
        )

    def allocate(self, found: Match) -> list[MemoryObj]:
        """Memory for the chunks that were found, or for as many of the first ones as there is room
        for.

        The caller owns a reference to each.
        """
        whole = self._tokens * self._token_bytes + _PART_HEADER
        # Only the last one of a text may be shorter, and only its size tells how long it is.
        last, rest = divmod(
            found.bytes - (found.matched_blocks - 1) * whole - _PART_HEADER, self._token_bytes
        )
        if rest != 0 or not 0 < last <= self._tokens:
            last = self._tokens
        items: list[MemoryObj] = []
        until = time.monotonic() + self._wait
        try:
            for tokens in [self._tokens] * (found.matched_blocks - 1) + [last]:
                item = self._allocate(self._shape_of(tokens), until)
                if item is None:
                    break
                items.append(item)
        except BaseException:
            for item in items:
                item.ref_count_down()
            raise
        return items

    def _allocate(self, shape: torch.Size, until: float) -> MemoryObj | None:
        # LMCache's own waiting has no end, and what it waits for may be waiting for us.
        while (
            item := self._backend.allocate([shape], [self._dtype], self._fmt, busy_loop=False)
        ) is None:
            if time.monotonic() > until:
                return None
            time.sleep(_RETRY)
        return item

    def _shape_of(self, tokens: int) -> torch.Size:
        return torch.Size([*self._shape[:2], tokens, *self._shape[3:]])


def memory_of(item: MemoryObj) -> Any:
    """Its bytes; its owner keeps them alive."""
    return memoryview(item.byte_array).cast("B")
