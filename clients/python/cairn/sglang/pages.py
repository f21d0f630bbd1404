"""The pages of one of SGLang's host pools, as memory that is stored and filled."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import torch

from cairn._engine.memory import memory_at

__all__ = ["HostPages", "PageMemory", "bytes_of", "cut"]

_LOG = logging.getLogger("cairn")
_FORM = (  # SGLang's classes of host pools say this of their bytes; each has some of these.
    "layer_num",
    "head_num",
    "head_dim",
    "v_head_dim",
    "conv_dtype",
    "temporal_dtype",
    "indexer_dtype",
    "storage_format_tag",
)

PageMemory = list[memoryview]
"""The bytes of a page: pieces that follow each other."""


class HostPages:
    """Thread-safe, as far as the pool is.

    Pages are reached where they lie. A pool that cannot say where (`get_page_buffer_meta`), or says
    it of some of a page's bytes alone, gives and takes whole pages as tensors, with a copy.
    """

    def __init__(self, name: str, pool: Any, index_tokens: int, sizes: Sequence[int]) -> None:
        """`index_tokens`: host indices of a page. `sizes`: the bytes of its pieces where they lie.
        Empty: pages are copied."""
        self.name = name
        self.pool = pool
        self.index_tokens = index_tokens
        self.direct = bool(sizes)
        """Whether the pages are reached where they lie."""
        self.sizes = list(sizes) or [_flat_bytes(name, pool)]
        self.page_bytes = sum(self.sizes)

    @classmethod
    def found(cls, name: str, pool: Any) -> HostPages:
        """Those of any pool. ValueError: it gives no pages."""
        index_tokens = getattr(pool, "page_size", 1) or 1
        sizes = _piece_sizes(pool, index_tokens)
        return cls(name, pool, index_tokens, sizes if sum(sizes) == _flat_bytes(name, pool) else [])

    def form(self) -> str:
        """All that says which bytes a page has."""
        pool = self.pool
        more = "".join(
            f" {name}={getattr(pool, name)}" for name in _FORM if getattr(pool, name, None)
        )
        return (
            f"{self.name}: {type(pool).__name__} layout={getattr(pool, 'layout', '?')} "
            f"dtype={getattr(pool, 'dtype', '?')}{more} page={self.index_tokens} "
            f"pieces={self.sizes[:4]}x{len(self.sizes)} {'direct' if self.direct else 'flat'}"
        )

    def to_store(self, host_indices: torch.Tensor) -> list[PageMemory]:
        """The bytes of the pages at these indices."""
        if self.direct:
            return page_memory(self.pool, host_indices, self.index_tokens)
        pages = [self.pool.get_data_page(at, flat=True) for at in self._starts(host_indices)]
        return [[bytes_of(page.contiguous().view(-1))] for page in pages]

    def to_fill(self, host_indices: torch.Tensor) -> list[PageMemory]:
        """Memory for the pages at these indices. Call `filled` when it has their bytes."""
        if self.direct:
            return page_memory(self.pool, host_indices, self.index_tokens)
        count = len(host_indices) // self.index_tokens
        made = (self.pool.get_dummy_flat_data_page() for _ in range(count))
        return [[bytes_of(page.contiguous().view(-1))] for page in made]

    def filled(
        self, host_indices: torch.Tensor, pages: Sequence[PageMemory], failed: Collection[int]
    ) -> None:
        """Puts the pages of `to_fill` into the pool, except for those that failed. Where pages lie
        in the pool, they are there already, and those that failed have undefined bytes."""
        if self.direct:
            return
        like = self.pool.get_dummy_flat_data_page()
        for i, (at, page) in enumerate(zip(self._starts(host_indices), pages, strict=True)):
            if i not in failed:
                [whole] = page
                data = torch.frombuffer(whole, dtype=torch.uint8).view(like.dtype)
                self.pool.set_from_flat_data_page(at, data.reshape(like.shape))

    def _starts(self, host_indices: torch.Tensor) -> list[int]:
        return [int(at) for at in host_indices[:: self.index_tokens]]


def page_memory(pool: Any, host_indices: torch.Tensor, index_tokens: int) -> list[PageMemory]:
    """The pool's memory, page by page."""
    addresses, sizes = pool.get_page_buffer_meta(host_indices)
    pieces = [memory_at(address, size) for address, size in zip(addresses, sizes)]
    count = len(host_indices) // index_tokens
    each = len(pieces) // count
    return [pieces[i * each : (i + 1) * each] for i in range(count)]


def cut(page: PageMemory, begin: int, end: int) -> PageMemory:
    """The bytes [begin, end) of a page."""
    found, at = [], 0
    for piece in page:
        first, last = max(begin - at, 0), min(end - at, len(piece))
        if first < last:
            found.append(piece[first:last])
        at += len(piece)
    return found


def _flat_bytes(name: str, pool: Any) -> int:
    try:
        page = pool.get_dummy_flat_data_page()
        size = page.numel() * page.element_size()
    except Exception as error:
        raise ValueError(
            f"the model's pool '{name}' ({type(pool).__name__}) gives no pages: {error}"
        ) from error
    if size == 0:
        raise ValueError(
            f"the model's pool '{name}' ({type(pool).__name__}) has pages without bytes, "
            "expected some"
        )
    return int(size)


def _piece_sizes(pool: Any, index_tokens: int) -> list[int]:
    """Empty: the pool does not say where a page lies."""
    try:
        _, sizes = pool.get_page_buffer_meta(torch.arange(index_tokens))
    except Exception as error:
        _LOG.info("cairn: %s gives pages by copies alone: %s", type(pool).__name__, error)
        return []
    return list(sizes)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a tensor, which must be contiguous: never a copy of it."""
    return memoryview(tensor.view(torch.uint8).numpy())
