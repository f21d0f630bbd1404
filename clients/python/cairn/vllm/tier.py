"""A secondary tier for vLLM's own offloading: docs/program/engines/vllm.md. vLLM fills host memory,
this moves its chunks.

vLLM loads `CairnTier` itself, through `secondary_tiers` of its TieringOffloadingSpec.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import time
from collections.abc import Collection, Iterable
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

from cairn._engine.options import TIER_WITHOUT, Options
from cairn._engine.store import Store
from cairn._engine.versions import check_version
from cairn._engine.weights import weights_revision
from cairn.types import NamespaceSpec, OpaqueLayout, Part, TierKind
from cairn.vllm.events import OWNER, EventFeed, Move
from cairn.vllm.namespace import BLOCK_TOKENS, MAX_PART, machine

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec, ScheduleEndContext

__all__ = ["CairnTier"]

_LOG = logging.getLogger("cairn")
_KEY_BYTES = 32 + 4  # A SHA-256 and the number of a KV cache group.
_PUSH_CHUNKS = 16  # In one call to the node.
_MEDIA = {TierKind.HOST: Medium.CPU, TierKind.DISK: Medium.STORAGE}


class CairnTier(SecondaryTierManager):
    """Chunks of vLLM's host memory, whole: one row has all layers and all ranks. Called by the
    scheduler's thread.

    The node evicts by itself; nothing is deleted from here.
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
        """RuntimeError: an untested version of vLLM. ValueError: a setting is not valid."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        check_version("vllm", vllm.__version__)
        options = Options.read(settings, "secondary_tiers[].", TIER_WITHOUT)
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._store = Store(
            options, _spec(offloading_spec, self.block_size_bytes, options), "vllm-tier"
        )
        self._lookups = _Lookups(tier_type, self._store)
        self._pool = ThreadPoolExecutor(2, "cairn-tier")
        self._running: dict[int, Future[None]] = {}
        self._ended: queue.SimpleQueue[tuple[JobResult, list[OffloadKey]]] = queue.SimpleQueue()
        self._store.wait_open(2.0)
        self._events: EventFeed[OffloadingEvent] | None = None
        if offloading_spec.kv_events_config.enable_kv_cache_events:
            if len(offloading_spec.config.groups) == 1:
                self._events = EventFeed(self._store, _chunk_event)
            else:
                _LOG.info("cairn: no events, since the model has several KV cache groups")

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
        result = JobResult(
            job.job_id,
            all(good),
            successful_keys=successful if job.is_promotion else None,
            transfer_time=time.monotonic() - begin,
            transfer_bytes=len(successful) * self.block_size_bytes,
        )
        failed = [key for key, there in zip(keys, good) if not there] if job.is_promotion else []
        self._ended.put((result, failed))

    def _save(self, keys: list[OffloadKey], chunks: list[int]) -> list[bool]:
        stored = [False] * len(keys)
        # A short hash may belong to a second text, so its chunk stays here.
        safe = [i for i, key in enumerate(keys) if len(key) == _KEY_BYTES]
        for first in range(0, len(safe), _PUSH_CHUNKS):
            batch = safe[first : first + _PUSH_CHUNKS]
            parts = [Part(_block_key(keys[i]), self._rows[chunks[i]]) for i in batch]
            there = self._store.save(parts, [self.block_size_bytes] * len(parts))
            for i, one in zip(batch, there, strict=True):
                stored[i] = one
        return stored

    def _load(self, keys: list[OffloadKey], chunks: list[int]) -> list[bool]:
        failed = self._store.load_any(
            [_block_key(key) for key in keys], [self._rows[chunk] for chunk in chunks]
        )
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


class _Lookups(AsyncLookupManager):
    """vLLM's own thread and bookkeeping with our question."""

    def __init__(self, tier_type: str, store: Store) -> None:
        self._store = store
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Collection[bool]:
        try:
            return self._store.exists([_block_key(key) for key in keys])
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: a look-up failed, vLLM goes on without")
            return [False] * len(keys)


def _block_key(key: OffloadKey) -> bytes:
    """The block's hash; KV cache groups after the first have keys of their own."""
    block, group = bytes(key[:32]), bytes(key[32:])
    return (
        block
        if group == bytes(4)
        else hashlib.sha256(b"cairn.vllm.group.v1" + block + group).digest()
    )


def _chunk_event(move: Move) -> OffloadingEvent:
    """The event for the only KV cache group: the keys of others do not name their group."""
    return OffloadingEvent(
        keys=[make_offload_key(move.key, 0)],
        medium=_MEDIA[move.tier],
        removed=not move.entered,
        locality=Locality.REMOTE,
        ownership=OWNER,
        # vLLM keeps what it knows of the chunk's tokens until then.
        removal_expected=move.entered,
    )


def _spec(offloading: OffloadingSpec, row_bytes: int, options: Options) -> NamespaceSpec:
    config = offloading.config
    tokens = max(offloading.tokens_per_block) * offloading.blocks_per_chunk
    if tokens not in BLOCK_TOKENS:
        raise ValueError(
            f"setting 'blocks_per_chunk': a chunk has {tokens} tokens, "
            f"expected one of {BLOCK_TOKENS}"
        )
    if row_bytes > MAX_PART:
        raise ValueError(
            f"setting 'blocks_per_chunk': a chunk has {row_bytes} bytes, "
            f"expected at most {MAX_PART}"
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
            max_part_bytes=row_bytes,
            block_tokens=tokens,
        ),
        key_scheme=f"vllm-offload-{seed}",
    )
