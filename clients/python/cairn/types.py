"""The arguments and results of calls. Names and ranges are as in proto/cairn/v1 and clients/cpp."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Union

from cairn import _native
from cairn._native import Lease

__all__ = [
    "Breaker",
    "Buffer",
    "CacheEvent",
    "ClientStats",
    "DType",
    "EventKind",
    "Fetched",
    "FieldDifference",
    "KeyRotation",
    "Layout",
    "LayerGroup",
    "Match",
    "BlockMemory",
    "Memory",
    "MissReason",
    "NamespaceSpec",
    "NativeLayout",
    "NodeStats",
    "OpaqueLayout",
    "OpenedNamespace",
    "Part",
    "Plane",
    "Pool",
    "PoolMatch",
    "PoolNeed",
    "PoolRun",
    "PooledLayout",
    "Prefetched",
    "Rect",
    "TierKind",
    "TierRun",
    "TierStat",
    "Tls",
]


class _DlpackExporter(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


# PEP 688 gives the buffer protocol a type in 3.12 only; numpy arrays and torch tensors export
# DLPack.
Buffer = Union[bytes, bytearray, memoryview, _DlpackExporter, Any]
"""One object with contiguous host memory: bytes, bytearray, memoryview, mmap, numpy array, torch
tensor."""

Memory = Union[Buffer, Sequence[Buffer]]
"""A buffer, or a list or tuple of buffers whose bytes follow each other."""
BlockMemory = Union[Sequence[Memory], Buffer]
"""Memory of several blocks: a list or tuple with that of each, or an array with a row for each,
which takes less time."""


class DType(enum.IntEnum):
    """How a number of a native layout is stored."""

    F16 = 1
    BF16 = 2
    F32 = 3
    F8E4M3 = 4
    I8 = 5


class KeyRotation(enum.IntEnum):
    """Whether K is stored after rotary embedding."""

    AFTER_ROPE = 1
    BEFORE_ROPE = 2


class TierKind(enum.IntEnum):
    """Where a node keeps a block."""

    HOST = 0
    DISK = 1
    DEVICE = 2


class MissReason(enum.IntEnum):
    """Why a block was not served."""

    NONE = 0
    ABSENT = 1
    INCOMPLETE = 2
    EVICTED = 3
    CORRUPT = 4
    DEADLINE = 5
    REFUSED = 6
    FINGERPRINT = 7
    UNAVAILABLE = 8
    EXPIRED = 9


class EventKind(enum.IntEnum):
    """An event in the life of a block."""

    STORED = 1
    REMOVED = 2
    TIER_ADDED = 3
    TIER_REMOVED = 4
    SNAPSHOT_END = 5
    NAMESPACE_DROPPED = 6


class Rect(NamedTuple):
    """A rectangle on a layout's grid of layers x KV heads. Ends are exclusive.

    The grid of an opaque layout has 1 layer and as many heads as parts. That of a layout with
    pools has a layer for each of them.
    """

    layer_begin: int
    layer_end: int
    head_begin: int
    head_end: int


@dataclass(frozen=True)
class Plane:
    """One kind of numbers that a layer keeps for each token, such as K."""

    name: str
    heads: int
    dim: int
    dtype: DType


@dataclass(frozen=True)
class LayerGroup:
    """Consecutive layers with the same planes. Layers that keep nothing have none."""

    count: int
    planes: Sequence[Plane] = ()


@dataclass(frozen=True)
class NativeLayout:
    """Bytes that the service understands: layer -> plane -> KV head -> token -> dim,
    little-endian."""

    groups: Sequence[LayerGroup]
    kv_heads: int
    block_tokens: int = 64
    key_rotation: KeyRotation = KeyRotation.AFTER_ROPE

    def bytes(self, rect: Rect | None = None) -> int:
        """The size in bytes of a block's rectangle. Default: of the whole block."""
        return _native.rect_bytes(self, rect)


@dataclass(frozen=True)
class OpaqueLayout:
    """Bytes of an inference engine, never interpreted. A block has `parts` parts, for example one
    of each rank, and 1 to 65535 tokens."""

    description: str
    max_part_bytes: int
    parts: int = 1
    block_tokens: int = 64


@dataclass(frozen=True)
class Pool:
    """One of several KV pools: layers whose KV is kept, lost and given back together, in blocks of
    their own length. A block belongs to one pool.

    `name`: 1 to 32 characters of [a-z0-9_], for people and metrics. `block_tokens`: a multiple of
    the layout's. `chained`: blocks follow each other, as those of full attention. If not, each
    stands alone and has no parent.
    """

    name: str
    block_tokens: int
    max_part_bytes: int
    parts: int = 1
    chained: bool = False


@dataclass(frozen=True)
class PooledLayout:
    """Bytes of an inference engine with several KV pools, at most 32. Part `i` of a block of pool
    `p` is `Rect(p, p + 1, i, i + 1)`.

    `block_tokens` is the unit in which the lengths of the pools' blocks are counted. A prompt has
    one key for each unit, and `pool_keys` makes those of the pools' blocks from them.
    """

    description: str
    pools: Sequence[Pool]
    block_tokens: int = 64


Layout = Union[NativeLayout, OpaqueLayout, PooledLayout]


@dataclass(frozen=True)
class NamespaceSpec:
    """Everything that must be equal for KV to be interchangeable."""

    model: str
    revision: str
    layout: Layout
    numerics: str
    tenant: str = "default"
    salt: bytes = b""
    weight_epoch: int = 0
    recipe: str = "raw"
    key_version: int = 1
    key_scheme: str = "cairn"


@dataclass(frozen=True)
class FieldDifference:
    """A namespace at the node that differs in exactly this field. Probably a setting was changed,
    and the cache is not simply empty."""

    field: str
    stored: str
    requested: str
    stored_blocks: int


@dataclass(frozen=True)
class OpenedNamespace:
    """The answer to `open_namespace`."""

    fingerprint: bytes
    created: bool
    differs: Sequence[FieldDifference]


class TierRun(NamedTuple):
    """Blocks of a match that lie in one tier, in order."""

    tier: TierKind | None
    """None: in no tier of the node, which can get the blocks from another place."""
    blocks: int
    bytes: int
    seconds: float
    """From the match until the run's last byte could leave the node; 0 if unknown."""


@dataclass(frozen=True)
class Match:
    """The longest complete prefix at the node. As a context manager it releases the lease at the
    end."""

    matched_blocks: int
    lease: Lease
    tiers: Sequence[TierRun]
    miss_reason: MissReason
    """The reason for block `matched_blocks`; NONE when all matched."""
    bytes: int
    estimated_fetch_seconds: float

    def __enter__(self) -> Match:
        return self

    def __exit__(self, *exception: object) -> None:
        self.lease.release()


class PoolNeed(NamedTuple):
    """The needs of a model for one pool, so that it can go on after n tokens."""

    pool: int
    """Its number in the layout."""
    tail_tokens: int = 0
    """The blocks of this many tokens before n. Full attention: 0, which means every block. A window
    of W: W - 1. A state, of which one block ends at n: 1."""
    proof_blocks: int = 0
    """This many blocks after n, which are not leased. The layers of a draft: 1."""


class PoolRun(NamedTuple):
    """Consecutive blocks of one pool."""

    pool: int
    first_block: int
    """Counted from the prompt's first block of the pool."""
    blocks: int


@dataclass(frozen=True)
class PoolMatch(Match):
    """The longest length that several pools can restore together. The blocks of the lease are those
    of `pool_runs`, numbered from 0 on in this order."""

    restorable_tokens: int
    pool_runs: Sequence[PoolRun]
    limiting_pool: int | None
    """The pool that has not enough for the next longer length. None: no pool is in its way."""
    lengths: Sequence[int]
    """All restorable lengths in tokens, ascending, if the match asked for them."""


class Fetched(NamedTuple):
    """The result of a fetch. The memory of a block that failed has undefined bytes."""

    prefix: int
    """Leading blocks that are complete."""
    failed: Mapping[int, MissReason]
    """By block, counted from the prompt's first one."""
    bytes: int


class Part(NamedTuple):
    """A part of a block, to be pushed."""

    key: bytes
    data: Memory
    parent: bytes | None = None
    """None: a root."""
    first_position: int = 0
    """Position of the block's first token."""
    rect: Rect | None = None
    """None: the whole grid."""
    compute_seconds: float = 0.0
    """The time that it took to compute the block; 0 if unknown."""


class Prefetched(NamedTuple):
    """The effect of a hint on its blocks. Every key is counted once."""

    present_blocks: int
    queued_blocks: int
    absent_blocks: int
    refused_blocks: int
    estimated_seconds: float


class TierStat(NamedTuple):
    """One tier of a node."""

    tier: TierKind
    capacity_bytes: int
    used_bytes: int
    blocks: int
    read_bytes: int
    written_bytes: int
    evicted_blocks: int


@dataclass(frozen=True)
class NodeStats:
    """A node's totals since it started. StatResponse of proto/cairn/v1/cache.proto documents the
    fields."""

    node_id: str
    node_epoch: int
    version: str
    uptime_seconds: float
    tiers: Sequence[TierStat]
    namespaces: int
    blocks: int
    incomplete_blocks: int
    leases: int
    reservations: int
    reserved_bytes: int
    sessions: int
    unflushed_bytes: int
    index_bytes: int
    matched_tokens: int
    missed_tokens: int
    fetched_bytes: int
    pushed_bytes: int
    fetched_host_bytes: int
    fetched_disk_bytes: int
    promoted_blocks: int
    corrupt_blocks: int
    prefetched_blocks: int
    prefetched_used_blocks: int
    misses: Mapping[MissReason, int]
    draining: bool
    prefill_seconds_saved: float
    disk_io_mode: str


@dataclass(frozen=True)
class ClientStats:
    """A client's totals since it was made, and its state."""

    matches: int
    matched_blocks: int
    fetches: int
    fetched_slices: int
    fetched_bytes: int
    lent_bytes: int
    """Bytes of fetched_bytes that were delivered without a copy."""
    corrupt_slices: int
    fetched_rows: int
    corrupt_rows: int
    pushed_parts: int
    pushed_bytes: int
    local_sessions: int
    local_fallbacks: int
    sessions: int
    breaker_opened: int
    breaker_rejected: int
    dropped_releases: int
    home: str
    """The address of the node that the client uses now. Empty: none yet."""
    home_node_id: str
    """The name that the node gives itself. Empty before the first session."""
    home_changes: int
    """Moves from one of several nodes to another."""
    connected: bool
    breaker: str
    """"closed", "open" or "half_open"."""
    path: str
    """"local" (shared memory) or "grpc": what the next call takes."""
    path_reason: str
    """Why not shared memory, for people; empty when it is taken."""


@dataclass(frozen=True)
class CacheEvent:
    """Something happened to a block at the node."""

    kind: EventKind
    node_epoch: int
    sequence: int
    fingerprint: bytes
    key: bytes
    parent: bytes | None
    tier: TierKind
    pool: int = 0
    """The number of the block's pool, in an event of kind STORED. 0 without pools."""


@dataclass(frozen=True)
class Tls:
    """PEM files. All empty: TLS with the system's authorities and without a client certificate."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """Expected in the node's certificate, if not the address's."""


@dataclass(frozen=True)
class Breaker:
    """When the client stops asking a node that fails. Times are in seconds."""

    failures: int = 3
    """In a row, until it opens."""
    first_backoff: float = 0.5
    max_backoff: float = 30.0
    jitter: float = 0.2
