"""A worker's half: moves whole blocks between the engine's pages and the node, in threads of its
own."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Union

from cairn._engine.pool_store import PoolStore
from cairn._engine.store import Store
from cairn.types import Rect
from cairn.vllm.metadata import LoadJob, LoadTimes, Metadata, PoolLoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.recent_saves import RecentSaves

if TYPE_CHECKING:
    import torch

    from cairn.vllm.device_pages import AccessOf, DevicePages
    from cairn.vllm.host_pages import HostPages
    from cairn.vllm.pooled_device_pages import PooledDevicePages

    Pages = Union[DevicePages, HostPages, PooledDevicePages]

__all__ = ["WorkerHalf"]

_LOG = logging.getLogger("cairn")
_IDLE = 0.005  # Seconds that a step without work waits for a load.


class WorkerHalf:
    """Called by the worker's one thread that runs steps."""

    def __init__(self, store: Store, plan: Plan, rank: int) -> None:
        self._store = store
        self._plan = plan
        self._parts = plan.ranks.parts_of(rank)
        self._stores = plan.ranks.stores(rank)
        self._pages: Pages | None = None
        self._loads = ThreadPoolExecutor(2, "cairn-load")
        self._done: queue.SimpleQueue[tuple[str, list[int], float]] = queue.SimpleQueue()
        self._under_way = 0
        self._bad: set[int] = set()
        self._failed: set[str] = set()
        self._times = LoadTimes()
        self._recent = RecentSaves()
        self._mismatch = False

    def register(
        self, kv_caches: dict[str, torch.Tensor], access_of: AccessOf | None = None
    ) -> None:
        """Learns where the engine's pages lie. `access_of`: for a codec, see DevicePages.

        ValueError: pages that cannot be taken as bytes, or on a kind of device that cannot be
        reached, or that the codec cannot read. `cairn.Error`: on a GPU, without the library that
        drives it or without memory for a block.
        """
        kinds = {cache.device.type for cache in kv_caches.values()}
        if kinds == {"cpu"}:
            from cairn.vllm.host_pages import HostPages

            if self._plan.coding is not None:
                raise ValueError(
                    f"setting 'codec': got '{self._plan.coding.codec}', expected none: "
                    "the engine's pages are in host memory, where nothing encodes them"
                )
            self._pages = HostPages(self._store, kv_caches, self._parts, self._plan)
        elif kinds == {"cuda"} and self._plan.pools:
            from cairn.vllm.pooled_device_pages import PooledDevicePages

            assert isinstance(self._store, PoolStore)
            self._pages = PooledDevicePages(self._store, kv_caches, self._parts, self._plan)
        elif kinds == {"cuda"}:
            from cairn.vllm.device_pages import DevicePages

            rects = [Rect(0, 1, part, part + 1) for part in self._parts]
            self._pages = DevicePages(self._store, kv_caches, rects, self._plan, access_of)
        else:
            raise ValueError(
                f"the KV cache is on {', '.join(sorted(kinds)) or 'no device'}, "
                "expected cpu or cuda: see docs/program/engines/vllm.md"
            )

    def start_loads(self, metadata: Metadata) -> None:
        """Returns at once; `finished` tells when each has ended."""
        if metadata.namespace != self._store.namespace and not self._mismatch:
            self._mismatch = True
            self._store.counters.add("internal_errors")
            _LOG.error(
                "cairn: scheduler and worker name the KV differently; nothing is loaded or stored"
            )
        fence = self._fence() if metadata.loads else None
        for job in metadata.loads:
            self._under_way += 1
            self._loads.submit(self._load, job, fence)

    def _fence(self) -> Any:
        """A point behind the engine's work so far. False: there is none, so nothing may be
        loaded."""
        try:
            return self._pages.fence() if self._pages is not None else False
        except Exception as error:
            _LOG.warning("cairn: nothing can be loaded, the engine computes: %s", error)
            return False

    def _load(self, job: LoadJob | PoolLoadJob, fence: Any) -> None:
        begin, failed = time.monotonic(), set(range(len(job.blocks)))
        try:
            if not self._mismatch and fence is not False:
                assert self._pages is not None
                failed = self._pages.load(job, fence)
        except Exception:
            self._store.counters.add("internal_errors")
            _LOG.exception("cairn: a load failed, the engine computes")
        seconds = time.monotonic() - begin
        self._done.put((job.request, [job.blocks[i] for i in sorted(failed)], seconds))

    def finished(self, idle: bool) -> set[str]:
        """Requests whose loads have ended since the last call, well or not.

        `idle`: the engine has nothing else to do, so this waits a little for a load to end.
        Otherwise the engine would run empty steps and use the core that the copy needs.
        """
        ended = set()
        wait = idle
        while self._under_way > 0:
            try:
                request, bad, seconds = self._done.get(block=wait, timeout=_IDLE)
            except queue.Empty:
                break
            wait = False
            self._under_way -= 1
            ended.add(request)
            self._times.loads[request] = (seconds, len(bad))
            if not self._plan.pools:
                self._bad.update(bad)
            elif bad:
                self._failed.add(request)
        return ended

    def take_bad_blocks(self) -> set[int]:
        """The engine's blocks that `finished` loads did not bring. None with pools, where a number
        names a block of some group and does not say of which."""
        bad, self._bad = self._bad, set()
        return bad

    def take_failed(self) -> set[str]:
        """With pools: the requests whose `finished` loads did not bring everything."""
        failed, self._failed = self._failed, set()
        return failed

    def take_times(self) -> LoadTimes | None:
        """How long the loads took that have `finished` since the last call."""
        if not self._times.loads:
            return None
        times, self._times = self._times, LoadTimes()
        return times

    def start_saves(self, metadata: Metadata) -> None:
        """Copies the full blocks of the step to a place of ours, because the engine may use their
        pages again. A thread stores them."""
        if self._pages is None or self._mismatch or not self._stores:
            return
        saves = [
            job
            for job in self._certain(metadata.saves)
            if not (job.unasked and self._recent.has(job.keys))
        ]
        if saves:
            self._pages.save(saves)

    def _certain(self, saves: Sequence[SaveJob]) -> Sequence[SaveJob]:
        """Those without a LoRA adapter whose files have changed: it may be that the engine has read
        the new ones in this step."""
        unchanged = {
            files: files.unchanged()
            for files in {job.adapter for job in saves}
            if files is not None
        }
        certain = [job for job in saves if job.adapter is None or unchanged[job.adapter]]
        lost = sum(len(job.keys) for job in saves) - sum(len(job.keys) for job in certain)
        if lost:
            self._store.counters.add("changed_adapter_blocks", lost)
        return certain

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        return self._pages is None or self._pages.drain(seconds)

    def close(self) -> None:
        """Stores what was copied, for a short time at most."""
        self._loads.shutdown(wait=True, cancel_futures=True)
        if self._pages is not None:
            self._pages.close()
