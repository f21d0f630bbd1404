"""Memory that engines name by its address."""

from __future__ import annotations

import ctypes

__all__ = ["memory_at"]


def memory_at(address: int, size: int) -> memoryview:
    """`size` writable bytes at the address. The caller must keep them alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
