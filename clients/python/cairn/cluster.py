"""The events of all members of a cluster, for routers that keep an index of who holds what."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from cairn import _native
from cairn.types import CacheEvent, EventKind, TierKind, Tls

__all__ = ["ClusterEvents", "MemberEvent", "MemberEventKind"]


class MemberEventKind(enum.IntEnum):
    """The kinds of a member's events, and what an index does with each."""

    SNAPSHOT_BEGINS = 0
    """Remember what it has of this member as old."""
    SNAPSHOT_ENDS = 1
    """Forget what is still old: it has gone."""
    EVENT = 2
    """As for a single node."""
    MEMBER_LOST = 3
    """Forget all of this member, and send no requests there."""


@dataclass(frozen=True)
class MemberEvent:
    """Something happened at a member of the cluster."""

    kind: MemberEventKind
    node_id: str
    address: str
    event: CacheEvent | None
    """The event of a block; of EVENT only."""


class ClusterEvents:
    """Follows every member of a cluster. One thread reads, and any thread may close it. Iteration
    waits for the next event without a limit.

    A snapshot of a member comes at the beginning, and whenever something may have been missed: the
    stream broke, the node restarted, or this reader was too slow. A node that is alone is followed
    too. Does not survive `fork`.
    """

    def __init__(
        self,
        address: str,
        *,
        fingerprint: bytes | None = None,
        refresh: float = 5.0,
        lost_after: float = 5.0,
        client_name: str = "python",
        tls: Tls | None = None,
        tenant: str = "",
    ) -> None:
        """`address`: one or more nodes, with commas between them, which name the others.
        `fingerprint`: one namespace; None: all. `refresh`: seconds between two looks at the list of
        members. `lost_after`: seconds without a stream after which a member is lost. `tenant`: as
        for `Client`."""
        self._watch = _native.watch_cluster(
            address, client_name, tls, tenant, fingerprint, refresh, lost_after
        )

    def next(self, wait: float | None = None) -> MemberEvent | None:
        """Returns the next event, or None when `wait` seconds passed without one."""
        told = self._watch.next(wait)
        if told is None:
            return None
        kind, node_id, address, event = told
        happened = None
        if event is not None:
            of, node_epoch, sequence, fingerprint, key, parent, tier, pool = event
            happened = CacheEvent(
                EventKind(of), node_epoch, sequence, fingerprint, key, parent, TierKind(tier), pool
            )
        return MemberEvent(MemberEventKind(kind), node_id, address, happened)

    def members(self) -> list[str]:
        """Ids of the members that are followed, lost ones included."""
        return self._watch.members()

    def close(self) -> None:
        """Ends the watch. A `next` that waits ends with CancelledError. You may call it again."""
        self._watch.close()

    def __iter__(self) -> Iterator[MemberEvent]:
        while (event := self.next()) is not None:
            yield event

    def __enter__(self) -> ClusterEvents:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
