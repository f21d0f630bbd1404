"""The client of a cache node, for threads."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

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
    PoolMatch,
    PoolNeed,
    PoolRun,
    Prefetched,
    Rect,
    TierKind,
    TierRun,
    TierStat,
    Tls,
)

if TYPE_CHECKING:
    from cairn._native import MatchAnswer

__all__ = ["Client", "EventStream", "PendingMatch", "StagedPush", "set_log_level"]


# Between looks for a signal (Ctrl-C) while an answer is awaited.
_SIGNAL_PERIOD = 0.1


def set_log_level(level: Literal["debug", "info", "warn", "error"]) -> None:
    """Sets what all clients of this process write to stderr, for example that a session began or
    ended. The default is "error"."""
    _native.set_log_level(level)


def _errors(statuses: list[tuple[int, str] | None]) -> list[Error | None]:
    return [None if status is None else error_for(*status) for status in statuses]


def _match(answer: MatchAnswer) -> Match:
    return Match(*_fields(answer))


def _fields(
    answer: MatchAnswer,
) -> tuple[int, Lease, list[TierRun], MissReason, int, float]:
    blocks, held, tiers, reason, size, seconds, _ = answer
    runs = [
        TierRun(None if tier is None else TierKind(tier), count, run, wait)
        for tier, count, run, wait in tiers
    ]
    return blocks, held, runs, MissReason(reason), size, seconds


def _pool_match(answer: MatchAnswer, step: int) -> PoolMatch:
    tokens, runs, limiting, bits = answer[6] or (0, [], None, b"")
    lengths = [
        (at * 8 + bit + 1) * step
        for at, byte in enumerate(bits)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    ]
    return PoolMatch(*_fields(answer), tokens, [PoolRun(*run) for run in runs], limiting, lengths)


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
    """Talks to a cache node, or to one of several at a time. Thread-safe. Calls wait without the
    GIL and end at their deadline at the latest.

    The constructor returns at once and connects in the background. A node that cannot be reached is
    not an error there, but calls then raise UnavailableError. When node and client are on the same
    machine, bytes go through shared memory automatically. `path` "grpc" forbids that, and "local"
    allows nothing else. All times are in seconds. The node logs `trace` with everything that a call
    causes.

    Clients do not survive `fork`: a process that was forked from one that had made a client cannot
    make or use any.
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
        tenant: str = "",
        host: str = "",
        zone: str = "",
        home_key: str = "",
        device: tuple[str, int] | None = None,
    ) -> None:
        """`address`: host:port, unix:/path, or dns:name:port for all addresses of a name; several
        of these with commas between them. `spin`: how long a call over shared memory looks for its
        answer before it sleeps. None: the client chooses. `tenant`: the only tenant whose
        namespaces this client will use. The node then refuses others, and shares the memory of no
        other one with this client. Empty: any. `device`: for `fetch_on_device`, the library that
        drives GPUs (empty: NVIDIA's) and the number of one. A GPU that is not there, or cannot
        share its memory, is none.

        If there are several nodes, the client uses one of them, its home: preferably one whose
        `cluster.host` is `host`, then one whose `cluster.zone` is `zone`. Among equals clients with
        the same `home_key` (empty: `client_name`) prefer the same node. When the home is lost,
        calls go to the next one, and they return 30 seconds after it is back."""
        self._connection = _native.connect(
            device,
            address=address,
            client_name=client_name,
            path=path,
            tls=tls,
            breaker=breaker,
            max_reconnect_backoff=max_reconnect_backoff,
            spin=spin,
            tenant=tenant,
            host=host,
            zone=zone,
            home_key=home_key,
        )
        _open_clients.add(self)

    def open_namespace(
        self,
        spec: NamespaceSpec,
        *,
        block_life: float = 0.0,
        deadline: float = 1.0,
        trace: str = "",
    ) -> OpenedNamespace:
        """Registers the namespace at the node, and here: `fetch` and `push` need to know its
        layout.

        The client remembers a valid spec even when the call fails, and opens the namespace whenever
        a session begins. A program that starts before the node therefore only needs
        `cairn.fingerprint(spec)`.

        `block_life`: a block is not served any more when this many seconds have passed since its
        last use; 1 second to 90 days. 0: as the namespace has it already, or else the node's
        default. Only an administrator can make it shorter than it is: for all others a shorter one
        changes nothing.
        """
        fingerprint, created, differs = self._connection.open_namespace(
            spec, block_life, deadline, trace
        )
        return OpenedNamespace(fingerprint, created, [FieldDifference(*d) for d in differs])

    def match(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        *,
        lease: bool = True,
        lease_ttl: float = 0.0,
        prefill_tokens_per_second: float = 0.0,
        holders: Sequence[str] = (),
        next: str = "unknown",
        wait: float = 0.0,
        wait_blocks: int = 0,
        announce: bool = False,
        deadline: float = 0.05,
        trace: str = "",
    ) -> Match:
        """Finds the longest complete prefix of `keys` at the node, and leases it.

        A miss is an answer with `matched_blocks` 0. `lease=False` only asks. `lease_ttl` 0: the
        node's default (30 s). `prefill_tokens_per_second`: for the node's metric of seconds saved.
        `holders`: ids of at most 4 nodes that are known to hold the blocks; a node of a cluster
        asks them first. `next`: what the conversation does next, as far as the caller knows: it
        goes on "soon" (within minutes) or "later", or "never". The node keeps blocks accordingly.
        `wait`: seconds, in addition to `deadline`, that the node may wait for blocks that somebody
        writes now, until `wait_blocks` (0: all) of them match. `announce`: the caller computes and
        pushes what does not match; until the lease ends, matches that wait count it as a writer.
        """
        return _match(
            self._connection.match(
                fingerprint,
                keys,
                lease=lease,
                lease_ttl=lease_ttl,
                prefill_tokens_per_second=prefill_tokens_per_second,
                holders=holders,
                next=next,
                wait=wait,
                wait_blocks=wait_blocks,
                announce=announce,
                deadline=deadline,
                trace=trace,
            )
        )

    def match_pools(
        self,
        fingerprint: bytes,
        unit_keys: Sequence[bytes],
        pools: Sequence[PoolNeed],
        *,
        step: int,
        most: int = 0,
        all_lengths: bool = False,
        lease: bool = True,
        lease_ttl: float = 0.0,
        prefill_tokens_per_second: float = 0.0,
        next: str = "unknown",
        wait: float = 0.0,
        wait_blocks: int = 0,
        announce: bool = False,
        deadline: float = 0.05,
        trace: str = "",
    ) -> PoolMatch:
        """Finds after how many tokens every pool has what the model needs of it, and leases what
        the longest such length needs.

        For a namespace with a `PooledLayout`. `unit_keys`: a key for each unit of the prompt.
        `step`: lengths are multiples of it, in tokens, which is a multiple of the unit. `most`:
        lengths are at most this, in tokens; 0: as long as the keys. `all_lengths`: all restorable
        lengths are told. `wait_blocks` and `announce` are about blocks of pool 0. The rest is as in
        `match`. A pool's blocks are fetched with the rectangle of one of its parts, and
        `first_block` is the number of its first block in the lease.
        """
        if step < 1:
            raise ValueError(f"step: got {step}, expected at least 1")
        answer = self._connection.match(
            fingerprint,
            unit_keys,
            lease=lease,
            lease_ttl=lease_ttl,
            prefill_tokens_per_second=prefill_tokens_per_second,
            holders=(),
            next=next,
            wait=wait,
            wait_blocks=wait_blocks,
            announce=announce,
            deadline=deadline,
            trace=trace,
            pools=pools,
            step=step,
            most=most,
            all_lengths=all_lengths,
        )
        return _pool_match(answer, step)

    def begin_match(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        *,
        prefetch_in: float | None = None,
        deadline: float = 0.05,
        trace: str = "",
    ) -> PendingMatch:
        """Starts a match without a lease, which runs in the background while the caller does
        something else.

        It waits in a thread of the client that does not hold the GIL. Two matches run at a time,
        and a deadline counts from when a match begins to run. `prefetch_in`: also asks the node to
        have the matched blocks in its memory in this number of seconds, with a deadline of its own.
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
        """Gets the blocks from `first_block` of the match on, one for each item or row of `into`.

        An item or row is writable memory for the block's rectangle `rect` (None: all of the block).
        It is one buffer, or several that follow each other, for example one for each layer. Bytes
        go directly there, and each slice is verified. In an opaque layout `rect` is that of one
        stored part.

        When a block cannot be served the call still succeeds: see `Fetched.failed`. `Error.fetched`
        of an error says what came before it. `progress`: the longest time without a new slice.
        """
        return _fetched(
            self._connection.fetch(
                lease, into, first_block, rect, progress, deadline, cancel, trace
            )
        )

    def fetch_on_device(
        self,
        lease: Lease,
        into: BlockMemory,
        device: _native.DeviceTarget,
        came: set[int],
        *,
        first_block: int = 0,
        rect: Rect | None = None,
        deadline: float = 30.0,
    ) -> Fetched:
        """As `fetch`, for adapters of engines on a GPU. Blocks of an opaque layout that the node
        keeps in memory of this GPU go to `device`, and not to `into`. These, counted from the
        match's first one, are added to `came`, also before an error. Every byte is verified either
        way.
        """
        answer, there = self._connection.fetch_on_device(
            lease, into, device, first_block, rect, deadline
        )
        came.update(there)
        return _fetched(answer)

    def get(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        into: BlockMemory,
        *,
        rect: Rect | None = None,
        holders: Sequence[str] = (),
        lookup_deadline: float = 0.05,
        progress: float = 1.0,
        deadline: float = 30.0,
        cancel: Cancellation | None = None,
        trace: str = "",
    ) -> Fetched:
        """Matches, fetches and gives the lease back in one call. Gets as many blocks of `keys` as
        the node has, from the first one on.

        `into` has memory for each key, as for `fetch`. A block that the node does not have is in
        `Fetched.failed`. `holders` as for `match`. `deadline` is for the fetch and
        `lookup_deadline` for the match, which `cancel` does not end.
        """
        return _fetched(
            self._connection.get(
                fingerprint,
                keys,
                into,
                cancel,
                rect=rect,
                holders=holders,
                lookup_deadline=lookup_deadline,
                progress=progress,
                deadline=deadline,
                trace=trace,
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
        """Stores parts. Returns an error for each part, or None if it is stored now or was stored
        before.

        The memory of the parts must not change before the call returns. After an exception no part
        is known to be stored.
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
        """Copies parts, for callers that need their memory back immediately. Nothing is stored
        before `commit`.

        On the node's machine the bytes go directly to their place at the node, otherwise to memory
        of the client. `deadline` is for getting room, and `commit_deadline` is for the commit.
        `reservation_ttl`: how long the node keeps the room. 0: the node's default (30 s).
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
        """A hint: the caller expects to match these blocks in about `needed_in` seconds. Promises
        nothing."""
        return Prefetched(*self._connection.prefetch(fingerprint, keys, needed_in, deadline, trace))

    def exists(
        self, fingerprint: bytes, keys: Sequence[bytes], *, deadline: float = 1.0, trace: str = ""
    ) -> list[TierKind | None]:
        """Returns, for each key, the fastest tier that holds the complete block. Takes no lease and
        promises nothing."""
        tiers = self._connection.exists(fingerprint, keys, deadline, trace)
        return [None if tier is None else TierKind(tier) for tier in tiers]

    def renew_lease(
        self, lease: Lease, ttl: float, *, deadline: float = 1.0, trace: str = ""
    ) -> float:
        """Returns the remaining time of the lease. NotFoundError: the lease has ended."""
        return self._connection.renew_lease(lease, ttl, deadline, trace)

    def flush(self, *, deadline: float = 10.0, trace: str = "") -> None:
        """Returns when everything that was committed before is on the node's disk."""
        self._connection.flush(deadline, trace)

    def stat(self, *, deadline: float = 1.0, trace: str = "") -> NodeStats:
        """The node's totals."""
        fields = self._connection.stat(deadline, trace)
        fields["tiers"] = [
            TierStat(**{**tier, "tier": TierKind(tier["tier"])}) for tier in fields["tiers"]
        ]
        fields["misses"] = {MissReason(i): blocks for i, blocks in enumerate(fields["misses"])}
        return NodeStats(**fields)

    def watch(self, fingerprint: bytes | None = None, *, snapshot: bool = False) -> EventStream:
        """Watches the events of the node, for one namespace or for all (None).

        A client that names a tenant hears of this tenant's namespaces alone.

        `snapshot`: begins with a STORED for each stored block, then SNAPSHOT_END.
        """
        return EventStream(self._connection, self._connection.watch(fingerprint, snapshot))

    def stats(self) -> ClientStats:
        """This client's totals. Does not ask the node."""
        return ClientStats(**self._connection.stats())

    def close(self) -> None:
        """Ends fetches and watches with CancelledError, waits for other calls and ends the session.

        Later calls fail with FailedPreconditionError. You may call it again.
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
        """True if `result` would not wait."""
        return self._native.done()

    def wait(self, seconds: float) -> bool:
        """Waits until it is done. False: it took longer."""
        return self._native.wait(seconds)

    def result(self) -> Match:
        """Waits for the answer. Raises what `Client.match` raises."""
        while not self._native.wait(_SIGNAL_PERIOD):
            pass
        return _match(self._native.answer()[0])

    def prefetch_error(self) -> Error | None:
        """The error of the hint, after there is a result."""
        failure = self._native.answer()[1]
        return None if failure is None else error_for(*failure)

    @property
    def seconds(self) -> float:
        """The time that the match took, after it is done."""
        return self._native.seconds()


class StagedPush:
    """Parts that are copied and not stored yet. They are dropped if they were not committed when
    the `with` block ends or Python collects this object.

    Only one thread at a time may use it. This does not need to be the thread that staged the parts.
    """

    def __init__(self, connection: _native.Connection, push: int) -> None:
        self._connection = connection
        self._push = push

    def commit(self) -> list[Error | None]:
        """Stores the parts, once. As `Client.push`. FailedPreconditionError: they were already
        committed or dropped."""
        return _errors(self._connection.commit_staged(self._push))

    def drop(self) -> None:
        """Gives the room back. You may call it again, and after `commit`."""
        self._connection.drop_staged(self._push)

    def __enter__(self) -> StagedPush:
        return self

    def __exit__(self, *exception: object) -> None:
        self.drop()

    def __del__(self) -> None:
        self.drop()


class EventStream:
    """Events of the node that the client uses. One thread reads, and any thread may close it.
    Iteration waits for the next event without a limit.

    UnavailableError: the connection broke, or the client uses another node now.
    ResourceExhaustedError: this reader was too slow. After either of them start again, with a
    snapshot.
    """

    def __init__(self, connection: _native.Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def next(self, wait: float | None = None) -> CacheEvent | None:
        """Returns the next event, or None when `wait` seconds passed without one."""
        event = self._connection.next_event(self._stream, wait)
        if event is None:
            return None
        kind, node_epoch, sequence, fingerprint, key, parent, tier, pool = event
        return CacheEvent(
            EventKind(kind), node_epoch, sequence, fingerprint, key, parent, TierKind(tier), pool
        )

    def close(self) -> None:
        """Ends the watch. A `next` that waits ends with CancelledError. You may call it again."""
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
