"""The pools of a model in SGLang, as the node keeps them, and what its hit policies ask of them.

SGLang  a page of each pool for a page of the prompt, under the hash of the prompt's page
node    a pool of the layout for each pool, a block for each page: all have the same length
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn._engine.limits import MAX_COLUMNS, MAX_PART, MAX_POOLS
from cairn.keys import pool_keys
from cairn.sglang.pages import HostPages, PageMemory, cut
from cairn.types import OpaqueLayout, Part, Pool, PooledLayout, PoolNeed, Rect

__all__ = [
    "ALL_PAGES",
    "BLOCK_GROUPS",
    "KV",
    "TRAILING_PAGES",
    "Ranks",
    "StoredPool",
    "covered_pages",
    "need_of",
    "plain_layout",
    "pool_text",
    "pooled_layout",
    "policy_of",
    "stored_pools",
    "tails_of",
]

KV = "kv"

# Policies, as their values: not every version has all of them as names.
ALL_PAGES, TRAILING_PAGES, BLOCK_GROUPS = "all_pages", "trailing_pages", "block_groups"
_POLICIES = (ALL_PAGES, TRAILING_PAGES, BLOCK_GROUPS)

# Pools that SGLang asks for the last pages of. A page of these stands alone at the node. Pages of
# all others follow each other, and leave from the end. Which it is decides what leaves first, and
# never what is found.
_TAILS = ("mamba", "swa", "auxiliary_swa", "draft_swa")
_NAME = re.compile(r"[a-z0-9_]{1,32}")


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that store pages of one model."""

    tp_rank: int
    tp_size: int
    latent: bool
    """All ranks have the same KV (MLA), except for its shards."""
    dcp_rank: int = 0
    dcp_size: int = 1
    """Shards of a latent KV's pages."""
    writer: bool = True
    """This rank stores what several ranks have alike."""

    def shard(self, name: str) -> tuple[int, int, bool]:
        """For a pool: this rank's part, the number of parts, and whether this rank stores."""
        if not self.latent or name == "mamba":
            return self.tp_rank, self.tp_size, True  # A state is cut by ranks in every model.
        return self.dcp_rank, self.dcp_size, self.writer


@dataclass(frozen=True)
class StoredPool:
    """A pool of the node."""

    pages: HostPages
    number: int
    """In the layout."""
    rank: int
    ranks: int
    writes: bool
    """False: another rank stores the same bytes."""
    cuts: int = 1
    """Parts of a rank's page: a part has a limit, and a page none."""

    @property
    def name(self) -> str:
        """SGLang's name."""
        return self.pages.name

    @property
    def chained(self) -> bool:
        """Whether pages follow each other."""
        return self.name not in _TAILS and not self.name.endswith("_state")

    def layout(self, page_tokens: int) -> Pool:
        """Its place in the layout."""
        return Pool(
            pool_text(self.name),
            page_tokens,
            self._part_bytes,
            self.ranks * self.cuts,
            self.chained,
        )

    @property
    def _part_bytes(self) -> int:
        return -(-self.pages.page_bytes // self.cuts)

    def columns(self) -> list[tuple[Rect, int, int]]:
        """This rank's parts of a page: their rectangles, and the bytes [begin, end) of the page."""
        first, each = self.rank * self.cuts, self._part_bytes
        return [
            (
                Rect(self.number, self.number + 1, first + i, first + i + 1),
                i * each,
                min((i + 1) * each, self.pages.page_bytes),
            )
            for i in range(self.cuts)
        ]

    def keys(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Their blocks' keys at the node."""
        return pool_keys(hashes, 1, self.number)

    def parts(
        self,
        hashes: Sequence[bytes],
        pages: Sequence[PageMemory],
        before: bytes | None,
        chain: bool,
    ) -> list[Part]:
        """The parts that are pushed, all columns of a page after each other. `before`: the hash of
        the page before the first one, if it is known. `chain`: the pages follow each other."""
        keys = self.keys(hashes)
        parents: list[bytes | None] = [None] * len(keys)
        if chain and self.chained:
            first = self.keys([before])[0] if before else None
            parents = [first, *keys[:-1]]
        return [
            Part(key, cut(page, begin, end), parent=parent, rect=rect)
            for key, page, parent in zip(keys, pages, parents)
            for rect, begin, end in self.columns()
        ]

    def sizes(self, pages: int) -> list[int]:
        """The bytes of the parts of this many pages."""
        return [end - begin for _, begin, end in self.columns()] * pages


def pool_text(name: str) -> str:
    """A pool's name at the node."""
    if _NAME.fullmatch(name):
        return name
    return "pool_" + hashlib.sha256(name.encode()).hexdigest()[:16]


def stored_pools(
    kv: HostPages | None, others: Mapping[str, HostPages], ranks: Ranks
) -> tuple[StoredPool, ...]:
    """KV first and the others by name, so that the order of registration is of no account. `kv`
    None: it has no bytes of its own. ValueError: a pool that the node cannot keep."""
    named = [kv] if kv is not None else []
    named += [others[name] for name in sorted(others)]
    if len(named) > MAX_POOLS:
        raise ValueError(f"the model has {len(named)} pools, expected at most {MAX_POOLS}")
    pools = []
    for number, pages in enumerate(named):
        rank, parts, writes = ranks.shard(pages.name)
        # Only one rank of a latent model stores such a pool, and heads of other ranks are others.
        by_heads = pages is not kv and hasattr(pages.pool, "head_num")
        if ranks.latent and ranks.tp_size > 1 and by_heads:
            raise ValueError(
                f"the model's pool '{pages.name}' ({type(pages.pool).__name__}) has heads that "
                f"{ranks.tp_size} ranks share, and SGLang lets one rank store it, since the KV of "
                "the model is a latent vector; expected one rank, or a pool that all ranks have "
                "alike"
            )
        cuts = -(-pages.page_bytes // MAX_PART)
        if parts * cuts > MAX_COLUMNS:
            raise ValueError(
                f"the model's pool '{pages.name}' has pages of {pages.page_bytes} bytes on each "
                f"of {parts} ranks, expected at most {MAX_COLUMNS // parts * MAX_PART}"
            )
        pools.append(StoredPool(pages, number, rank, parts, writes, cuts))
    return tuple(pools)


def plain_layout(description: str, kv: StoredPool, page_tokens: int) -> OpaqueLayout:
    """For a model that keeps its KV alone. ValueError: its pages are too large."""
    size = kv.pages.page_bytes
    if size > MAX_PART:
        raise ValueError(
            f"setting '--page-size': a page of {page_tokens} tokens has {size} bytes, "
            f"expected at most {MAX_PART}"
        )
    return OpaqueLayout(description, size, kv.ranks, page_tokens)


def pooled_layout(description: str, pools: Sequence[StoredPool], page_tokens: int) -> PooledLayout:
    """`description`: of everything that the pools do not say."""
    forms = "\n".join(pool.pages.form() for pool in pools)
    digest = hashlib.sha256(forms.encode()).hexdigest()[:32]
    return PooledLayout(
        f"{description} pools={digest}", [pool.layout(page_tokens) for pool in pools], page_tokens
    )


def policy_of(transfer: Any) -> str:
    """ValueError: a policy that is not known."""
    policy = getattr(transfer.hit_policy, "value", transfer.hit_policy)
    if policy not in _POLICIES:
        raise ValueError(
            f"pool '{transfer.name}': got hit policy '{policy}', "
            f"expected one of {', '.join(_POLICIES)}"
        )
    return str(policy)


def tails_of(transfers: Sequence[Any]) -> dict[str, int]:
    """By pool, how many pages before a length must be there. 0: all. A pool that is asked for
    twice must have both. Pools of which the policy wants nothing are left out."""
    found: dict[str, int] = {}
    for transfer in transfers:
        policy, name = policy_of(transfer), str(transfer.name)
        if policy == BLOCK_GROUPS:
            continue
        tail = max(1, len(transfer.keys or ())) if policy == TRAILING_PAGES else 0
        before = found.get(name, tail)
        found[name] = 0 if 0 in (tail, before) else max(tail, before)
    return found


def need_of(pool: StoredPool, tail: int, page_tokens: int, pages: int) -> PoolNeed:
    """`pages`: those that are asked for; no tail is longer."""
    return PoolNeed(pool.number, min(tail, pages) * page_tokens)


def covered_pages(there: Sequence[bool], block_pages: int, group_pages: int) -> int:
    """BLOCK_GROUPS: the pages of the prompt that the groups of its first blocks stand for. A block
    is `block_pages` pages of the prompt, and its group has the hashes of the last `group_pages` of
    them: only at its end is a block complete.

    `there`: which pages of the pool the node has.
    """
    if not 0 < group_pages <= block_pages:
        return 0
    block = 0
    while (block + 1) * block_pages <= len(there):
        end = (block + 1) * block_pages
        if not all(there[end - group_pages : end]):
            break
        block += 1
    return block * block_pages
