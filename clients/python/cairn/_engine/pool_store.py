"""The cache node as an engine with several KV pools sees it: calls that always answer and never
raise."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from cairn._engine.counters import Counters
from cairn._engine.fetch_chooser import Place
from cairn._engine.options import Options
from cairn._engine.store import DeviceRead, Fetching, Sample, Store
from cairn.errors import Error
from cairn.types import Memory, NamespaceSpec, PoolMatch, PoolNeed, Rect, TierRun

__all__ = ["PoolFound", "PoolLoad", "PoolLookup", "PoolQuestion", "PoolStore", "PoolTarget"]

_AT_ONCE = 2  # Look-ups that run at a time.
_MATCH_TIME = 1.0  # Seconds that a load's own match may take.


class PoolQuestion(NamedTuple):
    """After how many tokens a model can go on with what the node has."""

    keys: Sequence[bytes]
    """One for each unit of the prompt."""
    needs: Sequence[PoolNeed]
    step: int
    """Answers are multiples of this many tokens."""
    most: int
    """And not longer than this."""


class PoolFound(NamedTuple):
    """The answer to a `PoolQuestion`."""

    tokens: int
    """After this many the model can go on."""
    shared_tokens: int
    """The pools that need every block have those of this many tokens: another prompt has begun
    with the same ones. At least `tokens`, and 0 if no pool is of this kind."""
    tiers: Sequence[TierRun]
    """The places of the blocks that `tokens` needs."""
    limiting_pool: int | None = None
    """The pool that keeps `tokens` from being longer. None: none does."""


class PoolTarget(NamedTuple):
    """Memory for the blocks of one pool, from block `first` of the prompt on."""

    pool: int
    first: int
    into: Sequence[Memory]
    rect: Rect


class PoolLookup:
    """A running look-up, as `Lookup`. It continues even if nobody needs its answer any more."""

    __slots__ = ("_future", "_store", "_units", "begin", "seconds")

    def __init__(self, store: PoolStore, units: int, future: Future[PoolFound | None]) -> None:
        self._store = store
        self._units = units
        self._future = future
        self.begin = time.monotonic()
        """When it was asked, as time.monotonic tells."""
        self.seconds = 0.0
        """The time that it took, after it is done."""
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[PoolFound | None]) -> None:
        self.seconds = time.monotonic() - self.begin

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self._future.done()

    def wait(self, seconds: float) -> bool:
        """Until it is done; False when that took longer."""
        concurrent.futures.wait([self._future], seconds)
        return self._future.done()

    def result(self) -> PoolFound | None:
        """The answer, or None if there was no answer in time. Call it once, because it
        counts the result."""
        self._store._count_lookup(self._units, time.monotonic() - self.begin)
        try:
            return self._future.result()
        except concurrent.futures.CancelledError:
            return None  # The store was closed.

    def give_up(self) -> None:
        """Counts it as failed. Call it instead of `result`."""
        self._store._count_lookup(self._units, time.monotonic() - self.begin)
        self._store.counters.add("lookup_failures")


class PoolStore(Store):
    """One namespace with a `PooledLayout` at one node. Thread-safe."""

    def __init__(
        self,
        options: Options,
        spec: NamespaceSpec,
        client_name: str,
        counters: Counters | None = None,
        device: tuple[str, int] | None = None,
    ) -> None:
        """As of `Store`."""
        super().__init__(options, spec, client_name, counters, device)
        self._lookups = ThreadPoolExecutor(_AT_ONCE, "cairn-look")

    def begin_pool_lookup(self, question: PoolQuestion) -> PoolLookup:
        """Asks in the background, without a lease."""
        return PoolLookup(self, len(question.keys), self._lookups.submit(self._look_up, question))

    def lengths(self, question: PoolQuestion) -> PoolMatch | None:
        """All lengths that can be restored, without a lease. Waits. None: there was no answer in
        time."""
        begin = time.monotonic()
        try:
            found = self._ask(question, question.needs, begin + self.options.lookup_timeout, True)
        except Error as error:
            self._lookup_failed(error)
            return None
        finally:
            self._count_lookup(len(question.keys), time.monotonic() - begin)
        self.counters.add("matched_blocks", found.restorable_tokens // self._unit())
        return found

    def details(self, question: PoolQuestion, until: float) -> PoolMatch | None:
        """As `lengths`, for more about what was asked already: it is not counted. `until`: as
        time.monotonic tells."""
        if time.monotonic() >= until:
            return None
        try:
            return self._ask(question, question.needs, until, True)
        except Error as error:
            self.complain("look-up", error)
            return None

    def _look_up(self, question: PoolQuestion) -> PoolFound | None:
        until = time.monotonic() + self.options.lookup_timeout
        try:
            found = self._ask(question, question.needs, until)
        except Error as error:
            self._lookup_failed(error)
            return None
        unit = self._unit()
        self.counters.add("matched_blocks", found.restorable_tokens // unit)
        return PoolFound(
            found.restorable_tokens,
            self._shared_tokens(question, found, until),
            found.tiers,
            found.limiting_pool,
        )

    def _unit(self) -> int:
        return self.spec.layout.block_tokens

    def _ask(
        self,
        question: PoolQuestion,
        needs: Sequence[PoolNeed],
        until: float,
        all_lengths: bool = False,
    ) -> PoolMatch:
        return self._client.match_pools(
            self.namespace,
            question.keys,
            needs,
            step=question.step,
            most=question.most,
            all_lengths=all_lengths,
            lease=False,
            deadline=max(0.001, until - time.monotonic()),
        )

    def _shared_tokens(self, question: PoolQuestion, found: PoolMatch, until: float) -> int:
        """Only a pool of which a tail is enough can make an answer shorter than this."""
        whole = [need for need in question.needs if need.tail_tokens == 0]
        if not whole:
            return 0
        if found.limiting_pool is None or any(need.pool == found.limiting_pool for need in whole):
            return found.restorable_tokens
        try:
            return self._ask(question, whole, until).restorable_tokens
        except Error:
            return found.restorable_tokens  # Not worth more: it is about what to store.

    def load_pools(
        self,
        keys: Sequence[bytes],
        needs: Sequence[PoolNeed],
        tokens: int,
        targets: Sequence[PoolTarget],
        limit: float = math.inf,
    ) -> bool:
        """Fills memory with blocks that a prompt needs after its first `tokens` tokens. All bytes
        were verified.

        False: the node cannot restore this length any more, or a block did not come. Then all of
        the memory has undefined bytes. `limit`: as of `load`.
        """
        blocks = {(target.pool, target.first): len(target.into) for target in targets}
        with self.loading_pools(keys, needs, tokens, sum(blocks.values()), limit) as load:
            for target in targets:
                if load.fetching(target.pool, target.first)(0, target.into, target.rect):
                    return False
            load.came = True
        return True

    def load_any_of_pool(
        self, pool: int, keys: Sequence[bytes], into: Sequence[Memory], rect: Rect
    ) -> set[int]:
        """As `load_any`, of one pool, whose blocks are as long as a unit. `keys`: those of the
        units."""

        def match(namespace: bytes, rest: Sequence[bytes], *, deadline: float) -> PoolMatch:
            return self._client.match_pools(
                namespace, rest, [PoolNeed(pool)], step=self._unit(), deadline=deadline
            )

        return self._load_runs(keys, into, rect, match)

    @contextlib.contextmanager
    def loading_pools(
        self,
        keys: Sequence[bytes],
        needs: Sequence[PoolNeed],
        tokens: int,
        blocks: int,
        limit: float = math.inf,
    ) -> Iterator[PoolLoad]:
        """As `load_pools` of `blocks` blocks, but some at a time. The caller sets `came` if all of
        them came. After `load_timeout`, or `limit` seconds, no block comes."""
        begin, limit = time.monotonic(), min(limit, self.options.load_timeout)
        load = PoolLoad(self, begin + limit)
        self.counters.add("loads")
        with contextlib.ExitStack() as stack:
            try:
                found = self._client.match_pools(
                    self.namespace,
                    keys,
                    needs,
                    step=tokens,
                    most=tokens,
                    deadline=min(_MATCH_TIME, limit),
                )
                stack.enter_context(found)
                if found.restorable_tokens == tokens:
                    load.found = found
            except Error as error:
                self.complain("load", error)
            try:
                yield load
            finally:
                self.counters.add("load_seconds", time.monotonic() - begin)
                self.counters.add("loaded_blocks" if load.came else "failed_load_blocks", blocks)

    def sample_pools(
        self,
        question: PoolQuestion,
        block_bytes: Sequence[int],
        rects: Sequence[Rect],
        most_bytes: int,
        seconds: float,
    ) -> Sample:
        """As `sample`, of the first blocks of a lease that are of one pool. `block_bytes`, `rects`:
        by pool."""
        begin = time.monotonic()
        try:
            found = self._client.match_pools(
                self.namespace,
                question.keys,
                question.needs,
                step=question.step,
                most=question.most,
                deadline=seconds,
            )
        except Error as error:
            self.complain("look-up", error)
            return Sample(time.monotonic() - begin, None, 0, Place.MEMORY)
        with found:
            run = next((run for run in found.pool_runs if run.blocks), None)
            if run is None:
                return self._sample(found, begin, seconds, 0, 0, rects[0])
            size = block_bytes[run.pool]
            count = min(run.blocks, max(1, most_bytes // size))
            return self._sample(found, begin, seconds, count, size, rects[run.pool])

    def close(self) -> None:
        """Ends all calls. You may call it again."""
        self._lookups.shutdown(wait=False, cancel_futures=True)
        super().close()


class PoolLoad:
    """A load of `PoolStore.loading_pools`. Several threads may fetch."""

    def __init__(self, store: PoolStore, until: float) -> None:
        self._store = store
        self._until = until
        self.found: PoolMatch | None = None
        """With a lease. None: the node cannot restore the length."""
        self.came = False

    def fetching(self, pool: int, first: int) -> Fetching:
        """Fills memory with blocks of a pool from the index on, counted from the prompt's block
        `first`. Returns the indices of those that did not come, as `Store.loading` does."""

        def fetch(
            index: int,
            into: Sequence[Memory],
            rect: Rect | None,
            device: DeviceRead | None = None,
        ) -> set[int]:
            failed = set(range(len(into)))
            left = self._until - time.monotonic()
            at = self._in_lease(pool, first + index, len(into))
            if self.found is not None and at is not None and left > 0:
                try:
                    failed = self._store._fetch_by_two(self.found, at, into, rect, left, device)
                except Error as error:
                    self._store.complain("load", error)
            if device is not None:
                self._store.counters.add("device_loaded_blocks", len(device.came - failed))
            return failed

        return fetch

    def _in_lease(self, pool: int, block: int, count: int) -> int | None:
        """Where the lease has these blocks of the prompt."""
        before = 0  # Blocks of the lease that belong to other pools.
        for run in self.found.pool_runs if self.found is not None else ():
            at = block - run.first_block
            if run.pool == pool and 0 <= at <= run.blocks - count:
                return before + at
            before += run.blocks
        return None
