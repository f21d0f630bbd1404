"""The cache node as an engine sees it: calls that always answer and never raise (except for
`watch`)."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cairn import _native
from cairn._engine.counters import Counters
from cairn._engine.fetch_chooser import Place, place_of
from cairn._engine.options import Options
from cairn.client import Client, EventStream, PendingMatch, StagedPush
from cairn.errors import Action, Error
from cairn.keys import fingerprint
from cairn.types import Match, Memory, NamespaceSpec, Part, Rect

__all__ = ["DeviceRead", "Fetching", "Lookup", "Sample", "Store"]

_LOG = logging.getLogger("cairn")
_QUIET = 30.0  # Seconds between two lines about the same failure.
_SOON = 0.2  # Seconds from a look-up to its load, more or less.
_SPLIT = (
    8  # From this many blocks on, two threads copy: checking and copying takes a core all it has.
)


class Lookup:
    """A running look-up. It continues without the GIL, even if nobody needs its answer any more."""

    __slots__ = ("_blocks", "_pending", "_store", "begin")

    def __init__(
        self, store: Store, blocks: int, pending: PendingMatch | None, begin: float
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._pending = pending
        self.begin = begin
        """When it was asked, as time.monotonic tells."""

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self._pending is None or self._pending.done()

    def wait(self, seconds: float) -> bool:
        """Until it is done; False when that took longer."""
        return self._pending is None or self._pending.wait(seconds)

    def result(self) -> Match | None:
        """The blocks that the node has, or None if there was no answer in time. Call it once,
        because it counts the result."""
        if self._pending is None:
            return None
        return self._store._take_lookup(self._pending, self._blocks)

    @property
    def seconds(self) -> float:
        """The time that it took, after it is done."""
        return 0.0 if self._pending is None else self._pending.seconds

    def give_up(self) -> None:
        """Counts it as failed. Call it instead of `result`."""
        self._store._count_lookup(self._blocks, time.monotonic() - self.begin)
        self._store.counters.add("lookup_failures")


class Sample(NamedTuple):
    """The cost of a few blocks."""

    lookup_seconds: float
    seconds: float | None
    """Look-up and load. None: no block came."""
    bytes: int
    place: Place


@dataclass(frozen=True)
class DeviceRead:
    """Memory of a GPU for blocks of a load, used if the node keeps them on that GPU."""

    target: Callable[[int, int], _native.DeviceTarget]
    """Memory for the blocks [begin, end) of the call."""
    came: set[int]
    """Blocks of the call that went there, and not to `into`. Filled by the call."""
    begin: int = 0

    def behind(self, blocks: int) -> DeviceRead:
        """The same for a call that begins with a later block."""
        return DeviceRead(self.target, self.came, self.begin + blocks)


class Fetching(Protocol):
    """Fills memory with a part of each block of a load, from the index on; see `Store.loading`."""

    def __call__(
        self,
        index: int,
        into: Sequence[Memory],
        rect: Rect | None,
        device: DeviceRead | None = None,
    ) -> set[int]: ...


class Store:
    """One namespace at one node. Thread-safe.

    Every failure is a miss or a block that is not stored. Failures are counted, logged from time to
    time, and never raised. A node that fails is not asked again for a while (the client's circuit
    breaker), so a dead node costs only microseconds.
    """

    def __init__(
        self,
        options: Options,
        spec: NamespaceSpec,
        client_name: str,
        counters: Counters | None = None,
        device: tuple[str, int] | None = None,
    ) -> None:
        """Does not wait for the node. `device`: as of `Client`. InvalidArgumentError: an address or
        a field is not valid."""
        self.options = options
        self.spec = spec
        self.counters = counters or Counters()
        self.namespace = fingerprint(spec)
        self._complained: dict[str, float] = {}
        self._lock = threading.Lock()
        self._client = Client(
            options.address,
            client_name=client_name,
            path=options.path,
            tls=options.tls,
            tenant=spec.tenant,
            host=options.host,
            zone=options.zone,
            # The processes of an engine look up, load and store parts of the same blocks.
            home_key=options.home_key or socket.gethostname(),
            device=device,
        )
        # A node that comes later opens it with the session.
        self._opening = threading.Thread(target=self._open, name="cairn-open", daemon=True)
        self._opening.start()

    def _open(self) -> None:
        try:
            opened = self._client.open_namespace(
                self.spec, block_life=self.options.block_life, deadline=10.0
            )
        except Error as error:
            self.complain("open", error)
            return
        for other in opened.differs:
            _LOG.warning(
                "cairn: the node has a namespace that differs in '%s' alone: there %s, here %s. "
                "Its %d blocks are not used",
                other.field,
                other.stored,
                other.requested,
                other.stored_blocks,
            )

    def wait_open(self, seconds: float) -> bool:
        """Waits until the node knows the namespace, or gives up. For starts that should not begin
        with misses."""
        self._opening.join(seconds)
        return not self._opening.is_alive()

    def begin_lookup(self, keys: Sequence[bytes]) -> Lookup:
        """Asks for the longest prefix at the node, without a lease. Costs the caller microseconds.

        The caller will need the found blocks soon, so the node brings them to its memory and keeps
        them there for a while.
        """
        begin = time.monotonic()
        pending = None
        if keys:
            try:
                pending = self._client.begin_match(
                    self.namespace, keys, prefetch_in=_SOON, deadline=self.options.lookup_timeout
                )
            except Error as error:
                self._lookup_failed(error)
                self._count_lookup(len(keys), 0)
        # The engine's thread waits for this: what can be counted later is.
        return Lookup(self, len(keys), pending, begin)

    def lookup(self, keys: Sequence[bytes]) -> Match | None:
        """As `begin_lookup`, but waits. None: there was no answer in time."""
        return self.begin_lookup(keys).result()

    def _count_lookup(self, blocks: int, seconds: float) -> None:
        self.counters.add("lookups")
        self.counters.add("lookup_blocks", blocks)
        self.counters.add("lookup_seconds", seconds)

    def _take_lookup(self, pending: PendingMatch, blocks: int) -> Match | None:
        try:
            found = pending.result()
        except Error as error:
            self._lookup_failed(error)
            return None
        finally:
            self._count_lookup(blocks, pending.seconds)
        failure = pending.prefetch_error()
        if failure is not None:
            self.complain("hint", failure)
        self.counters.add("matched_blocks", found.matched_blocks)
        return found

    def _lookup_failed(self, error: Error) -> None:
        self.complain("look-up", error)
        self.counters.add("lookup_failures")

    def match(
        self, keys: Sequence[bytes], *, lease: bool = True, deadline: float | None = None
    ) -> Match | None:
        """The longest prefix at the node. None: there was no answer in time."""
        if not keys:
            return None
        begin = time.monotonic()
        timeout = self.options.lookup_timeout if deadline is None else deadline
        try:
            found = self._client.match(self.namespace, keys, lease=lease, deadline=timeout)
        except Error as error:
            self._lookup_failed(error)
            return None
        finally:
            self._count_lookup(len(keys), time.monotonic() - begin)
        self.counters.add("matched_blocks", found.matched_blocks)
        return found

    def load(
        self,
        keys: Sequence[bytes],
        first: int,
        into: Sequence[Memory],
        rect: Rect | None = None,
        found: Match | None = None,
        limit: float = math.inf,
    ) -> set[int]:
        """Fills `into` with the blocks from `keys[first]` on. Returns the indices of `into` that
        did not come.

        Their memory has undefined bytes. All other bytes were verified. `found`: the result of
        `match`, whose lease is used and not given back. `limit`: seconds after which it is given
        up if that is earlier than `load_timeout`.
        """
        with self.loading(keys, first, len(into), found, limit) as fetch:
            return fetch(0, into, rect)

    def load_parts(
        self,
        keys: Sequence[bytes],
        first: int,
        into: Mapping[Rect, Sequence[Memory]],
        limit: float = math.inf,
    ) -> set[int]:
        """As `load`, of some parts of each block. A block has not come if a part has not."""
        blocks = max(len(memory) for memory in into.values())
        failed: set[int] = set()
        with self.loading(keys, first, blocks, limit=limit, parts=len(into)) as fetch:
            for rect, memory in into.items():
                failed |= fetch(0, memory, rect)
        return failed

    @contextlib.contextmanager
    def loading(
        self,
        keys: Sequence[bytes],
        first: int,
        blocks: int,
        found: Match | None = None,
        limit: float = math.inf,
        parts: int = 1,
    ) -> Iterator[Fetching]:
        """As `load` of `blocks` blocks, but some at a time: gives a function that fills memory with
        the blocks from the i-th on, and returns the indices of those that did not come. With a
        `DeviceRead`, blocks may go to a GPU instead. `parts`: how many of each block the caller
        fetches.

        After `load_timeout`, or `limit` seconds, no block comes. The memory of a call is the
        caller's again after it.
        """
        begin, came = time.monotonic(), 0
        limit = min(limit, self.options.load_timeout)
        self.counters.add("loads")

        def fetch(
            index: int,
            into: Sequence[Memory],
            rect: Rect | None,
            device: DeviceRead | None = None,
        ) -> set[int]:
            nonlocal came
            failed = set(range(len(into)))
            left = begin + limit - time.monotonic()
            if found is not None and left > 0:
                try:
                    failed = self._fetch_by_two(found, first + index, into, rect, left, device)
                except Error as error:
                    self.complain("load", error)
            came += len(into) - len(failed)
            if device is not None:
                self.counters.add("device_loaded_blocks", len(device.came - failed))
            return failed

        with contextlib.ExitStack() as stack:
            if found is None:
                # Whoever looked up before had to be quick.
                deadline = min(1.0, limit)
                try:
                    found = stack.enter_context(
                        self._client.match(
                            self.namespace, keys[: first + blocks], deadline=deadline
                        )
                    )
                except Error as error:
                    self.complain("load", error)
            try:
                yield fetch
            finally:
                self.counters.add("load_seconds", time.monotonic() - begin)
                self.counters.add("loaded_blocks", came // parts)
                self.counters.add("failed_load_blocks", blocks - came // parts)

    def sample(self, keys: Sequence[bytes], block_bytes: int, rect: Rect, seconds: float) -> Sample:
        """Loads the first blocks of `keys` that the node has into memory of nobody, and tells how
        long that took. After `seconds` it is given up."""
        begin = time.monotonic()
        try:
            found = self._client.match(self.namespace, keys, deadline=seconds)
        except Error as error:
            self.complain("look-up", error)
            return Sample(time.monotonic() - begin, None, 0, Place.MEMORY)
        with found:
            return self._sample(found, begin, seconds, found.matched_blocks, block_bytes, rect)

    def _sample(
        self,
        found: Match,
        begin: float,
        limit: float,
        count: int,
        block_bytes: int,
        rect: Rect,
    ) -> Sample:
        """A sample of the first `count` blocks of a lease."""
        lookup, place = time.monotonic() - begin, place_of(run.tier for run in found.tiers)
        if count == 0:
            return Sample(lookup, None, 0, place)
        into = [bytearray(block_bytes) for _ in range(count)]
        left = max(0.001, begin + limit - time.monotonic())
        try:
            failed = len(self._fetch_by_two(found, 0, into, rect, left, None))
        except Error as error:
            self.complain("load", error)
            failed = count
        seconds = time.monotonic() - begin
        if failed == count:
            return Sample(lookup, None, 0, place)
        return Sample(lookup, seconds, (count - failed) * block_bytes, place)

    def load_any(
        self, keys: Sequence[bytes], into: Sequence[Memory], rect: Rect | None = None
    ) -> set[int]:
        """Like `load`, for blocks that do not need to follow each other. A missing block leaves a
        hole."""
        return self._load_runs(keys, into, rect, self._client.match)

    def _load_runs(
        self,
        keys: Sequence[bytes],
        into: Sequence[Memory],
        rect: Rect | None,
        match: Callable[..., Match],
    ) -> set[int]:
        """`match`: called with the namespace, keys and a deadline, tells and leases the blocks that
        are there from the first key on."""
        begin, next_key = time.monotonic(), 0
        self.counters.add("loads")
        failed: set[int] = set()
        try:
            while next_key < len(keys):
                rest = keys[next_key:]
                with match(
                    self.namespace, rest, deadline=min(1.0, self.options.load_timeout)
                ) as found:
                    end = next_key + found.matched_blocks
                    failed |= {
                        next_key + i
                        for i in self._fetch(
                            found, 0, into[next_key:end], rect, self.options.load_timeout
                        )
                    }
                if end < len(keys):
                    failed.add(end)
                next_key = end + 1
        except Error as error:
            self.complain("load", error)
            failed |= set(range(next_key, len(keys)))
        self.counters.add("load_seconds", time.monotonic() - begin)
        self.counters.add("loaded_blocks", len(into) - len(failed))
        self.counters.add("failed_load_blocks", len(failed))
        return failed

    def _fetch_by_two(
        self,
        found: Match,
        first: int,
        into: Sequence[Memory],
        rect: Rect | None,
        deadline: float,
        device: DeviceRead | None,
    ) -> set[int]:
        if len(into) < _SPLIT:
            return self._fetch(found, first, into, rect, deadline, device)
        half = len(into) // 2
        # Leaving waits for the other thread: until then it needs the lease, and the memory of
        # `into`.
        with ThreadPoolExecutor(1, "cairn-copy") as other:
            behind = None if device is None else device.behind(half)
            later = other.submit(
                self._fetch, found, first + half, into[half:], rect, deadline, behind
            )
            failed = self._fetch(found, first, into[:half], rect, deadline, device)
        return failed | {half + i for i in later.result()}

    def _fetch(
        self,
        found: Match,
        first: int,
        into: Sequence[Memory],
        rect: Rect | None,
        deadline: float,
        device: DeviceRead | None = None,
    ) -> set[int]:
        there = min(len(into), max(0, found.matched_blocks - first))
        missing = set(range(there, len(into)))
        if there == 0:
            return missing
        came: set[int] = set()
        try:
            if device is None:
                fetched = self._client.fetch(
                    found.lease, into[:there], first_block=first, rect=rect, deadline=deadline
                )
            else:
                fetched = self._client.fetch_on_device(
                    found.lease,
                    into[:there],
                    device.target(device.begin, device.begin + there),
                    came,
                    first_block=first,
                    rect=rect,
                    deadline=deadline,
                )
        except Error as error:
            if error.fetched is None:
                raise
            self.complain("load", error)
            fetched = error.fetched
        finally:
            if device is not None:
                device.came.update(device.begin + block - first for block in came)
        self.counters.add("loaded_bytes", fetched.bytes)
        return {block - first for block in fetched.failed} | missing

    def save(self, parts: Sequence[Part], sizes: Sequence[int]) -> list[bool]:
        """Stores parts. Returns for each whether the node has it now. `sizes`: the bytes of each,
        for the counters."""
        return self._stored(
            lambda: self._client.push(self.namespace, parts, deadline=self.options.save_timeout),
            sizes,
        )

    def stage(self, parts: Sequence[Part]) -> StagedPush | None:
        """Copies parts, for `commit`. None: this failed, and the parts are counted as failed."""
        try:
            return self._client.stage(
                self.namespace,
                parts,
                deadline=self.options.lookup_timeout,
                commit_deadline=self.options.save_timeout,
            )
        except Error as error:
            self.complain("store", error)
            self.counters.add("failed_save_blocks", len(parts))
            return None

    def commit(self, staged: StagedPush, sizes: Sequence[int]) -> list[bool]:
        """Stores staged parts. As `save`."""
        return self._stored(staged.commit, sizes)

    def _stored(self, store: Callable[[], list[Error | None]], sizes: Sequence[int]) -> list[bool]:
        begin = time.monotonic()
        stored = [False] * len(sizes)
        try:
            for i, failure in enumerate(store()):
                stored[i] = failure is None or failure.action is Action.TREAT_AS_SUCCESS
                if failure is not None and not stored[i]:
                    self.complain("store", failure)
        except Error as error:
            self.complain("store", error)
        self.counters.add("save_seconds", time.monotonic() - begin)
        self.counters.add("saved_blocks", sum(stored))
        self.counters.add("saved_bytes", sum(size for size, good in zip(sizes, stored) if good))
        self.counters.add("failed_save_blocks", len(stored) - sum(stored))
        return stored

    def exists(self, keys: Sequence[bytes], *, deadline: float | None = None) -> list[bool]:
        """Says which blocks the node has with all of their parts. False also if there was no
        answer."""
        begin = time.monotonic()
        there = [False] * len(keys)
        if keys:
            try:
                timeout = self.options.lookup_timeout if deadline is None else deadline
                there = [
                    tier is not None
                    for tier in self._client.exists(self.namespace, keys, deadline=timeout)
                ]
            except Error as error:
                self._lookup_failed(error)
        self._count_lookup(len(keys), time.monotonic() - begin)
        self.counters.add("matched_blocks", sum(there))
        return there

    def answers(self, *, deadline: float) -> bool:
        """True if the node answers at all."""
        try:
            self._client.stat(deadline=deadline)
        except Error as error:
            self.complain("ping", error)
            return False
        return True

    def watch(self) -> EventStream:
        """The events of the namespace, after a snapshot. Raises `cairn.Error`: its reader must
        start again."""
        return self._client.watch(self.namespace, snapshot=True)

    def close(self) -> None:
        """Ends all calls. You may call it again."""
        self._client.close()

    def complain(self, what: str, error: Error) -> None:
        """Logs a failure, from time to time."""
        name = f"{what} {error.code.name}"
        now = time.monotonic()
        with self._lock:
            if now - self._complained.get(name, -_QUIET) < _QUIET:
                return
            self._complained[name] = now
        # As text: a record that is kept would keep the traceback, and with it the caller's memory.
        _LOG.warning("cairn: %s failed, the engine goes on without: %s", what, str(error))
