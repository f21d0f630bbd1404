"""The namespace of a model's pools at a node, while it is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cairn._engine.pool_store import PoolStore
from cairn._engine.store import Store
from cairn.sglang.pages import PageMemory, cut
from cairn.sglang.pools import StoredPool

__all__ = ["Opened"]


@dataclass(frozen=True)
class Opened:
    """Thread-safe."""

    store: Store
    pools: dict[str, StoredPool]
    """By SGLang's names."""
    page_tokens: int

    @property
    def pooled(self) -> PoolStore | None:
        """None: a model that keeps KV alone, whose blocks are of no pool."""
        return self.store if isinstance(self.store, PoolStore) else None

    def pool_of(self, transfer: Any) -> StoredPool:
        """ValueError: a pool or indices that were never told."""
        pool = self.pools.get(str(transfer.name))
        if pool is None:
            raise ValueError(
                f"pool '{transfer.name}': it was not registered, "
                f"expected one of {', '.join(self.pools)}"
            )
        expected = len(transfer.keys or ()) * pool.pages.index_tokens
        got = 0 if transfer.host_indices is None else transfer.host_indices.numel()
        if got != expected:
            raise ValueError(f"pool '{pool.name}': got {got} host indices, expected {expected}")
        return pool

    def load(
        self, pool: StoredPool, hashes: Sequence[bytes], pages: Sequence[PageMemory]
    ) -> set[int]:
        """Fills the pages. Returns those that did not come."""
        _check_count(pool, hashes, pages)
        failed: set[int] = set()
        for rect, begin, end in pool.columns():
            into = [cut(page, begin, end) for page in pages]
            if self.pooled is None:
                failed |= self.store.load_any(hashes, into, rect)
            else:
                failed |= self.pooled.load_any_of_pool(pool.number, hashes, into, rect)
        return failed

    def save(
        self,
        pool: StoredPool,
        hashes: Sequence[bytes],
        pages: Sequence[PageMemory],
        before: bytes | None,
        chain: bool,
    ) -> list[bool]:
        """For each page whether the node has it. `before`, `chain`: as of `StoredPool.parts`."""
        _check_count(pool, hashes, pages)
        if not pool.writes:
            return self.store.exists(pool.keys(hashes))
        there = self.store.save(pool.parts(hashes, pages, before, chain), pool.sizes(len(hashes)))
        return [all(there[i : i + pool.cuts]) for i in range(0, len(there), pool.cuts)]


def _check_count(pool: StoredPool, hashes: Sequence[bytes], pages: Sequence[PageMemory]) -> None:
    if len(hashes) != len(pages):
        raise ValueError(f"pool '{pool.name}': got {len(pages)} pages, expected {len(hashes)}")
