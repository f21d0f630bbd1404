"""Known numbers through vLLM's own operation into its pages, and out of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["VllmPages"]

_TYPES = (torch.float16, torch.bfloat16)


class VllmPages:
    """As `PageAccess` of number_places.py. Waits for the device at each call, so it is for the
    start."""

    def __init__(
        self,
        layers: Mapping[str, Any],
        kv_caches: Mapping[str, torch.Tensor],
        blocks: int,
        block_tokens: int,
    ) -> None:
        """`layers`: vLLM's attention layers by name, with the operation of their backend.

        ValueError: pages that the operation cannot be asked about.
        """
        for name, cache in kv_caches.items():
            if cache.dtype not in _TYPES:
                raise ValueError(
                    f"layer '{name}' has KV of type {cache.dtype}, expected float16 or bfloat16"
                )
            if cache.shape[0] != blocks:
                raise ValueError(
                    f"layer '{name}' has {cache.shape[0]} blocks, expected the engine's {blocks}"
                )
            operation = getattr(getattr(layers.get(name), "impl", None), "do_kv_cache_update", None)
            if operation is None:
                raise ValueError(
                    f"layer '{name}' has no operation of vLLM that writes its pages, "
                    "expected do_kv_cache_update"
                )
        self._layers = layers
        self._caches = kv_caches
        self._block_tokens = block_tokens

    def write(
        self, layer: str, block: int, keys: NDArray[np.float32], values: NDArray[np.float32]
    ) -> None:
        """[tokens, heads, dim]."""
        cache = self._caches[layer]
        attention = self._layers[layer]
        slots = torch.arange(self._block_tokens, dtype=torch.int64) + block * self._block_tokens
        k, v = (
            torch.from_numpy(numbers).to(device=cache.device, dtype=cache.dtype)
            for numbers in (keys, values)
        )
        attention.impl.do_kv_cache_update(attention, k, v, cache, slots.to(cache.device))

    def read(self, layer: str, block: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Addresses, and the numbers there."""
        page = self._caches[layer][block]
        address: NDArray[np.int64] = np.full(1, page.data_ptr(), np.int64)
        for size, stride in zip(page.shape, page.stride()):
            address = (
                address[:, None] + 2 * stride * np.arange(size, dtype=np.int64)[None, :]
            ).reshape(-1)
        return address, page.reshape(-1).to(device="cpu", dtype=torch.float32).numpy()
