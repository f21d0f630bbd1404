"""An engine's pages in host memory: loads go directly into them, and saves are copied out of them
on the engine's thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import torch

from cairn._engine.pool_store import PoolStore, PoolTarget
from cairn._engine.store import Store
from cairn.client import StagedPush
from cairn.types import OpaqueLayout, Part, PooledLayout, Rect
from cairn.vllm.metadata import LoadJob, PoolLoadJob, SaveJob, check_places
from cairn.vllm.namespace import Plan
from cairn.vllm.pools import layers_of
from cairn.vllm.save_queue import SaveQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["HostPages"]

# In one call to the node: the first are stored while the next are copied.
_PUSH_BYTES = 8 << 20
_PUSH_PARTS = 64


class HostPages:
    """As `DevicePages`. `load` is called by several threads, everything else by the engine's."""

    def __init__(
        self, store: Store, kv_caches: dict[str, torch.Tensor], rank: int, plan: Plan
    ) -> None:
        """ValueError: a page is not one run of bytes, or a block has not the bytes of the
        namespace's layout."""
        self._store = store
        self._needs = [pool.need(number) for number, pool in enumerate(plan.pools)]
        layout = store.spec.layout
        if isinstance(layout, PooledLayout):
            self._pools = [
                _Pool(
                    layers_of(pool, kv_caches),
                    plan.blocks,
                    Rect(number, number + 1, rank, rank + 1),
                    pool.block_tokens,
                    pool.chained,
                    pool.page_bytes,
                )
                for number, pool in enumerate(plan.pools)
            ]
            expected = [pool.own_bytes for pool in plan.pools]
        else:
            assert isinstance(layout, OpaqueLayout)
            rect = Rect(0, 1, rank, rank + 1)
            self._pools = [_Pool(kv_caches, plan.blocks, rect, plan.block_tokens, chained=True)]
            expected = [plan.own_bytes or layout.max_part_bytes]
        for own, size in zip(self._pools, expected):
            if own.block_bytes != size:
                raise ValueError(
                    f"a block has {own.block_bytes} bytes in the engine's pages, expected {size}"
                )
        self._saver = _Saver(store, expected)

    def fence(self) -> None:
        """Memory of the host needs none."""

    def load(self, job: LoadJob | PoolLoadJob, fence: None) -> set[int]:
        """Indices of `job.blocks` that did not come."""
        if isinstance(job, LoadJob):
            [pool] = self._pools
            pages = pool.pages(job.blocks)
            return self._store.load(job.keys, job.first, pages, pool.rect, limit=job.limit)
        assert isinstance(self._store, PoolStore)
        check_places(job)
        for blocks in job.pools:
            self._pools[blocks.pool].clear_padding(blocks.blocks)
        targets = [
            PoolTarget(
                blocks.pool,
                blocks.first,
                self._pools[blocks.pool].pages(blocks.blocks),
                self._pools[blocks.pool].rect,
            )
            for blocks in job.pools
        ]
        came = self._store.load_pools(job.keys, self._needs, job.tokens, targets, job.limit)
        return set() if came else set(range(len(job.blocks)))

    def save(self, jobs: Sequence[SaveJob]) -> None:
        """Copies the blocks, because the engine may use their pages again. A thread stores them."""
        for job in jobs:
            pool, parent = self._pools[job.pool], job.parent
            for i, (key, pieces) in enumerate(zip(job.keys, pool.pages(job.blocks))):
                position = (job.first + i) * pool.block_tokens
                self._saver.add(Part(key, pieces, parent, position, pool.rect))
                parent = key if pool.chained else None
        self._saver.send()

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        return self._saver.drain(seconds)

    def close(self) -> None:
        """Stores what was copied, for a short time at most."""
        self._saver.close()


class _Pool:
    """The pages of layers whose blocks have the same numbers. Other layers may have theirs in the
    same memory, in blocks with other numbers."""

    def __init__(
        self,
        kv_caches: Mapping[str, torch.Tensor],
        blocks: int,
        rect: Rect,
        block_tokens: int,
        chained: bool,
        page_bytes: int = 0,
    ) -> None:
        """`blocks`: how many the engine has, if the tensors may have more by a factor. 0: as the
        first axis says. `page_bytes`: from one block of a layer to the next, if padding may be
        between them. ValueError: a page is not one run of bytes."""
        self.rect = rect
        self.block_tokens = block_tokens
        self.chained = chained
        """Each block has the one before it as its parent."""
        self._rows: list[NDArray[np.uint8]] = []
        self._padding: list[NDArray[np.uint8]] = []
        seen: set[int] = set()
        for name, cache in kv_caches.items():
            if cache.data_ptr() in seen:
                continue  # Shared with another layer.
            seen.add(cache.data_ptr())
            size = cache[0].numel() * cache.element_size()
            stride = cache.stride(0) * cache.element_size()
            if not cache[0].is_contiguous() or stride not in (size, page_bytes):
                raise ValueError(
                    f"the KV cache of '{name}' has shape {tuple(cache.shape)} "
                    f"and strides {cache.stride()}, "
                    "expected blocks that are contiguous and follow each other"
                    + (f", or {page_bytes} bytes from one to the next" if page_bytes else "")
                )
            count = blocks or cache.shape[0]
            # Padding is after each block of the engine, which then is not split.
            if cache.shape[0] % count or (stride > size and cache.shape[0] != count):
                raise ValueError(
                    f"the KV cache of '{name}' has {cache.shape[0]} blocks, expected "
                    + (f"a multiple of {count}" if stride == size else f"{count}")
                )
            split = cache.shape[0] // count
            pages = cache.view(torch.uint8).as_strided((count, split * stride), (split * stride, 1))
            # numpy copies on this thread alone; torch would use the model's.
            self._rows.append(pages[:, : split * size].numpy())
            if stride > size:
                self._padding.append(pages[:, size:].numpy())

    def clear_padding(self, blocks: Sequence[int]) -> None:
        """vLLM does not clear blocks that a load is to fill, which may have been of another kind
        before."""
        for padding in self._padding:
            padding[list(blocks)] = 0

    @property
    def block_bytes(self) -> int:
        """The bytes of all layers."""
        return sum(row.shape[1] for row in self._rows)

    def pages(self, blocks: Sequence[int]) -> list[list[NDArray[np.uint8]]]:
        """The pieces of each block."""
        return [[row[block] for row in self._rows] for block in blocks]


class _Batches:
    """The batches of one copy. Any thread that has time copies the next batch. They are handed on
    in order, parents before children."""

    def __init__(self, batches: list[list[Part]]) -> None:
        self._batches = batches
        self._turns = count()
        self._staged: dict[int, StagedPush | None] = {}
        self._next = 0

    def take(self) -> Iterator[tuple[int, list[Part]]]:
        """Each batch once, among all who take."""
        for turn in self._turns:
            if turn >= len(self._batches):
                return
            yield turn, self._batches[turn]

    def in_order(
        self, turn: int, staged: StagedPush | None
    ) -> Iterator[tuple[StagedPush | None, list[Part]]]:
        """With `turn`, what has its turn now, and its parts. By one thread at a time."""
        self._staged[turn] = staged
        while self._next in self._staged:
            yield self._staged.pop(self._next), self._batches[self._next]
            self._next += 1


class _Saver:
    """Blocks on their way to the node, at most `save_buffer` bytes of them. Further ones are
    dropped: a later miss."""

    def __init__(self, store: Store, sizes: Sequence[int]) -> None:
        """`sizes`: the bytes of a block, by pool."""
        self._store = store
        self._sizes = sizes
        block_bytes = max(sizes)
        self._at_once = max(1, min(_PUSH_PARTS, _PUSH_BYTES // block_bytes))
        self._parts: list[Part] = []
        self._queue: SaveQueue[tuple[StagedPush, list[int]]] = SaveQueue(
            store.counters, self._commit, max(1, store.options.save_buffer // block_bytes)
        )
        self._order = threading.Lock()
        self._helper = ThreadPoolExecutor(1, "cairn-stage")

    def add(self, part: Part) -> None:
        """A block, of pieces that follow each other, for the next `send`. Called by one thread."""
        if self._queue.claim(part.key):
            self._parts.append(part)

    def send(self) -> None:
        """Copies the added blocks to the place from which they are stored. Then their memory may
        change.

        The engine waits for that, so a second thread helps: one alone does not reach the speed of
        memory.
        """
        parts, self._parts = self._parts, []
        batches = _Batches(
            [parts[i : i + self._at_once] for i in range(0, len(parts), self._at_once)]
        )
        helper = self._helper.submit(self._stage, batches) if len(parts) > self._at_once else None
        self._stage(batches)
        if helper is not None:
            helper.result()

    def _stage(self, batches: _Batches) -> None:
        for turn, batch in batches.take():
            staged = self._store.stage(batch)
            with self._order:
                for push, parts in batches.in_order(turn, staged):
                    keys = [part.key for part in parts]
                    if push is None:
                        self._queue.forget(keys)
                    else:
                        sizes = [self._size(part) for part in parts]
                        self._queue.put((push, sizes), keys)

    def _size(self, part: Part) -> int:
        assert part.rect is not None
        return self._sizes[part.rect.layer_begin]

    def _commit(self, staged: tuple[StagedPush, list[int]]) -> None:
        push, sizes = staged
        self._store.commit(push, sizes)

    def drain(self, seconds: float) -> bool:
        return self._queue.drain(seconds)

    def close(self) -> None:
        self._queue.close()
        self._helper.shutdown(wait=True)
