"""After how many pages a model of several pools can go on with what the node has.

    one match over all pools      all lengths after which every pool has enough
    one match over each pool      the longest length of each, if the longest of all is shorter than
                                  the prompt

SGLang remembers the second for each pool, and does not ask in vain again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cairn._engine.pool_store import PoolQuestion, PoolStore
from cairn.sglang.opened import Opened
from cairn.sglang.pools import BLOCK_GROUPS, KV, covered_pages, need_of, policy_of
from cairn.types import PoolMatch, PoolNeed

__all__ = ["Lengths", "find_lengths"]


class Lengths(NamedTuple):
    """In pages."""

    restorable: list[int]
    """Ascending."""
    hits: dict[str, int]
    """By pool: the longest length of it alone, as long as the KV at most, or what it stands for.
    Pools without any, and those that did not answer in time, are left out."""


class _Asking:
    """One call's question. Not thread-safe."""

    def __init__(self, opened: Opened, store: PoolStore, hashes: Sequence[bytes]) -> None:
        self._opened = opened
        self._store = store
        self._hashes = hashes
        self._until = time.monotonic() + store.options.lookup_timeout

    def all_of(self, needs: Sequence[PoolNeed]) -> PoolMatch | None:
        return self._store.lengths(self._question(needs, len(self._hashes)))

    def alone(self, need: PoolNeed, most: int) -> list[int] | None:
        """All lengths of one pool, in the first `most` pages. None: no answer in time."""
        found = self._store.details(self._question([need], most), self._until)
        return None if found is None else self.pages(found)

    def pages(self, found: PoolMatch) -> list[int]:
        return [tokens // self._opened.page_tokens for tokens in found.lengths]

    def _question(self, needs: Sequence[PoolNeed], pages: int) -> PoolQuestion:
        size = self._opened.page_tokens
        return PoolQuestion(self._hashes[:pages], needs, size, pages * size)


def find_lengths(
    opened: Opened,
    store: PoolStore,
    hashes: Sequence[bytes],
    tails: Mapping[str, int],
    transfers: Sequence[Any],
) -> Lengths:
    """`tails`: those of `transfers`, without the KV, of which every page is needed."""
    if not hashes:
        return Lengths([], {})
    asking, size = _Asking(opened, store, hashes), opened.page_tokens
    needs = {
        name: need_of(pool, tails.get(name, 0), size, len(hashes))
        for name, pool in opened.pools.items()
        if name == KV or name in tails
    }
    restorable: list[int] = []
    if needs and all(name in opened.pools for name in tails):
        found = asking.all_of(list(needs.values()))
        if found is None:
            return Lengths([], {})
        restorable = asking.pages(found)
    hits = _hits(asking, needs, restorable[-1] if restorable else 0, len(hashes))
    for transfer in transfers:
        covered = _covered(asking, opened, transfer, len(hashes))
        if covered:
            hits[str(transfer.name)] = covered
    return Lengths(restorable, hits)


def _hits(
    asking: _Asking, needs: Mapping[str, PoolNeed], longest: int, pages: int
) -> dict[str, int]:
    if longest == pages:
        return dict.fromkeys(needs, longest)
    hits: dict[str, int] = {}
    most = pages
    for name, need in needs.items():  # The KV is the first.
        alone = asking.alone(need, most) if most else []
        if alone is None:
            if name == KV:
                break
            continue
        # A page may have left since all pools were asked.
        hits[name] = max([longest, *alone[-1:]])
        if name == KV:
            most = hits[name]
    return {name: found for name, found in hits.items() if found}


def _covered(asking: _Asking, opened: Opened, transfer: Any, pages: int) -> int:
    """The pages that a pool stands for of which the policy wants nothing."""
    pool = opened.pools.get(str(transfer.name))
    if pool is None or policy_of(transfer) != BLOCK_GROUPS:
        return 0
    # With a tail of one page, a length ends at each page that is there.
    ends = set(asking.alone(PoolNeed(pool.number, opened.page_tokens), pages) or ())
    there = [page + 1 in ends for page in range(pages)]
    return covered_pages(there, transfer.block_pages, transfer.group_pages)
