"""An engine's pages on a GPU. The native module gathers and copies; this decides what, and talks to
the node.

    save   engine's thread: mover.save on the engine's stream ─► thread: store, give slots back
    load   thread: fetch into slots of pinned memory ─► mover.load behind the fence ─► wait for it

Needs torch only to ask for the engine's stream.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cairn import _native
from cairn._engine.memory import memory_at
from cairn._engine.store import Store
from cairn.errors import Error, error_for
from cairn.types import Part, Rect
from cairn.vllm.metadata import LoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.options import ConnectorOptions
from cairn.vllm.page_runs import find_pages

__all__ = ["DevicePages"]

_LOG = logging.getLogger("cairn")
_FETCH_BYTES = 16 << 20  # That are fetched before they are copied to the GPU.


class _Block(NamedTuple):
    key: bytes
    parent: bytes | None
    position: int
    """In the prompt, in blocks."""
    block: int


class DevicePages:
    """As `HostPages`. `load` is called by several threads, everything else by the engine's, which
    never waits for the GPU nor for the node."""

    def __init__(self, store: Store, kv_caches: Mapping[str, Any], rect: Rect, plan: Plan) -> None:
        """ValueError: pages that cannot be taken as bytes. `cairn.Error`: no library, no driver, no
        such GPU, or no memory for one block."""
        assert isinstance(store.options, ConnectorOptions)
        place = find_pages(kv_caches, plan.blocks)
        size = place.block_bytes
        expected = store.spec.layout.max_part_bytes  # type: ignore[union-attr]
        if size != expected:
            raise ValueError(f"a block has {size} bytes in the engine's pages, expected {expected}")
        self._store = store
        self._rect = rect
        self._block_tokens = plan.block_tokens
        self._block_bytes = size
        self._device = place.device
        save_slots = max(1, store.options.save_buffer // size)
        load_slots = max(1, store.options.load_buffer // size)
        self._fetch_at_once = max(1, _FETCH_BYTES // size)
        self._moves = _native.open_pages(
            store.options.device_library,
            place.device,
            [(run.address, run.stride, run.bytes) for run in place.runs],
            place.blocks,
            save_slots,
            load_slots,
        )
        if self._moves.save_slots < save_slots or self._moves.load_slots < load_slots:
            _LOG.warning(
                "cairn: memory is short: %d of %d blocks can be stored at a time, "
                "and %d of %d loaded",
                self._moves.save_slots,
                save_slots,
                self._moves.load_slots,
                load_slots,
            )
        _LOG.info(
            "cairn: KV of %d blocks of %d bytes on GPU %d, in runs of %d bytes",
            place.blocks,
            size,
            place.device,
            max(run.bytes for run in place.runs),
        )
        self._under_way: set[bytes] = set()
        self._queue: list[tuple[_native.Transfer, list[int], list[_Block]]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="cairn-save", daemon=True)
        self._thread.start()

    def _stream(self) -> int:
        import torch

        return int(torch.cuda.current_stream(self._device).cuda_stream)

    # ---- loads ----

    def fence(self) -> _native.Fence:
        """A point behind what the engine has launched so far. `cairn.Error`: there is none."""
        return self._moves.fence(self._stream())

    def load(self, job: LoadJob, fence: _native.Fence) -> set[int]:
        """Indices of `job.blocks` that did not come."""
        failed = set(range(len(job.blocks)))
        launched: list[tuple[_native.Transfer, list[int]]] = []
        try:
            self._launch(job, fence, launched)
        except Error as error:
            self._store.complain("load", error)
        finally:
            # The engine writes into blocks that failed: no copy may be on its way there.
            for transfer, indices in launched:
                while not transfer.wait(1.0):
                    pass
                lost = transfer.error()
                if lost is None:
                    failed.difference_update(indices)
                else:
                    self._store.complain("load", error_for(*lost))
        return failed

    def _launch(
        self,
        job: LoadJob,
        fence: _native.Fence,
        launched: list[tuple[_native.Transfer, list[int]]],
    ) -> None:
        until = time.monotonic() + self._store.options.load_timeout
        count, index = len(job.blocks), 0
        with self._store.loading(job.keys, job.first, count, self._rect) as fetch:
            while index < count:
                slots = self._moves.await_load_slots(
                    min(count - index, self._fetch_at_once), until - time.monotonic()
                )
                if not slots:
                    return
                memory = [memory_at(self._moves.load_slot(s), self._block_bytes) for s in slots]
                bad = set(range(len(slots)))
                try:
                    bad = fetch(index, memory)
                finally:
                    self._moves.give_back_load_slots([slots[i] for i in bad])
                good = [i for i in range(len(slots)) if i not in bad]
                if good:
                    blocks = [job.blocks[index + i] for i in good]
                    transfer = self._moves.load(fence, [slots[i] for i in good], blocks)
                    launched.append((transfer, [index + i for i in good]))
                if bad:
                    return  # What comes after a missing block has no use.
                index += len(slots)

    # ---- saves ----

    def save(self, jobs: Sequence[SaveJob]) -> None:
        """Launches copies on the engine's stream, so the engine may use the pages again. A thread
        stores them. What finds no room is dropped: a later miss."""
        wanted: list[_Block] = []
        with self._changed:
            for job in jobs:
                parent = job.parent
                for i, (key, block) in enumerate(zip(job.keys, job.blocks)):
                    if key not in self._under_way:
                        self._under_way.add(key)
                        wanted.append(_Block(key, parent, job.first + i, block))
                    parent = key
        if not wanted:
            return
        transfer: _native.Transfer | None = None
        slots: list[int] = []
        try:
            transfer, slots = self._moves.save(self._stream(), [block.block for block in wanted])
            self._store.counters.add("dropped_save_blocks", len(wanted) - len(slots))
        except Error as error:
            self._store.complain("store", error)
            self._store.counters.add("failed_save_blocks", len(wanted))
        with self._changed:
            self._under_way.difference_update(block.key for block in wanted[len(slots) :])
            if transfer is not None:
                self._queue.append((transfer, slots, wanted[: len(slots)]))
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._ended)
                if not self._queue:
                    return
                transfer, slots, blocks = self._queue.pop(0)
            try:
                while not transfer.wait(1.0):
                    pass
                self._store_blocks(transfer, slots, blocks)
            except Exception:
                self._store.counters.add("internal_errors")
                _LOG.exception("cairn: storing failed")
            self._moves.give_back_save_slots(slots)
            with self._changed:
                self._under_way.difference_update(block.key for block in blocks)
                self._changed.notify_all()

    def _store_blocks(
        self, transfer: _native.Transfer, slots: list[int], blocks: list[_Block]
    ) -> None:
        lost = transfer.error()
        if lost is not None:
            self._store.complain("store", error_for(*lost))
            self._store.counters.add("failed_save_blocks", len(blocks))
            return
        parts = [
            Part(
                block.key,
                memory_at(self._moves.save_slot(slot), self._block_bytes),
                parent=block.parent,
                first_position=block.position * self._block_tokens,
                rect=self._rect,
            )
            for slot, block in zip(slots, blocks)
        ]
        self._store.save(parts, [self._block_bytes] * len(parts))

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, seconds)

    def close(self) -> None:
        """Stores what was copied, for a short time at most, and gives the memory back. REQUIRES: no
        load is running."""
        if not self.drain(5.0):
            _LOG.warning("cairn: blocks that were not stored within 5 s are dropped")
        with self._changed:
            self._ended = True
            self._queue.clear()
            self._changed.notify_all()
        # It ends after the call to the node that it is in, which has a deadline.
        self._thread.join()
        self._moves.close()
