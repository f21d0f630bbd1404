"""A secondary tier for vLLM's own offloading: docs/program/engines/vllm.md. vLLM fills host memory,
this moves its chunks.

vLLM loads `CairnTier` itself, through `secondary_tiers` of its TieringOffloadingSpec.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import vllm
from vllm.v1.core.kv_cache_utils import get_none_hash_seed
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from cairn._engine.limits import MAX_BLOCK_TOKENS, MAX_COLUMNS, MAX_PART
from cairn._engine.options import TIER_WITHOUT, Options
from cairn._engine.store import Store
from cairn._engine.weights import weights_revision
from cairn.types import NamespaceSpec, OpaqueLayout, Part, Rect, TierKind
from cairn.vllm import compat
from cairn.vllm.events import OWNER, EventFeed, Move
from cairn.vllm.namespace import machine

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec, ScheduleEndContext

__all__ = ["CairnTier", "GroupKeys", "group_key"]

_LOG = logging.getLogger("cairn")
_KEY_BYTES = 32 + 4  # A SHA-256 and the number of a KV cache group.
_PUSH_CHUNKS = 16  # In one call to the node.
_KNOWN = 1 << 20  # Keys whose groups are known.
_MEDIA = {TierKind.HOST: Medium.CPU, TierKind.DISK: Medium.STORAGE}


class CairnTier(SecondaryTierManager):
    """Chunks of vLLM's host memory, whole: one row has all layers of a KV cache group and all
    ranks. Called by the scheduler's thread.

    vLLM itself decides how much of a prompt can be restored from the chunks of its groups. The node
    evicts by itself; nothing is deleted from here.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        """RuntimeError: a version of vLLM that lacks what is used. ValueError: a setting is not
        valid."""
        compat.check()
        compat.begin_tier(
            super().__init__, offloading_spec, primary_kv_view, tier_type, backpressure_detector
        )
        options = Options.read(settings, "secondary_tiers[].", TIER_WITHOUT)
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._row_bytes = self._rows.shape[1]
        self._columns = _columns(self._row_bytes)
        self._store = Store(options, _spec(offloading_spec, self._row_bytes, options), "vllm-tier")
        self._keys = GroupKeys(len(offloading_spec.config.groups))
        self._lookups = _Lookups(tier_type, self._store, self._keys)
        self._pool = ThreadPoolExecutor(2, "cairn-tier")
        self._running: dict[int, Future[None]] = {}
        self._ended: queue.SimpleQueue[tuple[JobResult, list[OffloadKey]]] = queue.SimpleQueue()
        self._store.wait_open(2.0)
        self._events: EventFeed[OffloadingEvent] | None = None
        if offloading_spec.kv_events_config.enable_kv_cache_events:
            self._events = EventFeed(self._store, self._chunk_event)
            self._keys.when_named = self._events.named

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """RETRY until the node has answered; one question for all keys of a step."""
        if len(key) != _KEY_BYTES:
            return LookupResult.MISS  # A short hash, for which others may find a second text.
        there = self._lookups.lookup(key, req_context)
        if there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if there else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """In the background."""
        self._submit(job_metadata, self._save)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """In the background; chunks that do not come are named in the result."""
        self._submit(job_metadata, self._load)

    def _submit(self, job: TransferJob, run: Any) -> None:
        self._running[job.job_id] = self._pool.submit(self._run, job, run)

    def _run(self, job: TransferJob, run: Any) -> None:
        begin, keys, good = time.monotonic(), list(job.keys), [False] * len(job.keys)
        try:
            good = run(keys, [int(chunk) for chunk in job.chunk_ids])
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: a transfer failed, vLLM goes on without")
        successful = [key for key, there in zip(keys, good) if there]
        result = compat.job_result(
            job.job_id,
            all(good),
            successful if job.is_promotion else None,
            time.monotonic() - begin,
            len(successful) * self._row_bytes,
        )
        failed = [key for key, there in zip(keys, good) if not there] if job.is_promotion else []
        self._ended.put((result, failed))

    def _save(self, keys: list[OffloadKey], chunks: list[int]) -> list[bool]:
        stored = [False] * len(keys)
        # A short hash may belong to a second text, so its chunk stays here.
        safe = [i for i, key in enumerate(keys) if len(key) == _KEY_BYTES]
        for first in range(0, len(safe), _PUSH_CHUNKS):
            batch = safe[first : first + _PUSH_CHUNKS]
            own = self._keys.told([keys[i] for i in batch])
            parts = [
                Part(key, self._rows[chunks[i], begin:end], rect=rect)
                for i, key in zip(batch, own, strict=True)
                for rect, begin, end in self._columns
            ]
            sizes = [end - begin for _, begin, end in self._columns]
            there = self._store.save(parts, sizes * len(batch))
            each = len(sizes)
            for at, i in enumerate(batch):
                stored[i] = all(there[at * each : (at + 1) * each])
        return stored

    def _load(self, keys: list[OffloadKey], chunks: list[int]) -> list[bool]:
        own = [group_key(key) for key in keys]
        failed: set[int] = set()
        for rect, begin, end in self._columns:
            into = [self._rows[chunk, begin:end] for chunk in chunks]
            failed |= self._store.load_any(own, into, rect)
        return [i not in failed for i in range(len(keys))]

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Those that have ended since the last call."""
        results = []
        while not self._ended.empty():
            result, failed = self._ended.get()
            self._running.pop(result.job_id, None)
            # Otherwise the scheduler would ask for the same chunks forever.
            self._lookups.mark_miss(failed)
            results.append(result)
        return results

    def has_pending_work(self) -> bool:
        """Jobs that have not been reported."""
        return bool(self._running)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """No wishes."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forgets its questions."""
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Asks the node what this step wanted to know."""
        self._lookups.flush()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """The blocks that the node stored and lost since the last step, if the engine publishes
        events."""
        return self._events.take() if self._events is not None else ()

    def drain_jobs(self) -> None:
        """Waits for all jobs; each ends by its deadline."""
        for future in list(self._running.values()):
            future.result()

    def shutdown(self) -> None:
        """Waits for jobs, ends the session, and lets go of vLLM's memory, which cannot be closed
        before."""
        self._pool.shutdown(wait=True)
        self._lookups.shutdown()
        if self._events is not None:
            self._events.close()
        self._store.close()
        del self._rows
        self._primary_kv_view.release()

    def _chunk_event(self, move: Move) -> OffloadingEvent | None:
        key = self._keys.name(move.key)
        if key is None:
            return None
        return OffloadingEvent(
            keys=[key],
            medium=_MEDIA[move.tier],
            removed=not move.entered,
            locality=Locality.REMOTE,
            ownership=OWNER,
            # vLLM keeps what it knows of the chunk's tokens until then.
            removal_expected=move.entered,
        )


class _Lookups(AsyncLookupManager):
    """vLLM's own thread and bookkeeping with our question."""

    def __init__(self, tier_type: str, store: Store, keys: GroupKeys) -> None:
        self._store = store
        self._keys = keys
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Collection[bool]:
        try:
            there = self._store.exists([group_key(key) for key in keys])
            self._keys.told([key for key, found in zip(keys, there) if found])
            return there
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: a look-up failed, vLLM goes on without")
            return [False] * len(keys)


def group_key(key: OffloadKey) -> bytes:
    """The key at the node of a chunk of a KV cache group: the block's hash, with a mask for each
    group after the first. Those of the pools of a layout (docs/inside/formats/keys.md) are made in
    this way too."""
    return _masked(bytes(key[:32]), bytes(key[32:]))


def _masked(key: bytes, group: bytes) -> bytes:
    """Twice with the same group is `key` again."""
    number = int.from_bytes(group, "big")
    if number == 0:
        return key
    mask = hashlib.sha256(b"cairn.pool.v1" + number.to_bytes(4, "little")).digest()
    return bytes(a ^ b for a, b in zip(key, mask))


class GroupKeys:
    """Which KV cache group a key of the node belongs to. Thread-safe.

    Keys do not say it. The groups of those are known that this engine has stored or found. Beyond
    a million keys the oldest is forgotten, and its block's removal is not told to routers.
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._known: dict[bytes, bytes] = {}
        self.when_named: Callable[[bytes], None] | None = None
        """Called with each key whose group was not known before."""

    def told(self, keys: Sequence[OffloadKey]) -> list[bytes]:
        """Their keys at the node, which are known from now on."""
        own = [group_key(key) for key in keys]
        if self._groups == 1 or self.when_named is None:
            return own
        for key, at_node in zip(keys, own):
            with self._lock:
                if at_node in self._known:
                    continue
                self._known[at_node] = bytes(key[32:])
                if len(self._known) > _KNOWN:
                    del self._known[next(iter(self._known))]
            self.when_named(at_node)
        return own

    def name(self, key: bytes) -> OffloadKey | None:
        """vLLM's name for the block of a key at the node."""
        if self._groups == 1:
            return make_offload_key(key, 0)
        with self._lock:
            group = self._known.get(key)
        if group is None:
            return None
        return make_offload_key(_masked(key, group), int.from_bytes(group, "big"))


def _columns(row_bytes: int) -> list[tuple[Rect, int, int]]:
    """The parts of a row: their rectangles, and the bytes [begin, end) of the row. A part has a
    limit, and a row none."""
    count = -(-row_bytes // MAX_PART)
    each = -(-row_bytes // count)
    return [(Rect(0, 1, i, i + 1), i * each, min(row_bytes, (i + 1) * each)) for i in range(count)]


def _spec(offloading: OffloadingSpec, row_bytes: int, options: Options) -> NamespaceSpec:
    config = offloading.config
    tokens = max(offloading.tokens_per_block) * offloading.blocks_per_chunk
    if tokens > MAX_BLOCK_TOKENS:
        raise ValueError(
            f"setting 'blocks_per_chunk': a chunk has {tokens} tokens, "
            f"expected at most {MAX_BLOCK_TOKENS}"
        )
    columns = _columns(row_bytes)
    if len(columns) > MAX_COLUMNS:
        raise ValueError(
            f"setting 'blocks_per_chunk': a chunk has {row_bytes} bytes, "
            f"expected at most {MAX_COLUMNS * MAX_PART}"
        )
    parallel = config.parallel
    layers = hashlib.sha256(repr(config.groups).encode()).hexdigest()[:32]
    seed = hashlib.sha256(get_none_hash_seed().encode()).hexdigest()[:32]
    return NamespaceSpec(
        model=os.path.basename(os.path.normpath(config.model.name)),
        revision=options.revision or weights_revision(config.model.name),
        numerics=(
            f"vllm {vllm.__version__} torch {torch.__version__} {machine()} {config.model.dtype}"
        ),
        tenant=options.tenant,
        salt=options.salt.encode(),
        weight_epoch=options.weight_epoch,
        layout=OpaqueLayout(
            f"vllm offload chunk of {row_bytes} bytes, "
            f"{config.worker_kv_bytes_per_block} a block and worker, "
            f"{offloading.blocks_per_chunk} blocks, layout={config.kv_cache_layout} "
            f"canonical={config.canonical_layout} "
            f"replicated={config.replicated_layout} dtype={config.model.dtype} "
            f"tp={parallel.tp_size} pp={parallel.pp_size} "
            f"pcp={parallel.pcp_size} dcp={parallel.dcp_size} groups={layers} on {machine()}",
            max_part_bytes=columns[0][2],
            parts=len(columns),
            block_tokens=tokens,
        ),
        key_scheme=f"vllm-offload-{seed}",
    )
