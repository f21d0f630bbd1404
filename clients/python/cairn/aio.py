"""The client of a cache node, for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from cairn._native import Cancellation
from cairn.client import Client, EventStream, StagedPush
from cairn.errors import Error
from cairn.types import CacheEvent, ClientStats, Part

__all__ = ["AsyncClient", "AsyncEventStream", "AsyncStagedPush"]

P = ParamSpec("P")
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


def _in_a_thread(
    call: Callable[Concatenate[Client, P], T], *, cancellable: bool = False
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The call of a `Client` as one of an `AsyncClient`. `cancellable`: it takes a `Cancellation`,
    which ends it when the task is cancelled."""

    @functools.wraps(call)
    async def run(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        cancel = kwargs.setdefault("cancel", Cancellation()) if cancellable else None
        return await self._run(
            functools.partial(call, self._client, *args, **kwargs),
            cancel.cancel if isinstance(cancel, Cancellation) else None,
        )

    return run


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

    open_namespace = _in_a_thread(Client.open_namespace)
    match = _in_a_thread(Client.match)
    match_pools = _in_a_thread(Client.match_pools)
    fetch = _in_a_thread(Client.fetch, cancellable=True)
    get = _in_a_thread(Client.get, cancellable=True)
    push = _in_a_thread(Client.push)
    prefetch = _in_a_thread(Client.prefetch)
    exists = _in_a_thread(Client.exists)
    renew_lease = _in_a_thread(Client.renew_lease)
    flush = _in_a_thread(Client.flush)
    stat = _in_a_thread(Client.stat)
    _stage = _in_a_thread(Client.stage)

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
        staged = await self._stage(
            fingerprint,
            parts,
            reservation_ttl=reservation_ttl,
            deadline=deadline,
            commit_deadline=commit_deadline,
            trace=trace,
        )
        return AsyncStagedPush(self._run, staged)

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
