"""The keys of a request's blocks."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from cairn._engine.store import Store
from cairn.keys import block_key, block_keys
from cairn.vllm.adapters import Adapter
from cairn.vllm.namespace import Plan

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["RequestKeys"]


class RequestKeys:
    """Keys are vLLM's own block hashes, or ours over tokens and salt. Called by the engine's one
    scheduler thread."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store = store
        self._plan = plan
        self._mix = b""

    def are_the_engine_s(self, adapter: Adapter | None) -> bool:
        """Whether the keys of a request are its `block_hashes` as they are."""
        return self._plan.engine_keys and not self._mix and adapter is None

    def reset(self) -> None:
        """From now on, keys are others than before, and no other process has them."""
        self._mix = os.urandom(16)

    def extended(
        self, request: Request, adapter: Adapter | None, known: list[bytes], blocks: int
    ) -> list[bytes]:
        """The keys of the first `blocks` full blocks, of which `known` are the first ones. Fewer if
        the engine has hashed no more. `known` is not changed.

        With an adapter they are ours: vLLM's hashes have its name and path, and not its bytes.
        """
        if adapter is not None or not self._plan.engine_keys:
            return self._own_keys(request, adapter, known, blocks)
        new = request.block_hashes[len(known) : blocks]
        if self._mix:
            new = [self._mixed(key) for key in new]
        return known + new if known else new

    def _own_keys(
        self, request: Request, adapter: Adapter | None, known: list[bytes], blocks: int
    ) -> list[bytes]:
        """Keys over tokens, the adapter and the salt. Requests with other inputs are bypassed."""
        size, namespace = self._plan.block_tokens, self._store.namespace
        extra = (request.cache_salt or "").encode() + self._mix
        if adapter is not None:
            extra = adapter.extra + extra
        if not extra:
            return block_keys(namespace, request.all_token_ids[: blocks * size], size)
        keys = list(known)
        tokens = request.all_token_ids[len(keys) * size : blocks * size]
        for begin in range(0, len(tokens) // size * size, size):
            part = tokens[begin : begin + size]
            keys.append(
                block_key(namespace, part, keys[-1], b"")
                if keys
                else block_key(namespace, part, None, extra)
            )
        return keys

    def _mixed(self, key: bytes) -> bytes:
        return hashlib.sha256(b"cairn.vllm.reset.v1" + self._mix + key).digest()
