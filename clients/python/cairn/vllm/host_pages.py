"""An engine's pages in host memory: loads go directly into them, and saves are copied out of them
on the engine's thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from cairn._engine.pool_store import PoolStore, PoolTarget
from cairn._engine.store import Store
from cairn.client import StagedPush
from cairn.types import OpaqueLayout, Part, PooledLayout, Rect
from cairn.vllm.columns import heads_of_column
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
        self, store: Store, kv_caches: dict[str, torch.Tensor], parts: range, plan: Plan
    ) -> None:
        """`parts`: those that this worker has of a block.

        ValueError: a page is not one run of bytes, or a part has not the bytes of the namespace's
        layout.
        """
        self._store = store
        self._needs = [pool.need(number) for number, pool in enumerate(plan.pools)]
        layout = store.spec.layout
        if isinstance(layout, PooledLayout):
            self._pools = [
                _Pool(
                    _columns(number, layers_of(pool, kv_caches), parts, plan, pool.page_bytes),
                    pool.block_tokens,
                    pool.chained,
                )
                for number, pool in enumerate(plan.pools)
            ]
            expected = [pool.own_bytes for pool in plan.pools]
        else:
            assert isinstance(layout, OpaqueLayout)
            columns = _columns(0, kv_caches, parts, plan)
            self._pools = [_Pool(columns, plan.block_tokens, chained=True)]
            expected = [plan.own_bytes or layout.max_part_bytes]
        for own, size in zip(self._pools, expected):
            for column in own.columns:
                if column.part_bytes != size:
                    raise ValueError(
                        f"a block has {column.part_bytes} bytes in the engine's pages, "
                        f"expected {size}"
                    )
        self._saver = _Saver(store, expected)

    def fence(self) -> None:
        """Memory of the host needs none."""

    def load(self, job: LoadJob | PoolLoadJob, fence: None) -> set[int]:
        """Indices of `job.blocks` that did not come."""
        if isinstance(job, LoadJob):
            [pool] = self._pools
            into = {column.rect: column.pages(job.blocks) for column in pool.columns}
            return self._store.load_parts(job.keys, job.first, into, limit=job.limit)
        assert isinstance(self._store, PoolStore)
        check_places(job)
        targets = []
        for blocks in job.pools:
            for column in self._pools[blocks.pool].columns:
                column.clear_padding(blocks.blocks)
                pages = column.pages(blocks.blocks)
                targets.append(PoolTarget(blocks.pool, blocks.first, pages, column.rect))
        came = self._store.load_pools(job.keys, self._needs, job.tokens, targets, job.limit)
        return set() if came else set(range(len(job.blocks)))

    def save(self, jobs: Sequence[SaveJob]) -> None:
        """Copies the blocks, because the engine may use their pages again. A thread stores them."""
        for job in jobs:
            pool, parent = self._pools[job.pool], job.parent
            pages = [column.pages(job.blocks) for column in pool.columns]
            for i, key in enumerate(job.keys):
                position = (job.first + i) * pool.block_tokens
                for column, pieces in zip(pool.columns, pages):
                    self._saver.add(Part(key, pieces[i], parent, position, column.rect))
                parent = key if pool.chained else None
        self._saver.send()

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        return self._saver.drain(seconds)

    def close(self) -> None:
        """Stores what was copied, for a short time at most."""
        self._saver.close()


class _Pool(NamedTuple):
    """The pages of layers whose blocks have the same numbers. Other layers may have theirs in the
    same memory, in blocks with other numbers."""

    columns: list[_Column]
    block_tokens: int
    chained: bool
    """Each block has the one before it as its parent."""


def _columns(
    pool: int,
    kv_caches: Mapping[str, torch.Tensor],
    parts: range,
    plan: Plan,
    page_bytes: int = 0,
) -> list[_Column]:
    """A column for each part."""
    return [
        _Column(
            heads_of_column(kv_caches, i, len(parts)),
            plan.blocks,
            Rect(pool, pool + 1, part, part + 1),
            page_bytes,
            len(parts),
        )
        for i, part in enumerate(parts)
    ]


class _Column:
    """One part of each block."""

    def __init__(
        self,
        kv_caches: Mapping[str, torch.Tensor],
        blocks: int,
        rect: Rect,
        page_bytes: int,
        columns: int,
    ) -> None:
        """`blocks`: how many the engine has, if the tensors may have more by a factor. 0: as the
        first axis says. `page_bytes`: from one block of a layer to the next, if padding may be
        between them. `columns`: the parts that a layer has between two blocks.

        ValueError: a page is not one run of bytes.
        """
        self.rect = rect
        self._rows: list[NDArray[np.uint8]] = []
        self._padding: list[NDArray[np.uint8]] = []
        seen: set[int] = set()
        for name, cache in kv_caches.items():
            if cache.data_ptr() in seen:
                continue  # Shared with another layer.
            seen.add(cache.data_ptr())
            size = cache[0].numel() * cache.element_size()
            stride = cache.stride(0) * cache.element_size()
            if not cache[0].is_contiguous() or stride not in (size * columns, page_bytes):
                raise ValueError(
                    f"the KV cache of '{name}' has shape {tuple(cache.shape)} "
                    f"and strides {cache.stride()}, "
                    "expected blocks that are contiguous and follow each other"
                    + (f", or {page_bytes} bytes from one to the next" if page_bytes else "")
                )
            count = blocks or cache.shape[0]
            if columns > 1:
                self._add_heads(name, cache, count)
                continue
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

    def _add_heads(self, name: str, cache: torch.Tensor, count: int) -> None:
        """Some heads of each block, of which the others are no padding."""
        if cache.shape[0] % count:
            raise ValueError(
                f"the KV cache of '{name}' has {cache.shape[0]} blocks, "
                f"expected a multiple of {count}"
            )
        size, split = cache[0].numel() * cache.element_size(), cache.shape[0] // count
        stride = split * cache.stride(0) * cache.element_size()
        raw = cache.view(torch.uint8)
        for i in range(split):
            self._rows.append(raw[i:].as_strided((count, size), (stride, 1)).numpy())

    def clear_padding(self, blocks: Sequence[int]) -> None:
        """vLLM does not clear blocks that a load is to fill, which may have been of another kind
        before."""
        for padding in self._padding:
            padding[list(blocks)] = 0

    @property
    def part_bytes(self) -> int:
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


def _name(part: Part) -> bytes:
    """Tells it from others that are under way."""
    assert part.rect is not None
    return part.key + part.rect.head_begin.to_bytes(2, "little")


class _Saver:
    """Parts of blocks on their way to the node, at most `save_buffer` bytes of them. Further ones
    are dropped: a later miss."""

    def __init__(self, store: Store, sizes: Sequence[int]) -> None:
        """`sizes`: the bytes of a part, by pool."""
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
        """Pieces that follow each other, for the next `send`. Called by one thread."""
        if self._queue.claim(_name(part)):
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
                    keys = [_name(part) for part in parts]
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
