"""Blocks that were stored a short time ago, for requests that did not ask the node what it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["RecentSaves"]

_SECONDS = 60.0  # After that the node may have lost a block.
_MOST = 65536  # Blocks that are remembered.


class RecentSaves:
    """While nobody asks a slow node, each request would store again what the one before it stored:
    copies, and bytes on a wire that has no room for them. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._stored: dict[bytes, float] = {}

    def has(self, keys: Sequence[bytes]) -> bool:
        """Whether all of these blocks were stored in the last minute. If not, they are from now on:
        the caller stores them."""
        now = self._clock()
        oldest = now - _SECONDS
        if all(self._stored.get(key, oldest) > oldest for key in keys):
            return True
        for key in keys:
            self._stored.pop(key, None)  # The last ones stay longest.
            self._stored[key] = now
        while len(self._stored) > _MOST:
            del self._stored[next(iter(self._stored))]
        return False
