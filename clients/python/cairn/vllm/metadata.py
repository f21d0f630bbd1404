"""The messages of the scheduler's half and the workers' half to each other in each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from cairn.vllm.adapters import AdapterFiles

__all__ = [
    "NO_BLOCK",
    "LoadJob",
    "LoadTimes",
    "Metadata",
    "PoolBlocks",
    "PoolLoadJob",
    "SaveJob",
    "check_places",
]

NO_BLOCK = 0
"""The number that stands where a KV cache group of several keeps nothing."""


@dataclass
class LoadJob:
    """Blocks `keys[first:]` of a prompt go to `blocks` of the engine."""

    request: str
    keys: Sequence[bytes]
    first: int
    blocks: Sequence[int]
    limit: float = math.inf
    """Seconds after which it is given up if that is before its timeout."""


@dataclass
class PoolBlocks:
    """Blocks of a prompt in one pool, from its block `first` on, go to `blocks` of the engine."""

    pool: int
    first: int
    blocks: Sequence[int]


@dataclass
class PoolLoadJob:
    """All that a prompt needs after its first `tokens` tokens and the engine does not have, in all
    pools. It comes whole or has failed."""

    request: str
    keys: Sequence[bytes]
    """One for each unit of these tokens."""
    tokens: int
    pools: Sequence[PoolBlocks]
    limit: float = math.inf
    """As of `LoadJob`."""

    @property
    def blocks(self) -> list[int]:
        """The engine's blocks."""
        return [block for pool in self.pools for block in pool.blocks]


def check_places(job: PoolLoadJob) -> None:
    """ValueError: the engine keeps no place for a block of the load."""
    for pool in job.pools:
        if not pool.blocks:
            # Each pool has at least the block that ends there.
            raise ValueError(
                f"request {job.request}: the engine has no place for the blocks of pool "
                f"{pool.pool} before token {job.tokens}"
            )
        if NO_BLOCK in pool.blocks:
            raise ValueError(
                f"request {job.request}: the engine has no place for block "
                f"{pool.first + list(pool.blocks).index(NO_BLOCK)} of pool {pool.pool}"
            )


@dataclass
class SaveJob:
    """`blocks` of the engine are `keys`, from block `first` of a prompt on, and will be full after
    this step."""

    keys: Sequence[bytes]
    first: int
    blocks: Sequence[int]
    parent: bytes | None
    pool: int = 0
    adapter: AdapterFiles | None = None
    """They are stored only if these files are still the same after the step."""
    unasked: bool = False
    """Nobody asked whether the node has them."""


@dataclass
class Metadata(KVConnectorMetadata):
    """Pickled into every step, so it is empty most of the time."""

    namespace: bytes = b""
    loads: Sequence[Union[LoadJob, PoolLoadJob]] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    idle: bool = False
    """The engine computes nothing in this step."""


@dataclass
class LoadTimes:
    """Loads that have ended, as workers tell the scheduler, by request: the seconds that one took,
    and how many of its blocks did not come.

    vLLM brings it as `kv_connector_worker_meta`, and asks it for `aggregate` alone.
    """

    loads: dict[str, tuple[float, int]] = field(default_factory=dict)

    def aggregate(self, other: LoadTimes) -> LoadTimes:
        """The slowest of several workers counts, and the one that got the least."""
        for request, (seconds, failed) in other.loads.items():
            own_seconds, own_failed = self.loads.get(request, (0.0, 0))
            self.loads[request] = (max(own_seconds, seconds), max(own_failed, failed))
        return self
