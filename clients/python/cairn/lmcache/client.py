"""Second-level storage for LMCache's multi-process mode, loaded through its adapter
"native_plugin"."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cairn._engine.limits import MAX_PART
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.lmcache import compat
from cairn.types import NamespaceSpec, OpaqueLayout, Part

__all__ = ["CairnClient"]

_LOG = logging.getLogger("cairn")


@dataclass(frozen=True)
class _Options(Options):
    engine: str = ""
    """Engine, its version, device, number types: what makes chunks differ, and LMCache's keys do
    not say."""
    chunk_tokens: int = 256
    """Tokens of a chunk, as LMCache is told."""


class CairnClient:
    """The calls that LMCache's native_plugin asks of a client. Thread-safe.

    A chunk is one block, under the SHA-256 of LMCache's key, which has model, rank, group, salt and
    chunk hash. Each call returns a number at once; `event_fd` becomes readable when some have
    ended.
    """

    def __init__(self, **settings: Any) -> None:
        """RuntimeError: a version of LMCache that lacks what is used. ValueError: a setting is
        missing or not valid."""
        compat.check()
        options = _Options.read(settings, "adapter_params.")
        for name in ("revision", "engine"):
            if not getattr(options, name):
                raise ValueError(
                    f"setting 'adapter_params.{name}' is missing: "
                    "LMCache's keys do not tell what KV was computed with"
                )
        spec = NamespaceSpec(
            model="lmcache",
            revision=options.revision,
            numerics=options.engine[:256],
            tenant=options.tenant,
            salt=options.salt.encode(),
            weight_epoch=options.weight_epoch,
            layout=OpaqueLayout(
                f"lmcache {importlib.metadata.version('lmcache')} "
                f"memory object of {options.engine}",
                max_part_bytes=MAX_PART,
                block_tokens=options.chunk_tokens,
            ),
            key_scheme="lmcache",
        )
        self._store = Store(options, spec, "lmcache")
        self._pool = ThreadPoolExecutor(4, "cairn-lmcache")
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._next = 0
        self._completed: list[tuple[int, bool, str, list[bool]]] = []
        self._closed = False
        self._store.wait_open(2.0)

    def event_fd(self) -> int:
        """Readable when calls have ended."""
        return self._event

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        """Fills the buffers of the keys that the node has; a buffer has exactly as many bytes as
        its chunk."""

        def get() -> list[bool]:
            failed = self._store.load_any(_keys(keys), [memoryview(b).cast("B") for b in buffers])
            return [i not in failed for i in range(len(keys))]

        return self._submit(len(keys), get)

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        """Stores chunks. True for each key that the node has afterwards."""

        def put() -> list[bool]:
            views = [memoryview(b).cast("B") for b in buffers]
            return self._store.save(
                [Part(key, view) for key, view in zip(_keys(keys), views)],
                [len(view) for view in views],
            )

        return self._submit(len(keys), put)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """True for each key that the node has."""
        return self._submit(len(keys), lambda: self._store.exists(_keys(keys)))

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """(number, True, "", a bool for each key) of the calls that have ended; a failure is False
        for its keys."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        with self._lock:
            completed, self._completed = self._completed, []
        return completed

    def counters(self) -> dict[str, float]:
        """The counts of events since the start, by name."""
        return self._store.counters.totals()

    def close(self) -> None:
        """Waits for running calls. You may call it again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pool.shutdown(wait=True)
        self._store.close()
        os.close(self._event)

    def _submit(self, count: int, call: Callable[[], list[bool]]) -> int:
        with self._lock:
            self._next += 1
            number = self._next

        def run() -> None:
            try:
                result = call()
            except Exception:
                self._store.counters.add("internal_errors")
                _LOG.exception("cairn: a call failed, LMCache goes on without")
                result = [False] * count
            with self._lock:
                self._completed.append((number, True, "", result))
            os.eventfd_write(self._event, 1)

        self._pool.submit(run)
        return number


def _keys(keys: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256(b"cairn.lmcache.v1" + key.encode()).digest() for key in keys]
