"""Blocks on their way to the node, and the thread that stores them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from cairn._engine.counters import Counters

__all__ = ["SaveQueue"]

_LOG = logging.getLogger("cairn")
_T = TypeVar("_T")


class SaveQueue(Generic[_T]):
    """Thread-safe. A block is under way from `claim` until its item was stored or `forget` is
    called, and is claimed once at a time."""

    def __init__(
        self, counters: Counters, store: Callable[[_T], None], most: int | None = None
    ) -> None:
        """`store`: stores one item, in the queue's thread, in the order of `put`. An exception of
        it is counted and logged. `most`: blocks that are under way at a time; None: any number."""
        self._counters = counters
        self._store = store
        self._most = most
        self._under_way: set[bytes] = set()
        self._items: deque[tuple[_T, list[bytes]]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="cairn-save", daemon=True)
        self._thread.start()

    def claim(self, key: bytes) -> bool:
        """Whether the caller shall save the block: it is not under way, and there is room for it.
        Without room it is counted as dropped."""
        with self._changed:
            if key in self._under_way:
                return False
            if self._most is not None and len(self._under_way) >= self._most:
                self._counters.add("dropped_save_blocks")
                return False
            self._under_way.add(key)
            return True

    def put(self, item: _T, keys: list[bytes]) -> None:
        """`item` has the claimed blocks `keys`. After `close` it is dropped."""
        with self._changed:
            if self._ended:
                self._under_way.difference_update(keys)
            else:
                self._items.append((item, keys))
            self._changed.notify_all()

    def forget(self, keys: Iterable[bytes]) -> None:
        """These claimed blocks are not stored."""
        with self._changed:
            self._under_way.difference_update(keys)
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Waits until nothing is under way. False: it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, seconds)

    def close(self) -> None:
        """Stores what is under way, for 5 s at most. The rest is dropped with a warning."""
        if not self.drain(5.0):
            _LOG.warning("cairn: blocks that were not stored within 5 s are dropped")
        with self._changed:
            self._ended = True
            self._items.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """After `close`: waits until the thread has ended, which it does after the call to the node
        that it is in. The call has a deadline."""
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended)
                if not self._items:
                    return
                item, keys = self._items.popleft()
            try:
                self._store(item)
            except Exception:
                self._counters.add("internal_errors")
                _LOG.exception("cairn: storing failed")
            self.forget(keys)
