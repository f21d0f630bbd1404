"""Puts the node's blocks into the engine's own stream of KV events, so that routers see the node as
a tier of this engine.

Connector and tier share the feed. They differ in how vLLM wants to be told: the connector makes
events of vLLM's stream (`block_event`), the tier makes events that vLLM's offloading translates
(cairn.vllm.tier).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    MEDIUM_STORAGE,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as event_hash

from cairn._engine.store import Store
from cairn.errors import CancelledError, Error, FailedPreconditionError
from cairn.keys import pool_keys
from cairn.types import CacheEvent, EventKind, TierKind

__all__ = ["OWNER", "EventFeed", "Move", "block_event"]

OWNER = "cairn"
"""The name of the node in events."""

_LOG = logging.getLogger("cairn")
_MEDIA = {TierKind.HOST: MEDIUM_CPU, TierKind.DISK: MEDIUM_STORAGE}
# Where a block is that has left a tier and is not gone, if no event has said it.
_ELSEWHERE = {
    TierKind.DEVICE: TierKind.HOST,
    TierKind.HOST: TierKind.DISK,
    TierKind.DISK: TierKind.HOST,
}
_Event = TypeVar("_Event")
_MOST = 100_000  # Events that wait for the engine's next step; then it starts again.
_LOOK = 0.25  # Seconds between looks whether to end.
_RETRY = 1.0  # Seconds until a broken stream is opened again.


@dataclasses.dataclass(frozen=True)
class Move:
    """A block came into a tier of the node, or left it."""

    key: bytes
    tier: TierKind
    entered: bool
    parent: bytes | None = None
    """The block before one that came, if the node knows it."""
    pool: int = 0
    """The number of the block's pool. 0 without pools."""


def block_event(groups: Sequence[Any]) -> Callable[[Move], KVCacheEvent]:
    """Renders moves for vLLM's own stream. `groups`: the engine's KV cache groups. If there are
    several, each is the pool of the same number."""
    kinds = [_kind(group.kv_cache_spec) for group in groups] if len(groups) > 1 else [(None, None)]

    def name(key: bytes, pool: int) -> Any:
        # The mask of a pool, put on twice, is gone: what is left is vLLM's hash.
        return event_hash(pool_keys([key], 1, pool)[0])

    def render(move: Move) -> KVCacheEvent:
        group = move.pool if len(groups) > 1 else None
        if not move.entered:
            return BlockRemoved(
                block_hashes=[name(move.key, move.pool)],
                medium=_MEDIA[move.tier],
                group_idx=group,
                locality="REMOTE",
                ownership=OWNER,
            )
        kind, window = kinds[move.pool]
        return BlockStored(
            block_hashes=[name(move.key, move.pool)],
            parent_block_hash=None if move.parent is None else name(move.parent, move.pool),
            token_ids=[],
            block_size=groups[move.pool].kv_cache_spec.block_size,
            lora_id=None,
            medium=_MEDIA[move.tier],
            lora_name=None,
            group_idx=group,
            kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=window,
            locality="REMOTE",
            ownership=OWNER,
        )

    return render


def _kind(spec: Any) -> tuple[str, int | None]:
    """The kind of a group's layers and their window, as vLLM's own events say them."""
    from vllm.v1.kv_cache_interface import (
        get_kv_cache_spec_kind,
        get_kv_cache_spec_sliding_window,
    )

    return get_kv_cache_spec_kind(spec).value, get_kv_cache_spec_sliding_window(spec)


class EventFeed(Generic[_Event]):
    """Follows one namespace of a node in a thread of its own.

    After a broken connection it begins with a snapshot and reports the blocks that are gone since
    then. Events carry no tokens, because a node does not know them. They add a tier to blocks that
    routers know by their hash.
    """

    def __init__(self, store: Store, render: Callable[[Move], _Event | None]) -> None:
        """`render` makes an event of each move, in the feed's thread. None: it cannot name the
        block yet, and `named` says when it can."""
        self._store = store
        self._render = render
        self._lock = threading.Lock()
        self._waiting: deque[_Event] = deque()
        # The tiers by block that the node told of.
        self._told: dict[bytes, set[TierKind]] = {}
        # The pools of these blocks, but for the first pool's.
        self._pools: dict[bytes, int] = {}
        # The blocks of these that `render` could not name.
        self._nameless: set[bytes] = set()
        self._named: deque[bytes] = deque(maxlen=_MOST)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cairn-events", daemon=True)
        self._thread.start()

    def take(self) -> list[_Event]:
        """The events since the last call."""
        with self._lock:
            events, self._waiting = list(self._waiting), deque()
        return events

    def named(self, key: bytes) -> None:
        """`render` can name this block from now on."""
        self._named.append(key)

    def stop(self) -> None:
        """Says nothing any more. Does not wait for the thread."""
        with self._lock:
            self._closed.set()
            self._waiting.clear()

    def close(self) -> None:
        """Ends the thread."""
        self.stop()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow()
            except (CancelledError, FailedPreconditionError):
                return
            except Error as error:
                _LOG.debug("cairn: the node's events broke off: %s", error)
            except Exception:
                self._store.counters.add("internal_errors")
                _LOG.exception("cairn: the node's events are not followed any more")
                return
            self._closed.wait(_RETRY)

    def _follow(self) -> None:
        with self._store.watch() as stream:
            snapshot: set[bytes] | None = set()
            while not self._closed.is_set():
                event = stream.next(_LOOK)
                self._say_named()
                if event is None:
                    continue
                if event.kind is EventKind.SNAPSHOT_END:
                    for key in self._told.keys() - (snapshot or set()):
                        self._forget(key)
                    snapshot = None
                elif snapshot is not None and event.kind is EventKind.STORED:
                    snapshot.add(event.key)
                    # It may have left a tier unseen.
                    for tier in self._told.get(event.key, set()) - {event.tier}:
                        self._left(event.key, tier)
                    self._entered(event)
                else:
                    self._happened(event)
                if len(self._waiting) > _MOST:
                    return

    def _happened(self, event: CacheEvent) -> None:
        if event.kind in (EventKind.STORED, EventKind.TIER_ADDED):
            self._entered(event)
        elif event.kind is EventKind.TIER_REMOVED:
            # Not gone, so it is in another tier; a snapshot had told of the fastest one alone.
            if not self._told.get(event.key, set()) - {event.tier}:
                self._entered(dataclasses.replace(event, tier=_ELSEWHERE[event.tier]))
            self._left(event.key, event.tier)
        elif event.kind is EventKind.REMOVED:
            self._forget(event.key)
        elif event.kind is EventKind.NAMESPACE_DROPPED:
            for key in list(self._told):
                self._forget(key)

    def _entered(self, event: CacheEvent) -> None:
        tiers = self._told.setdefault(event.key, set())
        if event.pool:  # The node says it when it stores the block, and not again.
            self._pools[event.key] = event.pool
        if event.tier in tiers:
            return
        tiers.add(event.tier)
        self._say(event.key, event.tier, True, event.parent)

    def _left(self, key: bytes, tier: TierKind) -> None:
        tiers = self._told.get(key, set())
        if tier in tiers:
            tiers.remove(tier)
            self._say(key, tier, False)

    def _forget(self, key: bytes) -> None:
        for tier in list(self._told.get(key, ())):
            self._left(key, tier)
        self._told.pop(key, None)
        self._pools.pop(key, None)
        self._nameless.discard(key)

    def _say_named(self) -> None:
        while self._named:
            key = self._named.popleft()
            if key in self._nameless:
                self._nameless.discard(key)
                for tier in self._told.get(key, ()):
                    self._say(key, tier, True)

    def _say(self, key: bytes, tier: TierKind, entered: bool, parent: bytes | None = None) -> None:
        if tier is TierKind.DEVICE:
            return  # Routers know no medium for a node's own GPU memory.
        if key in self._nameless:
            return
        event = self._render(Move(key, tier, entered, parent, self._pools.get(key, 0)))
        if event is None:
            self._nameless.add(key)
            return
        with self._lock:
            if not self._closed.is_set():
                self._waiting.append(event)
