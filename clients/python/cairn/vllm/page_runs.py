"""Where the blocks of an engine lie in the memory of a device, found out from shapes and strides
alone. Needs no torch.

vLLM keeps layers (L), blocks (B), heads (H), tokens (N) and the numbers of K and V (C) in orders
that it names, and gives a tensor with the axes B, H, N, C for each layer:

    BLHNC   B0: L0 L1 L2 | B1: L0 L1 L2 | ...     a block is one run of bytes
    LBNHC   L0: B0 B1 B2 ... | L1: B0 B1 B2 ...   a block is a run in each layer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["DevicePlace", "Run", "find_pages"]


class Run(NamedTuple):
    """Block b has `bytes` bytes at `address + b * stride`."""

    address: int
    stride: int
    bytes: int


class DevicePlace(NamedTuple):
    """The pages of one engine."""

    device: int
    blocks: int
    runs: list[Run]
    """In the order in which the bytes of a block are stored."""

    @property
    def block_bytes(self) -> int:
        """The bytes of all layers."""
        return sum(run.bytes for run in self.runs)


def find_pages(kv_caches: Mapping[str, Any], blocks: int = 0) -> DevicePlace:
    """The place of tensors, by layer. `blocks`: how many the engine has, if the tensors may have
    more by a factor, since kernels may use smaller blocks. 0: as the first axis says.

    ValueError: tensors on several devices, without strides of a block, or with bytes that belong to
    two places.
    """
    devices = {(cache.device.type, cache.device.index or 0) for cache in kv_caches.values()}
    if len(devices) != 1:
        raise ValueError(
            f"the KV cache is on {', '.join(f'{kind}:{n}' for kind, n in sorted(devices))}, "
            "expected one device"
        )
    [(_, device)] = devices
    runs: list[Run] = []
    seen: set[int] = set()
    for name, cache in kv_caches.items():
        if cache.data_ptr() in seen:
            continue  # Shared with another layer.
        seen.add(cache.data_ptr())
        if not blocks:
            blocks = cache.shape[0]
        runs += _runs_of(name, cache, blocks)
    return DevicePlace(device, blocks, _joined(runs))


def _runs_of(name: str, cache: Any, blocks: int) -> list[Run]:
    shape, strides = tuple(cache.shape), tuple(cache.stride())
    described = f"the KV cache of '{name}' has shape {shape} and strides {strides}"
    if not shape or shape[0] == 0 or shape[0] % blocks:
        raise ValueError(f"{described}, expected {blocks} blocks, or a multiple, in the first axis")
    # Several small blocks of a kernel may be one of the engine.
    factor = shape[0] // blocks
    inside = [(stride, n) for stride, n in zip(strides, (factor, *shape[1:])) if n > 1]
    between = strides[0] * factor
    extent = 1
    for stride, n in sorted([*inside, *([(between, blocks)] if blocks > 1 else [])]):
        if stride < extent:
            raise ValueError(f"{described}, expected blocks that do not overlap")
        extent += stride * (n - 1)
    run, offsets = 1, [0]
    for stride, n in sorted(inside):
        if stride == run and len(offsets) == 1:
            run *= n
        else:
            offsets = [offset + i * stride for offset in offsets for i in range(n)]
    size = cache.element_size()
    return [
        Run(cache.data_ptr() + offset * size, max(between, run) * size, run * size)
        for offset in sorted(offsets)
    ]


def _joined(runs: list[Run]) -> list[Run]:
    """Joins what is one run of bytes in every block.

    Runs whose bytes of one block lie closer together than the blocks do are rows of a block with
    several layers. Rows are joined in the order of addresses. So the order depends on the layout
    alone, and not on where the engine's allocations happen to lie.
    """
    rows: list[list[Run]] = []
    for run in runs:
        for row in rows:
            begin = min(run.address, *(other.address for other in row))
            end = max(other.address + other.bytes for other in (*row, run))
            if run.stride == row[0].stride and end - begin <= run.stride:
                row.append(run)
                break
        else:
            rows.append([run])
    joined: list[Run] = []
    for row in rows:
        first = len(joined)
        for run in sorted(row):
            last = joined[-1] if len(joined) > first else None
            if last is not None and last.address + last.bytes == run.address:
                joined[-1] = last._replace(bytes=last.bytes + run.bytes)
            else:
                joined.append(run)
    return joined
