"""An engine's pages on a GPU. The native module gathers and copies; this decides what, and talks to
the node.

    save   engine's thread: mover.save on the engine's stream ─► thread: store, give slots back
    load   thread: fetch into slots of pinned memory ─► mover.load behind the fence ─► wait for it
           what the node keeps on the same GPU goes to the pages at once, without the host

Needs torch only to ask for the engine's stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cairn import _native
from cairn._engine.memory import memory_at
from cairn._engine.store import DeviceRead, Fetching, Store
from cairn.errors import Error, InvalidArgumentError, error_for
from cairn.types import Memory, OpaqueLayout, Part, Rect
from cairn.vllm.columns import heads_of_column
from cairn.vllm.metadata import LoadJob, PoolLoadJob, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.number_places import PageAccess, PlaneShape, find_numbers
from cairn.vllm.options import ConnectorOptions
from cairn.vllm.page_runs import DevicePlace, find_pages
from cairn.vllm.pools import PoolPlan
from cairn.vllm.save_queue import SaveQueue

__all__ = ["AccessOf", "DevicePages"]

AccessOf = Callable[[Mapping[str, Any]], PageAccess]
"""Makes, from the engine's tensors by layer, the object that writes and reads known numbers in
them."""

_LOG = logging.getLogger("cairn")
_FETCH_BYTES = 16 << 20  # Bytes that are fetched before they are copied to the GPU.


class _Block(NamedTuple):
    key: bytes
    parent: bytes | None
    position: int
    """Position of its first token in the prompt."""
    block: int


class _Save(NamedTuple):
    transfer: _native.Transfer
    slots: list[int]
    blocks: list[_Block]


class DevicePages:
    """As `HostPages`. `load` is called by several threads, everything else by the engine's, which
    never waits for the GPU nor for the node."""

    def __init__(
        self,
        store: Store,
        kv_caches: Mapping[str, Any],
        rects: Sequence[Rect],
        plan: Plan,
        access_of: AccessOf | None,
        pool: PoolPlan | None = None,
    ) -> None:
        """`rects`: the parts that this worker has of a block. In a slot of the buffers they follow
        each other.

        ValueError: pages that cannot be taken as bytes, or of which it is not proved where their
        numbers lie. `cairn.Error`: no library, no driver, no such GPU, no kernels for a codec, or
        no memory for one block. `access_of` is needed for a codec alone. `pool`: of several, whose
        layers alone are in `kv_caches`. Each gets the same share of the buffers.
        """
        assert isinstance(store.options, ConnectorOptions)
        options = store.options
        place = find_columns(kv_caches, len(rects), plan.blocks)
        layout = store.spec.layout
        if pool is None:
            assert isinstance(layout, OpaqueLayout)
            size = plan.own_bytes or layout.max_part_bytes
        else:
            size = pool.own_bytes
        size *= len(rects)
        self._store = store
        self._rects = rects
        self._block_tokens = plan.block_tokens if pool is None else pool.block_tokens
        self._chained = pool is None or pool.chained
        self._device = place.device
        self._fetch_at_once = max(1, _FETCH_BYTES // size)
        shares = size * max(1, len(plan.pools))
        wanted = (max(1, options.save_buffer // shares), max(1, options.load_buffer // shares))
        where = (options.device_library, place.device, *wanted)
        if plan.coding is None:
            if place.block_bytes != size:
                raise ValueError(
                    f"a block has {place.block_bytes} bytes in the engine's pages, expected {size}"
                )
            self._moves = _native.open_pages(
                where, [(run.address, run.stride, run.bytes) for run in place.runs], place.blocks
            )
        else:
            self._moves = _open_coded(where, kv_caches, place, plan, access_of)
        if (self._moves.save_slots, self._moves.load_slots) != wanted:
            _LOG.warning(
                "cairn: memory is short: %d of %d blocks can be stored at a time, "
                "and %d of %d loaded",
                *(self._moves.save_slots, wanted[0], self._moves.load_slots, wanted[1]),
            )
        _LOG.info(
            "cairn: KV of %d blocks of %d bytes on GPU %d, in runs of %d bytes, moved by %s, "
            "stored %s",
            *(place.blocks, place.block_bytes, place.device),
            max(run.bytes for run in place.runs),
            "kernels" if self._moves.runs_kernels else "copies",
            "as they are" if plan.coding is None else f"in {plan.coding.codec}",
        )
        self._queue: SaveQueue[_Save] = SaveQueue(store.counters, self._finish)

    def _part(self, slot: int, size: int, part: int) -> Memory:
        """A part of the block in a slot of `size` bytes."""
        own = size // len(self._rects)
        return memory_at(slot + part * own, own)

    def _position(self, index: int) -> int:
        return index * self._block_tokens

    def _stream(self) -> int:
        import torch

        return int(torch.cuda.current_stream(self._device).cuda_stream)

    # ---- loads ----

    def fence(self) -> _native.Fence:
        """A point behind what the engine has launched so far. `cairn.Error`: there is none."""
        return self._moves.fence(self._stream())

    def load(self, job: LoadJob | PoolLoadJob, fence: _native.Fence) -> set[int]:
        """Indices of `job.blocks` that did not come."""
        assert isinstance(job, LoadJob)
        with self._store.loading(
            job.keys, job.first, len(job.blocks), limit=job.limit, parts=len(self._rects)
        ) as fetch:
            return self.load_blocks(job.blocks, job.first, fence, fetch, job.limit)

    def load_blocks(
        self,
        blocks: Sequence[int],
        first: int,
        fence: _native.Fence,
        fetch: Fetching,
        limit: float,
    ) -> set[int]:
        """Moves what `fetch` brings to `blocks` of the engine, the prompt's `first` and those after
        it. Returns the indices of those that did not come within `limit` seconds."""
        failed = set(range(len(blocks)))
        launched: list[tuple[_native.Transfer, list[int]]] = []
        try:
            failed -= self._launch(blocks, first, fence, fetch, launched, limit)
        except Error as error:
            self._store.complain("load", error)
        finally:
            # The engine writes into blocks that failed: no copy may be on its way there.
            for transfer, indices in launched:
                while not transfer.wait(1.0):
                    pass
                lost = transfer.error()
                if lost is None:
                    refused = set(transfer.refused())
                    failed.difference_update(i for n, i in enumerate(indices) if n not in refused)
                else:
                    self._store.complain("load", error_for(*lost))
        return failed

    def _launch(
        self,
        blocks: Sequence[int],
        first: int,
        fence: _native.Fence,
        fetch: Fetching,
        launched: list[tuple[_native.Transfer, list[int]]],
        limit: float,
    ) -> set[int]:
        """Returns the indices of blocks that are in their pages already. `launched` gets those that
        are on their way there, also before an error."""
        until = time.monotonic() + min(limit, self._store.options.load_timeout)
        count, index = len(blocks), 0
        arrived: set[int] = set()
        while index < count:
            slots = self._moves.await_load_slots(
                min(count - index, self._fetch_at_once), until - time.monotonic()
            )
            if not slots:
                break
            to = list(blocks[index : index + len(slots)])
            positions = [self._position(first + index + i) for i in range(len(slots))]
            bad, came = self._fetch(index, slots, to, positions, fence, fetch)
            arrived.update(index + i for i in came)
            good = [i for i in range(len(slots)) if i not in bad and i not in came]
            if good:
                transfer = self._moves.load(
                    fence,
                    [slots[i] for i in good],
                    [to[i] for i in good],
                    [positions[i] for i in good],
                )
                launched.append((transfer, [index + i for i in good]))
            if bad:
                break  # Blocks after a missing block have no use.
            index += len(slots)
        return arrived

    def _fetch(
        self,
        index: int,
        slots: list[int],
        blocks: list[int],
        positions: list[int],
        fence: _native.Fence,
        fetch: Fetching,
    ) -> tuple[set[int], set[int]]:
        """Which blocks from the index on did not come, and which came to their pages. The others
        are in their slots, and only theirs stay taken."""
        places = [
            (self._moves.load_slot(slot), self._moves.block_bytes(position))
            for slot, position in zip(slots, positions)
        ]
        bad = set(range(len(slots)))
        came: set[int] = set()
        device = None
        # The node reads one part at a time, and a block has all of them.
        if self._moves.reads_chunks and len(self._rects) == 1:
            device = DeviceRead(
                lambda begin, end: self._moves.on_device(
                    fence, blocks[begin:end], positions[begin:end]
                ),
                came,
            )
        try:
            missed: set[int] = set()
            for i, rect in enumerate(self._rects):
                memory = [self._part(address, size, i) for address, size in places]
                missed |= fetch(index, memory, rect, device)
            bad = missed
            came -= bad
        finally:
            self._moves.give_back_load_slots([slots[i] for i in sorted(bad | came)])
        return bad, came

    # ---- saves ----

    def save(self, jobs: Sequence[SaveJob]) -> None:
        """Launches copies on the engine's stream, so the engine may use the pages again. A thread
        stores them. A block that finds no room is dropped: a later miss."""
        wanted: list[_Block] = []
        for job in jobs:
            parent = job.parent
            for i, (key, block) in enumerate(zip(job.keys, job.blocks)):
                if self._queue.claim(key):
                    wanted.append(_Block(key, parent, self._position(job.first + i), block))
                parent = key if self._chained else None
        if not wanted:
            return
        transfer: _native.Transfer | None = None
        slots: list[int] = []
        try:
            transfer, slots = self._moves.save(
                self._stream(),
                [block.block for block in wanted],
                [block.position for block in wanted],
            )
            self._store.counters.add("dropped_save_blocks", len(wanted) - len(slots))
        except Error as error:
            self._store.complain("store", error)
            self._store.counters.add("failed_save_blocks", len(wanted))
        taken = wanted[: len(slots)]
        self._queue.forget(block.key for block in wanted[len(slots) :])
        if transfer is not None:
            self._queue.put(_Save(transfer, slots, taken), [block.key for block in taken])

    def _finish(self, save: _Save) -> None:
        try:
            while not save.transfer.wait(1.0):
                pass
            self._store_blocks(save)
        finally:
            self._moves.give_back_save_slots(save.slots)

    def _store_blocks(self, save: _Save) -> None:
        lost = save.transfer.error()
        if lost is not None:
            self._store.complain("store", error_for(*lost))
            self._store.counters.add("failed_save_blocks", len(save.blocks))
            return
        refused = set(save.transfer.refused())
        if refused:
            self._store.complain(
                "store",
                InvalidArgumentError(f"{len(refused)} blocks have numbers that the codec has not"),
            )
            self._store.counters.add("failed_save_blocks", len(refused))
        parts, sizes = [], []
        for i, (slot, block) in enumerate(zip(save.slots, save.blocks)):
            if i in refused:
                continue
            size = self._moves.block_bytes(block.position)
            for part, rect in enumerate(self._rects):
                sizes.append(size // len(self._rects))
                parts.append(
                    Part(
                        block.key,
                        self._part(self._moves.save_slot(slot), size, part),
                        parent=block.parent,
                        first_position=block.position,
                        rect=rect,
                    )
                )
        if parts:
            self._store.save(parts, sizes)

    def drain(self, seconds: float) -> bool:
        """Waits until everything that was copied is stored. False: it takes longer."""
        return self._queue.drain(seconds)

    def close(self) -> None:
        """Stores what was copied, for a short time at most, and gives the memory back. REQUIRES: no
        load is running."""
        self._queue.close()
        self._queue.join()
        self._moves.close()


def find_columns(kv_caches: Mapping[str, Any], columns: int, blocks: int) -> DevicePlace:
    """As `find_pages`, of blocks whose bytes are stored in parts, by heads: the runs of the first
    one come first."""
    places = [
        find_pages(heads_of_column(kv_caches, column, columns), blocks) for column in range(columns)
    ]
    runs = [run for place in places for run in place.runs]
    return places[0]._replace(runs=runs)


def _open_coded(
    where: tuple[str, int, int, int],
    kv_caches: Mapping[str, Any],
    place: DevicePlace,
    plan: Plan,
    access_of: AccessOf | None,
) -> _native.PageMoves:
    coding = plan.coding
    assert coding is not None and access_of is not None
    # Layers that share the memory of another one are stored with it.
    layers = {cache.data_ptr(): name for name, cache in reversed(list(kv_caches.items()))}
    names = [name for name in kv_caches if name in layers.values()]
    if len(names) != coding.layers:
        raise ValueError(
            f"{len(names)} layers have memory of their own, expected {coding.layers}, "
            "as the setting 'codec' counted"
        )
    shape = PlaneShape(coding.heads, coding.k_dim, coding.v_dim, plan.block_tokens)
    try:
        numbers = find_numbers(access_of(kv_caches), names, place.blocks, shape)
    except ValueError as error:
        raise ValueError(
            f"setting 'codec': got '{coding.codec}', expected none: "
            f"where K and V lie in the engine's pages is not proved: {error}"
        ) from error
    return _native.open_coded_pages(
        where,
        coding.codec,
        (coding.layers, *shape),
        [(layer.k, layer.v, layer.block_stride) for layer in numbers.layers],
        place.blocks,
        numbers.k_strides,
        numbers.v_strides,
        coding.bfloat16,
    )
