"""The client of a cache node, for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from cairn._native import Cancellation, Lease
from cairn.client import Client, EventStream, StagedPush
from cairn.errors import Error
from cairn.types import (
    BlockMemory,
    CacheEvent,
    ClientStats,
    Fetched,
    Match,
    NamespaceSpec,
    NodeStats,
    OpenedNamespace,
    Part,
    Prefetched,
    Rect,
    TierKind,
)

__all__ = ["AsyncClient", "AsyncEventStream", "AsyncStagedPush"]

T = TypeVar("T")
# Between looks whether a reader of events was cancelled.
_EVENT_WAIT = 0.2


async def _finished(future: asyncio.Future[T], cancel: Callable[[], None] | None = None) -> T:
    """Returns the result of work in a thread. When the task is cancelled, waits for the thread,
    because it uses memory of the caller, which the caller may use for something else afterwards."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()  # Taken, so that the loop does not report it.
        raise


class AsyncClient:
    """The calls of a `Client` for `await`. They wait in `concurrency` threads.

    A deadline counts from when a thread takes the call. A cancelled fetch ends soon, and other
    calls end at their deadline. In both cases the task continues when the call has ended, and then
    the caller may use the memory again. Closing this object closes the client.
    """

    def __init__(self, client: Client, *, concurrency: int = 16) -> None:
        self._client = client
        self._threads = concurrent.futures.ThreadPoolExecutor(
            concurrency, thread_name_prefix="cairn"
        )

    async def _run(self, call: Callable[[], T], cancel: Callable[[], None] | None = None) -> T:
        return await _finished(
            asyncio.get_running_loop().run_in_executor(self._threads, call), cancel
        )

    async def open_namespace(
        self,
        spec: NamespaceSpec,
        *,
        block_life: float = 0.0,
        deadline: float = 1.0,
        trace: str = "",
    ) -> OpenedNamespace:
        """As `Client.open_namespace`."""
        return await self._run(
            lambda: self._client.open_namespace(
                spec, block_life=block_life, deadline=deadline, trace=trace
            )
        )

    async def match(
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
        """As `Client.match`."""
        return await self._run(
            lambda: self._client.match(
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

    async def fetch(
        self,
        lease: Lease,
        into: BlockMemory,
        *,
        first_block: int = 0,
        rect: Rect | None = None,
        progress: float = 1.0,
        deadline: float = 30.0,
        trace: str = "",
    ) -> Fetched:
        """As `Client.fetch`."""
        cancel = Cancellation()
        return await self._run(
            lambda: self._client.fetch(
                lease,
                into,
                first_block=first_block,
                rect=rect,
                progress=progress,
                deadline=deadline,
                cancel=cancel,
                trace=trace,
            ),
            cancel.cancel,
        )

    async def get(
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
        trace: str = "",
    ) -> Fetched:
        """As `Client.get`."""
        cancel = Cancellation()
        return await self._run(
            lambda: self._client.get(
                fingerprint,
                keys,
                into,
                rect=rect,
                holders=holders,
                lookup_deadline=lookup_deadline,
                progress=progress,
                deadline=deadline,
                cancel=cancel,
                trace=trace,
            ),
            cancel.cancel,
        )

    async def push(
        self,
        fingerprint: bytes,
        parts: Sequence[Part],
        *,
        reservation_ttl: float = 0.0,
        deadline: float = 10.0,
        trace: str = "",
    ) -> list[Error | None]:
        """As `Client.push`."""
        return await self._run(
            lambda: self._client.push(
                fingerprint, parts, reservation_ttl=reservation_ttl, deadline=deadline, trace=trace
            )
        )

    async def stage(
        self,
        fingerprint: bytes,
        parts: Sequence[Part],
        *,
        reservation_ttl: float = 0.0,
        deadline: float = 1.0,
        commit_deadline: float = 10.0,
        trace: str = "",
    ) -> AsyncStagedPush:
        """As `Client.stage`."""
        staged = await self._run(
            lambda: self._client.stage(
                fingerprint,
                parts,
                reservation_ttl=reservation_ttl,
                deadline=deadline,
                commit_deadline=commit_deadline,
                trace=trace,
            )
        )
        return AsyncStagedPush(self._run, staged)

    async def prefetch(
        self,
        fingerprint: bytes,
        keys: Sequence[bytes],
        needed_in: float,
        *,
        deadline: float = 1.0,
        trace: str = "",
    ) -> Prefetched:
        """As `Client.prefetch`."""
        return await self._run(
            lambda: self._client.prefetch(
                fingerprint, keys, needed_in, deadline=deadline, trace=trace
            )
        )

    async def exists(
        self, fingerprint: bytes, keys: Sequence[bytes], *, deadline: float = 1.0, trace: str = ""
    ) -> list[TierKind | None]:
        """As `Client.exists`."""
        return await self._run(
            lambda: self._client.exists(fingerprint, keys, deadline=deadline, trace=trace)
        )

    async def renew_lease(
        self, lease: Lease, ttl: float, *, deadline: float = 1.0, trace: str = ""
    ) -> float:
        """As `Client.renew_lease`."""
        return await self._run(
            lambda: self._client.renew_lease(lease, ttl, deadline=deadline, trace=trace)
        )

    async def flush(self, *, deadline: float = 10.0, trace: str = "") -> None:
        """As `Client.flush`."""
        await self._run(lambda: self._client.flush(deadline=deadline, trace=trace))

    async def stat(self, *, deadline: float = 1.0, trace: str = "") -> NodeStats:
        """As `Client.stat`."""
        return await self._run(lambda: self._client.stat(deadline=deadline, trace=trace))

    def watch(
        self, fingerprint: bytes | None = None, *, snapshot: bool = False
    ) -> AsyncEventStream:
        """As `Client.watch`, with a thread of its own."""
        return AsyncEventStream(self._client.watch(fingerprint, snapshot=snapshot))

    def stats(self) -> ClientStats:
        """As `Client.stats`."""
        return self._client.stats()

    async def close(self) -> None:
        """As `Client.close`."""
        await self._run(self._client.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncStagedPush:
    """Parts that are copied and not stored yet: `async with await client.stage(...) as staged`. As
    `StagedPush`."""

    def __init__(
        self,
        run: Callable[[Callable[[], list[Error | None]]], Awaitable[list[Error | None]]],
        staged: StagedPush,
    ) -> None:
        self._run = run
        self._staged = staged

    async def commit(self) -> list[Error | None]:
        """As `StagedPush.commit`. A task that is cancelled here continues when the parts are stored
        or refused."""
        return await self._run(self._staged.commit)

    def drop(self) -> None:
        """As `StagedPush.drop`, which does not wait."""
        self._staged.drop()

    async def __aenter__(self) -> AsyncStagedPush:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.drop()


class AsyncEventStream:
    """Events of a node: `async for event in stream`. As `EventStream`."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="cairn-watch")

    async def __aiter__(self) -> AsyncIterator[CacheEvent]:
        while True:
            event = await _finished(
                asyncio.get_running_loop().run_in_executor(
                    self._thread, self._stream.next, _EVENT_WAIT
                )
            )
            if event is not None:
                yield event

    async def close(self) -> None:
        """Ends the watch."""
        self._stream.close()
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
