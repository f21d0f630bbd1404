"""An engine's pages on a GPU, for models with several KV cache groups: `DevicePages` for each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cairn import _native
from cairn._engine.pool_store import PoolStore
from cairn.types import Rect
from cairn.vllm.device_pages import DevicePages
from cairn.vllm.metadata import LoadJob, PoolLoadJob, SaveJob, check_places
from cairn.vllm.namespace import Plan
from cairn.vllm.pools import layers_of

__all__ = ["PooledDevicePages"]


class PooledDevicePages:
    """As `DevicePages`. Groups have the same memory, and a block of it belongs to one of them at a
    time."""

    def __init__(
        self, store: PoolStore, kv_caches: Mapping[str, Any], parts: range, plan: Plan
    ) -> None:
        """As of `DevicePages`, whose buffers the groups share. `parts`: those that this worker has
        of a block."""
        self._store = store
        self._needs = [pool.need(number) for number, pool in enumerate(plan.pools)]
        self._pages: list[DevicePages] = []
        try:
            for number, pool in enumerate(plan.pools):
                rects = [Rect(number, number + 1, part, part + 1) for part in parts]
                self._pages.append(
                    DevicePages(store, layers_of(pool, kv_caches), rects, plan, None, pool)
                )
        except BaseException:
            self.close()
            raise

    def fence(self) -> _native.Fence:
        """A point behind what the engine has launched so far. `cairn.Error`: there is none."""
        return self._pages[0].fence()

    def load(self, job: LoadJob | PoolLoadJob, fence: _native.Fence) -> set[int]:
        """Indices of `job.blocks` that did not come: none or all."""
        assert isinstance(job, PoolLoadJob)
        check_places(job)
        count = len(job.blocks)
        with self._store.loading_pools(job.keys, self._needs, job.tokens, count, job.limit) as load:
            for blocks in job.pools:
                fetch = load.fetching(blocks.pool, blocks.first)
                pages = self._pages[blocks.pool]
                if pages.load_blocks(blocks.blocks, blocks.first, fence, fetch, job.limit):
                    return set(range(count))
            load.came = True
        return set()

    def save(self, jobs: Sequence[SaveJob]) -> None:
        """Launches copies on the engine's stream, so the engine may use the pages again."""
        for number, pages in enumerate(self._pages):
            pages.save([job for job in jobs if job.pool == number])

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        until = time.monotonic() + seconds
        return all(pages.drain(max(0.0, until - time.monotonic())) for pages in self._pages)

    def close(self) -> None:
        """As of `DevicePages`."""
        for pages in self._pages:
            pages.close()
