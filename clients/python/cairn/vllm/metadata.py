"""The message of the scheduler's half to the workers' half in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

__all__ = ["LoadJob", "Metadata", "SaveJob"]


@dataclass
class LoadJob:
    """Blocks `keys[first:]` of a prompt go to `blocks` of the engine."""

    request: str
    keys: Sequence[bytes]
    first: int
    blocks: Sequence[int]


@dataclass
class SaveJob:
    """`blocks` of the engine are `keys`, from block `first` of a prompt on, and will be full after
    this step."""

    keys: Sequence[bytes]
    first: int
    blocks: Sequence[int]
    parent: bytes | None


@dataclass
class Metadata(KVConnectorMetadata):
    """Pickled into every step, so it is empty most of the time."""

    namespace: bytes = b""
    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    idle: bool = False
    """The engine computes nothing in this step."""
