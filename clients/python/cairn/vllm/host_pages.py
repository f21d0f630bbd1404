"""An engine's pages in host memory: loads go directly into them, and saves are copied out of them
on the engine's thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import torch

from cairn._engine.store import Store
from cairn.client import StagedPush
from cairn.types import Part, Rect
from cairn.vllm.metadata import LoadJob, SaveJob
from cairn.vllm.save_queue import SaveQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["HostPages"]

# In one call to the node: the first are stored while the next are copied.
_PUSH_BYTES = 8 << 20
_PUSH_PARTS = 64


class HostPages:
    """As `DevicePages`. `load` is called by several threads, everything else by the engine's."""

    def __init__(
        self, store: Store, kv_caches: dict[str, torch.Tensor], rect: Rect, block_tokens: int
    ) -> None:
        """ValueError: a page is not one run of bytes, or a block has not the bytes of the
        namespace's layout."""
        self._store = store
        self._rect = rect
        self._pages: list[NDArray[np.uint8]] = []
        seen: set[int] = set()
        for name, cache in kv_caches.items():
            if cache.data_ptr() in seen:
                continue  # Shared with another layer.
            seen.add(cache.data_ptr())
            size = cache[0].numel() * cache.element_size()
            if not cache[0].is_contiguous() or cache.stride(0) * cache.element_size() != size:
                raise ValueError(
                    f"the KV cache of '{name}' has shape {tuple(cache.shape)} "
                    f"and strides {cache.stride()}, "
                    "expected blocks that are contiguous and follow each other"
                )
            # numpy copies on this thread alone; torch would use the model's.
            self._pages.append(cache.view(torch.uint8).view(cache.shape[0], size).numpy())
        total = sum(page.shape[1] for page in self._pages)
        expected = store.spec.layout.max_part_bytes  # type: ignore[union-attr]
        if total != expected:
            raise ValueError(
                f"a block has {total} bytes in the engine's pages, expected {expected}"
            )
        self._saver = _Saver(store, total, rect, block_tokens)

    def fence(self) -> None:
        """Memory of the host needs none."""

    def load(self, job: LoadJob, fence: None) -> set[int]:
        """Indices of `job.blocks` that did not come."""
        into = [[page[block] for page in self._pages] for block in job.blocks]
        return self._store.load(job.keys, job.first, into, self._rect)

    def save(self, jobs: Sequence[SaveJob]) -> None:
        """Copies the blocks, because the engine may use their pages again. A thread stores them."""
        for job in jobs:
            parent = job.parent
            for i, (key, block) in enumerate(zip(job.keys, job.blocks)):
                self._saver.add(key, parent, job.first + i, [page[block] for page in self._pages])
                parent = key
        self._saver.send()

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        return self._saver.drain(seconds)

    def close(self) -> None:
        """Stores what was copied, for a short time at most."""
        self._saver.close()


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
    ) -> Iterator[tuple[StagedPush | None, list[bytes]]]:
        """With `turn`, what has its turn now, and its keys. By one thread at a time."""
        self._staged[turn] = staged
        while self._next in self._staged:
            yield self._staged.pop(self._next), [part.key for part in self._batches[self._next]]
            self._next += 1


class _Saver:
    """Blocks on their way to the node, at most `save_buffer` bytes of them. Further ones are
    dropped: a later miss."""

    def __init__(self, store: Store, block_bytes: int, rect: Rect, block_tokens: int) -> None:
        self._store = store
        self._rect = rect
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._at_once = max(1, min(_PUSH_PARTS, _PUSH_BYTES // block_bytes))
        self._parts: list[Part] = []
        self._queue: SaveQueue[tuple[StagedPush, int]] = SaveQueue(
            store.counters, self._commit, max(1, store.options.save_buffer // block_bytes)
        )
        self._order = threading.Lock()
        self._helper = ThreadPoolExecutor(1, "cairn-stage")

    def add(
        self, key: bytes, parent: bytes | None, index: int, pieces: list[NDArray[np.uint8]]
    ) -> None:
        """A block, of `pieces` that follow each other, for the next `send`. Called by one
        thread."""
        if self._queue.claim(key):
            self._parts.append(
                Part(
                    key,
                    pieces,
                    parent=parent,
                    first_position=index * self._block_tokens,
                    rect=self._rect,
                )
            )

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
                for push, keys in batches.in_order(turn, staged):
                    if push is None:
                        self._queue.forget(keys)
                    else:
                        self._queue.put((push, len(keys)), keys)

    def _commit(self, staged: tuple[StagedPush, int]) -> None:
        push, count = staged
        self._store.commit(push, [self._block_bytes] * count)

    def drain(self, seconds: float) -> bool:
        return self._queue.drain(seconds)

    def close(self) -> None:
        self._queue.close()
        self._helper.shutdown(wait=True)
