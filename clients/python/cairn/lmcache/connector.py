"""Remote storage for LMCache's in-process mode, loaded as one of its `remote_storage_plugins`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, List, TypeVar

from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.storage_backend.connector import (
    ConnectorAdapter,
    ConnectorContext,
    extract_plugin_type,
)
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from cairn._engine.store import Store
from cairn.lmcache import compat
from cairn.lmcache.chunks import ChunkMemory, ChunkNames, memory_of
from cairn.lmcache.namespace import ConnectorOptions, check_setup, make_spec, read_settings
from cairn.types import NamespaceSpec, Part

if TYPE_CHECKING:
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.memory_management import MemoryObj

__all__ = ["CairnConnector", "CairnConnectorAdapter"]

_LOG = logging.getLogger("cairn")
_T = TypeVar("_T")
_PLUGIN = "plugin://"


class CairnConnectorAdapter(ConnectorAdapter):
    """Makes connectors for the plug-ins "cairn" and "cairn.<name>"."""

    def can_parse(self, url: str) -> bool:
        """Whether a URL names such a plug-in."""
        return bool(url.startswith(_PLUGIN) and extract_plugin_type(url[len(_PLUGIN) :]) == "cairn")

    def create_connector(self, context: ConnectorContext) -> CairnConnector:
        """IrrecoverableException: a version that lacks what is used, or a setting that is missing
        or cannot be right.

        Nothing else is raised, because LMCache would try again at a time when vLLM no longer says
        what it runs.
        """
        plugin = context.plugin_name or context.url[len(_PLUGIN) :]
        try:
            compat.check()
            options = read_settings(context.config, plugin)
            check_setup(context.config, context.metadata)
            spec = make_spec(context.config, context.metadata, options, plugin)
            return CairnConnector(context, options, spec)
        except Exception as error:
            raise IrrecoverableException(f"cairn: {error}") from error


class CairnConnector(RemoteConnector):
    """Chunks of one worker at a cache node. Called by LMCache's event loop and its look-up thread.

    LMCache's memory is read and filled in place. Nothing raises: a failure is a miss or a chunk
    that is not stored. The loop is never blocked: calls to the node wait in threads, with separate
    threads for look-ups, loads and stores.
    """

    def __init__(
        self, context: ConnectorContext, options: ConnectorOptions, spec: NamespaceSpec
    ) -> None:
        """`cairn.InvalidArgumentError`: an address or a field is not valid."""
        super().__init__(context.config, context.metadata)
        self._names = ChunkNames()
        self._memory = ChunkMemory(
            context.local_cpu_backend,
            self.meta_shapes[0],
            self.meta_dtypes[0],
            self.meta_fmt,
            wait=min(1.0, options.load_timeout),
        )
        # Else LMCache would give up its own memory too while the node does not answer.
        self._pings = (
            context.config.get_extra_config_value("fallback_policy", "recompute") == "local_cpu"
        )
        self._store = Store(options, spec, "lmcache")
        self._lookups = ThreadPoolExecutor(2, "cairn-lookup")
        self._loads = ThreadPoolExecutor(2, "cairn-load")
        self._saver = _Saver(self._store, self._names, self._memory)
        self._store.wait_open(2.0)

    # ---- queries ----

    async def exists(self, key: CacheEngineKey) -> bool:
        """Whether the node has a chunk."""
        return await self._answer(self._lookups, lambda: self._found([key]) == 1, False)

    def exists_sync(self, key: CacheEngineKey) -> bool:
        """As `exists`, for other threads than the loop's."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        """Yes."""
        return True

    def batched_contains(self, keys: Sequence[CacheEngineKey]) -> int:
        """How many chunks the node has, from the first one on."""
        return self._guarded(lambda: self._found(keys), 0)

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[CacheEngineKey], pin: bool = False
    ) -> int:
        """As `batched_contains`. Nothing is pinned: a chunk that is evicted before its load is a
        miss."""
        return await self._answer(self._lookups, lambda: self._found(keys), 0)

    def support_ping(self) -> bool:
        """True only if LMCache continues with its own memory while the node does not answer."""
        return self._pings

    async def ping(self) -> int:
        """0: the node answers."""
        deadline = min(1.0, self._store.options.load_timeout)
        return await self._answer(
            self._lookups, lambda: 0 if self._store.answers(deadline=deadline) else 1, 1
        )

    async def list(self) -> List[str]:  # From here on `list` is this method.
        """Empty: a node has hashes of keys only."""
        return []

    # ---- chunks from the node ----

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        """The chunk, with one reference that is the caller's, or None."""
        return next(iter(await self.batched_get_non_blocking("", [key])), None)

    def support_batched_get(self) -> bool:
        """Yes."""
        return True

    async def batched_get(self, keys: Sequence[CacheEngineKey]) -> List[MemoryObj | None]:
        """A chunk or None for each key. After the first None all are None, because LMCache uses
        nothing behind it."""
        items = await self.batched_get_non_blocking("", keys)
        return [*items, *[None] * (len(keys) - len(items))]

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: Sequence[CacheEngineKey]
    ) -> List[MemoryObj]:
        """The chunks up to the first one that is not there."""
        return await self._answer(self._loads, lambda: self._load(keys), [], _release)

    # ---- chunks to the node ----

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        """Stores a chunk. The caller keeps its reference."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Yes."""
        return True

    async def batched_put(
        self, keys: Sequence[CacheEngineKey], memory_objs: Sequence[MemoryObj]
    ) -> None:
        """Stores chunks. Returns when they are stored or have failed."""
        job = self._guarded(lambda: self._saver.submit(keys, memory_objs), None)
        if job is not None:
            await asyncio.wrap_future(job)

    def remove_sync(self, key: CacheEngineKey) -> bool:
        """False: other engines use the same chunks, and the node evicts by itself."""
        return False

    # ---- the rest ----

    def counters(self) -> dict[str, float]:
        """The counts of events since the start, by name."""
        return self._store.counters.totals()

    async def close(self) -> None:
        """Waits for stores under way, then ends the session. May be repeated."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._saver.close()
        for pool in (self._lookups, self._loads):
            pool.shutdown(wait=True)
        self._store.close()

    def _found(self, keys: Sequence[CacheEngineKey]) -> int:
        found = self._store.lookup(self._names.to_load(keys))
        return 0 if found is None else found.matched_blocks

    def _load(self, keys: Sequence[CacheEngineKey]) -> List[MemoryObj]:
        names = self._names.to_load(keys)
        found = self._store.match(names, deadline=min(1.0, self._store.options.load_timeout))
        if found is None:
            return []
        with found:
            if found.matched_blocks == 0:
                return []
            items = self._memory.allocate(found)
            good = 0
            try:
                failed = self._store.load(
                    names, 0, [memory_of(item) for item in items], found=found
                )
                good = min(failed, default=len(items))
            finally:
                _release(items[good:])
            return items[:good]

    def _guarded(self, call: Callable[[], _T], otherwise: _T) -> _T:
        """An exception of ours is counted and logged, and answered with `otherwise`."""
        try:
            return call()
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: a call failed, LMCache goes on without")
            return otherwise

    async def _answer(
        self,
        pool: ThreadPoolExecutor,
        call: Callable[[], _T],
        otherwise: _T,
        drop: Callable[[_T], None] = lambda answer: None,
    ) -> _T:
        """The answer of `call`, which runs in a thread of `pool`; `drop` gets an answer that nobody
        waits for any more."""
        try:
            job = pool.submit(self._guarded, call, otherwise)
        except RuntimeError:  # Closed.
            return otherwise
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            job.add_done_callback(lambda late: None if late.cancelled() else drop(late.result()))
            raise


class _Saver:
    """Stores chunks in the background. Holds references to their memory until the node has read it.
    Thread-safe."""

    def __init__(self, store: Store, names: ChunkNames, memory: ChunkMemory) -> None:
        self._store, self._names, self._memory = store, names, memory
        self._pool = ThreadPoolExecutor(2, "cairn-save")
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(
        self, keys: Sequence[CacheEngineKey], items: Sequence[MemoryObj]
    ) -> Future[None] | None:
        """None: there is no room for them on the way to the node; they are counted as dropped."""
        # A chunk behind one that cannot be stored would get the wrong parent: it goes as well.
        chunks = list(
            itertools.takewhile(lambda chunk: self._memory.holds(chunk[1]), zip(keys, items))
        )
        if len(chunks) < len(items):
            self._store.counters.add("failed_save_blocks", len(items) - len(chunks))
        names = self._names.to_store([key for key, _ in chunks])
        taken = [item for _, item in chunks]
        size = sum(item.get_size() for item in taken)
        with self._lock:
            if not chunks or self._waiting + size > self._store.options.save_buffer:
                self._store.counters.add("dropped_save_blocks", len(chunks))
                return None
            self._waiting += size
        # The caller's references end when he no longer waits, which may be before the node has read
        # the memory.
        for item in taken:
            item.ref_count_up()
        try:
            job = self._pool.submit(self._save, names, taken)
        except RuntimeError:  # Closed.
            self._done(taken, size)
            return None
        job.add_done_callback(lambda _: self._done(taken, size))
        return job

    def close(self) -> None:
        """Waits for what was submitted. May be repeated."""
        self._pool.shutdown(wait=True)

    def _save(self, names: list[bytes], items: list[MemoryObj]) -> None:
        try:
            parents = [None, *names]
            parts = [
                Part(name, memory_of(item), parent=parent)
                for name, item, parent in zip(names, items, parents)
            ]
            self._store.save(parts, [item.get_size() for item in items])
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: storing failed, LMCache goes on without")

    def _done(self, items: list[MemoryObj], size: int) -> None:
        with self._lock:
            self._waiting -= size
        _release(items)


def _release(items: Sequence[MemoryObj]) -> None:
    for item in items:
        item.ref_count_down()
