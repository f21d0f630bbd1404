"""The client of a cache node, for threads."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator, Sequence
from typing import Literal

from cairn import _native
from cairn._native import Cancellation, Lease
from cairn.errors import Error, error_for
from cairn.types import (
    BlockMemory,
    Breaker,
    CacheEvent,
    ClientStats,
    EventKind,
    Fetched,
    FieldDifference,
    Match,
    MissReason,
    NamespaceSpec,
    NodeStats,
    OpenedNamespace,
    Part,
    Prefetched,
    Rect,
    TierKind,
    TierRun,
    TierStat,
    Tls,
)

__all__ = ["Client", "EventStream", "PendingMatch", "StagedPush", "set_log_level"]


# Between looks for a signal (Ctrl-C) while an answer is awaited.
_SIGNAL_PERIOD = 0.1


def set_log_level(level: Literal["debug", "info", "warn", "error"]) -> None:
    """What all clients of this process write to stderr, such as sessions that come and go; "error"
    at first."""
    _native.set_log_level(level)


def _errors(statuses: list[tuple[int, str] | None]) -> list[Error | None]:
    return [None if status is None else error_for(*status) for status in statuses]


def _match(answer: tuple[int, Lease, list[tuple[int, int, int, float]], int, int, float]) -> Match:
    blocks, held, tiers, reason, size, seconds = answer
    runs = [TierRun(TierKind(tier), count, run, wait) for tier, count, run, wait in tiers]
    return Match(blocks, held, runs, MissReason(reason), size, seconds)


def _fetched(answer: tuple[int, str, int, int, dict[int, int]]) -> Fetched:
    code, message, prefix, size, failed = answer
    reasons = {block: MissReason(reason) for block, reason in failed.items()} if failed else {}
    fetched = Fetched(prefix, reasons, size)
    if code != 0:
        error = error_for(code, message)
        error.fetched = fetched
        raise error
    return fetched


class Client:
    """Speaks to one cache node. Thread-safe; calls wait without the GIL and end by their deadline.

    Making one returns at once and connects in the background: a node that is away is not an error,
    but its calls are (UnavailableError). Where node and client share a machine, bytes go through
    shared memory, by itself; `path` "grpc" forbids that, "local" demands it. All times are in
    seconds. `trace` is logged with everything that a call causes at the node.

    Clients do not survive `fork`: the child of a process that has made one can have none.
    """

    def __init__(
        self,
        address: str,
        *,
        client_name: str = "python",
        path: Literal["auto", "grpc", "local"] = "auto",
        tls: Tls | None = None,
        breaker: Breaker | None = None,
        max_reconnect_backoff: float = 1.0,
        spin: float | None = None,
    ) -> None:
        """`address`: host:port or unix:/path. `spin`: how long a call over shared memory looks for
        its answer before it sleeps; None leaves that to the client."""
        self._connection = _native.connect(
            address, client_name, path, tls, breaker, max_reconnect_backoff, spin
        )
        _open_clients.add(self)

    def open_namespace(
        self, spec: NamespaceSpec, *, deadline: float = 1.0, trace: str = ""
    ) -> OpenedNamespace:
        """Registers the namespace at the node, and here: `fetch` and `push` need to know its
        layout.

        A valid spec is remembered even when the call fails, and is opened whenever a session
        begins:
        who starts before the node only needs `cairn.fingerprint(spec)`.
        """
        fingerprint, created, differs = self._connection.open_namespace(spec, deadline, trace)
        return OpenedNamespace(fingerprint, created, [FieldDifference(*d) for d in differs])

    def match(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        *,
        lease: bool = True,
        lease_ttl: float = 0.0,
        prefill_tokens_per_second: float = 0.0,
        deadline: float = 0.05,
        trace: str = "",
    ) -> Match:
        """The longest complete prefix of `keys` at the node, and a lease on it.

        A miss is an answer with `matched_blocks` 0. `lease=False` only asks. `lease_ttl` 0: the
        node's default (30 s). `prefill_tokens_per_second`: for the node's metric of seconds saved.
        """
        return _match(
            self._connection.match(
                fingerprint, keys, lease, lease_ttl, prefill_tokens_per_second, deadline, trace
            )
        )

    def begin_match(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        *,
        prefetch_in: float | None = None,
        deadline: float = 0.05,
        trace: str = "",
    ) -> PendingMatch:
        """A match without a lease that goes on by itself, for a caller who has something else to
        do.

        It waits in a thread of the client that holds no GIL; two are answered at a time, and a
        deadline counts from there. `prefetch_in`: the node is also asked to have what matched in
        its memory in so many seconds, with a deadline of its own.
        """
        return PendingMatch(
            self._connection.begin_match(fingerprint, keys, prefetch_in, deadline, trace)
        )

    def fetch(
        self,
        lease: Lease,
        into: BlockMemory,
        *,
        first_block: int = 0,
        rect: Rect | None = None,
        progress: float = 1.0,
        deadline: float = 30.0,
        cancel: Cancellation | None = None,
        trace: str = "",
    ) -> Fetched:
        """Brings the blocks from `first_block` of the match on, one for each item or row of `into`.

        It is writable memory for the block's rectangle `rect` (None: all of it): one buffer, or
        several that follow each other, such as one for each layer. Bytes go straight there, each
        slice verified. In an opaque layout `rect` is that of one stored part.

        A block that cannot be served does not fail the call, see `Fetched.failed`. An error says in
        `Error.fetched` what came before it. `progress`: longest time without a slice.
        """
        return _fetched(
            self._connection.fetch(
                lease, into, first_block, rect, progress, deadline, cancel, trace
            )
        )

    def get(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        into: BlockMemory,
        *,
        rect: Rect | None = None,
        lookup_deadline: float = 0.05,
        progress: float = 1.0,
        deadline: float = 30.0,
        cancel: Cancellation | None = None,
        trace: str = "",
    ) -> Fetched:
        """Match, fetch and the lease's end in one call: as much of `keys` as the node has, from the
        first one on.

        `into` has memory for each key, as for `fetch`. A block that the node does not have is in
        `Fetched.failed`. `deadline` is the fetch's, `lookup_deadline` the
        match's, which `cancel` does not end.
        """
        return _fetched(
            self._connection.get(
                fingerprint, keys, into, rect, lookup_deadline, progress, deadline, cancel, trace
            )
        )

    def push(
        self,
        fingerprint: bytes,
        parts: Sequence[Part],
        *,
        reservation_ttl: float = 0.0,
        deadline: float = 10.0,
        trace: str = "",
    ) -> list[Error | None]:
        """Stores parts. For each its error, or None: it is stored, perhaps since long.

        The memory of the parts must not change before the call returns. An exception means that
        none is known to be stored.
        """
        return _errors(self._connection.push(fingerprint, parts, reservation_ttl, deadline, trace))

    def stage(
        self,
        fingerprint: bytes,
        parts: Sequence[Part],
        *,
        reservation_ttl: float = 0.0,
        deadline: float = 1.0,
        commit_deadline: float = 10.0,
        trace: str = "",
    ) -> StagedPush:
        """Copies parts out, for who needs their memory back at once; nothing is stored before
        `commit`.

        On the node's machine the bytes go straight to their place at the node, else to memory of
        the client. `deadline` is for getting room, `commit_deadline` for the commit.
        `reservation_ttl`: how long the node keeps the room; 0: its default (30 s).
        """
        return StagedPush(
            self._connection,
            self._connection.stage(
                fingerprint, parts, reservation_ttl, deadline, commit_deadline, trace
            ),
        )

    def prefetch(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        needed_in: float,
        *,
        deadline: float = 1.0,
        trace: str = "",
    ) -> Prefetched:
        """A hint: these blocks will be matched in about `needed_in` seconds. Promises nothing."""
        return Prefetched(*self._connection.prefetch(fingerprint, keys, needed_in, deadline, trace))

    def exists(
        self, fingerprint: bytes, keys: Sequence[bytes], *, deadline: float = 1.0, trace: str = ""
    ) -> list[TierKind | None]:
        """Per key the fastest tier that holds the complete block. No lease, no promise."""
        tiers = self._connection.exists(fingerprint, keys, deadline, trace)
        return [None if tier is None else TierKind(tier) for tier in tiers]

    def renew_lease(
        self, lease: Lease, ttl: float, *, deadline: float = 1.0, trace: str = ""
    ) -> float:
        """Returns how long the lease now lives. NotFoundError: it has ended."""
        return self._connection.renew_lease(lease, ttl, deadline, trace)

    def flush(self, *, deadline: float = 10.0, trace: str = "") -> None:
        """Returns when everything committed before is on the node's disk."""
        self._connection.flush(deadline, trace)

    def stat(self, *, deadline: float = 1.0, trace: str = "") -> NodeStats:
        """The node's totals."""
        fields = self._connection.stat(deadline, trace)
        fields["tiers"] = [TierStat(TierKind(tier), *rest) for tier, *rest in fields["tiers"]]
        fields["misses"] = {MissReason(i): blocks for i, blocks in enumerate(fields["misses"])}
        return NodeStats(**fields)

    def watch(self, fingerprint: bytes | None = None, *, snapshot: bool = False) -> EventStream:
        """Events of the node, of one namespace or all (None).

        `snapshot`: first a STORED for each block that is there, then SNAPSHOT_END.
        """
        return EventStream(self._connection, self._connection.watch(fingerprint, snapshot))

    def stats(self) -> ClientStats:
        """This client's totals. Asks nobody."""
        return ClientStats(**self._connection.stats())

    def close(self) -> None:
        """Ends fetches and watches with CancelledError, waits for other calls, and ends the
        session.

        Later calls fail with FailedPreconditionError. May be repeated.
        """
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PendingMatch:
    """The answer of `Client.begin_match`, which may not be there yet. Thread-safe."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.PendingMatch) -> None:
        self._native = native

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self._native.done()

    def wait(self, seconds: float) -> bool:
        """Until it is done; False when that took longer."""
        return self._native.wait(seconds)

    def result(self) -> Match:
        """Waits for the answer. Raises as `Client.match`."""
        while not self._native.wait(_SIGNAL_PERIOD):
            pass
        return _match(self._native.answer()[0])

    def prefetch_error(self) -> Error | None:
        """What became of the hint, once there is a result."""
        failure = self._native.answer()[1]
        return None if failure is None else error_for(*failure)

    @property
    def seconds(self) -> float:
        """That the match took, once it is done."""
        return self._native.seconds()


class StagedPush:
    """Parts that are copied and not stored yet. Leaving the `with` block, or collection, drops what
    was not committed.

    Used by one thread at a time, which need not be the one that staged.
    """

    def __init__(self, connection: _native.Connection, push: int) -> None:
        self._connection = connection
        self._push = push

    def commit(self) -> list[Error | None]:
        """Stores the parts, once. As `Client.push`. FailedPreconditionError: it was committed or
        dropped before."""
        return _errors(self._connection.commit_staged(self._push))

    def drop(self) -> None:
        """Gives the room back. May be repeated, also after `commit`."""
        self._connection.drop_staged(self._push)

    def __enter__(self) -> StagedPush:
        return self

    def __exit__(self, *exception: object) -> None:
        self.drop()

    def __del__(self) -> None:
        self.drop()


class EventStream:
    """Events of a node. One thread reads; any may close. Iterating waits for ever for the next one.

    UnavailableError: the connection broke; ResourceExhaustedError: this reader was too slow. After
    both start again, with a snapshot.
    """

    def __init__(self, connection: _native.Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def next(self, wait: float | None = None) -> CacheEvent | None:
        """The next event; None when `wait` seconds passed without one."""
        event = self._connection.next_event(self._stream, wait)
        if event is None:
            return None
        kind, node_epoch, sequence, fingerprint, key, parent, tier = event
        return CacheEvent(
            EventKind(kind), node_epoch, sequence, fingerprint, key, parent, TierKind(tier)
        )

    def close(self) -> None:
        """Ends the watch; a `next` that waits ends with CancelledError. May be repeated."""
        self._connection.end_watch(self._stream)

    def __iter__(self) -> Iterator[CacheEvent]:
        while (event := self.next()) is not None:
            yield event

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


# Threads that are in a call when the interpreter goes cannot come back: their calls are ended
# before.
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_clients() -> None:
    for client in list(_open_clients):
        client.close()
