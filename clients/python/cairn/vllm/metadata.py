"""The message of the scheduler's half to the workers' half in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from cairn.vllm.adapters import AdapterFiles

__all__ = [
    "NO_BLOCK",
    "LoadJob",
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


@dataclass
class Metadata(KVConnectorMetadata):
    """Pickled into every step, so it is empty most of the time."""

    namespace: bytes = b""
    loads: Sequence[Union[LoadJob, PoolLoadJob]] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    idle: bool = False
    """The engine computes nothing in this step."""
