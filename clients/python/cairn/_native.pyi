"""The native module: clients/python/src/module.cc. Private; use `cairn`."""

from typing import Any, final

EventAnswer = tuple[int, int, int, bytes, bytes, bytes | None, int, int]
PoolAnswer = tuple[int, list[tuple[int, int, int]], int | None, bytes]
MatchAnswer = tuple[
    int, Lease, list[tuple[int | None, int, int, float]], int, int, float, PoolAnswer | None
]

@final
class Connection:
    def open_namespace(
        self, spec: object, block_life: float, deadline: float, trace: str
    ) -> tuple[bytes, bool, list[tuple[str, str, str, int]]]: ...
    def match(
        self,
        fingerprint: bytes,
        keys: object,
        *,
        lease: bool,
        lease_ttl: float,
        prefill_tokens_per_second: float,
        holders: object,
        next: str,
        wait: float,
        wait_blocks: int,
        announce: bool,
        deadline: float,
        trace: str,
        pools: object = ...,
        step: int = ...,
        most: int = ...,
        all_lengths: bool = ...,
    ) -> MatchAnswer: ...
    def begin_match(
        self,
        fingerprint: bytes,
        keys: object,
        prefetch_in: float | None,
        deadline: float,
        trace: str,
    ) -> PendingMatch: ...
    def fetch(
        self,
        lease: Lease,
        into: object,
        first_block: int,
        rect: object,
        progress: float,
        deadline: float,
        cancel: Cancellation | None,
        trace: str,
    ) -> tuple[int, str, int, int, dict[int, int]]: ...
    def fetch_on_device(
        self,
        lease: Lease,
        into: object,
        device: DeviceTarget,
        first_block: int,
        rect: object,
        deadline: float,
    ) -> tuple[tuple[int, str, int, int, dict[int, int]], list[int]]: ...
    def get(
        self,
        fingerprint: bytes,
        keys: object,
        into: object,
        cancel: Cancellation | None,
        *,
        rect: object,
        holders: object,
        lookup_deadline: float,
        progress: float,
        deadline: float,
        trace: str,
    ) -> tuple[int, str, int, int, dict[int, int]]: ...
    def push(
        self, fingerprint: bytes, parts: object, reservation_ttl: float, deadline: float, trace: str
    ) -> list[tuple[int, str] | None]: ...
    def stage(
        self,
        fingerprint: bytes,
        parts: object,
        reservation_ttl: float,
        deadline: float,
        commit_deadline: float,
        trace: str,
    ) -> int: ...
    def commit_staged(self, push: int) -> list[tuple[int, str] | None]: ...
    def drop_staged(self, push: int) -> None: ...
    def prefetch(
        self, fingerprint: bytes, keys: object, needed_in: float, deadline: float, trace: str
    ) -> tuple[int, int, int, int, float]: ...
    def exists(
        self, fingerprint: bytes, keys: object, deadline: float, trace: str
    ) -> list[int | None]: ...
    def renew_lease(self, lease: Lease, ttl: float, deadline: float, trace: str) -> float: ...
    def flush(self, deadline: float, trace: str) -> None: ...
    def stat(self, deadline: float, trace: str) -> dict[str, Any]: ...
    def stats(self) -> dict[str, Any]: ...
    def watch(self, fingerprint: bytes | None, snapshot: bool) -> int: ...
    def next_event(self, stream: int, wait: float | None) -> EventAnswer | None: ...
    def end_watch(self, stream: int) -> None: ...
    def close(self) -> None: ...

@final
class ClusterWatch:
    def next(self, wait: float | None) -> tuple[int, str, str, EventAnswer | None] | None: ...
    def members(self) -> list[str]: ...
    def close(self) -> None: ...

def watch_cluster(
    address: str,
    client_name: str,
    tls: object,
    tenant: str,
    fingerprint: bytes | None,
    refresh: float,
    lost_after: float,
) -> ClusterWatch: ...

@final
class PendingMatch:
    def done(self) -> bool: ...
    def wait(self, seconds: float) -> bool: ...
    def answer(
        self,
    ) -> tuple[
        MatchAnswer,
        tuple[int, str] | None,
    ]: ...
    def seconds(self) -> float: ...

@final
class Lease:
    """The promise of a node to keep a matched prefix readable.

    Ends with `release()`, at the end of the `with` block, or when Python collects it.
    """

    @property
    def held(self) -> bool:
        """False when nothing matched, or after `release()`."""
    @property
    def id(self) -> int: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def blocks(self) -> int:
        """Blocks of the matched prefix."""
    @property
    def expires_in(self) -> float:
        """How many seconds the lease lives as it was given, without renewals."""
    def release(self) -> None:
        """Gives the lease back, without waiting. You may call it again."""
    def __enter__(self) -> Lease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Cancellation:
    """Ends fetches from another thread."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """Ends all fetches that got this object, now and later, with `CancelledError`."""
    @property
    def cancelled(self) -> bool: ...

@final
class Transfer:
    """Copies under way. Any thread may use it."""

    def wait(self, seconds: float) -> bool: ...
    def error(self) -> tuple[int, str] | None: ...
    def refused(self) -> list[int]: ...

@final
class Fence:
    """A point on the engine's stream."""

class DeviceTarget:
    """Memory of a GPU for the blocks of a fetch."""

@final
class DeviceBlocks(DeviceTarget):
    """Blocks of an engine on a GPU."""

@final
class PageMoves:
    """An engine's pages on a device. Streams are the driver's own handles."""

    @property
    def save_slots(self) -> int: ...
    @property
    def load_slots(self) -> int: ...
    @property
    def runs_kernels(self) -> bool: ...
    def block_bytes(self, first_position: int) -> int: ...
    def save(
        self, stream: int, blocks: list[int], positions: list[int]
    ) -> tuple[Transfer | None, list[int]]: ...
    def save_slot(self, slot: int) -> int: ...
    def give_back_save_slots(self, slots: list[int]) -> None: ...
    def fence(self, stream: int) -> Fence: ...
    def await_load_slots(self, most: int, seconds: float) -> list[int]: ...
    def load_slot(self, slot: int) -> int: ...
    def load(
        self, fence: Fence, slots: list[int], blocks: list[int], positions: list[int]
    ) -> Transfer: ...
    def give_back_load_slots(self, slots: list[int]) -> None: ...
    @property
    def reads_chunks(self) -> bool: ...
    def on_device(self, fence: Fence, blocks: list[int], positions: list[int]) -> DeviceBlocks: ...
    def close(self) -> None: ...

def open_pages(
    where: tuple[str, int, int, int], runs: list[tuple[int, int, int]], blocks: int
) -> PageMoves: ...
def open_coded_pages(
    where: tuple[str, int, int, int],
    codec: str,
    shape: tuple[int, int, int, int, int],
    layers: list[tuple[int, int, int]],
    blocks: int,
    k_strides: tuple[int, int],
    v_strides: tuple[int, int],
    bfloat16: bool,
) -> PageMoves: ...
def coded_block(codec: str, shape: tuple[int, int, int, int, int]) -> tuple[str, int]: ...
def connect(
    device: tuple[str, int] | None,
    *,
    address: str,
    client_name: str,
    path: str,
    tls: object,
    breaker: object,
    max_reconnect_backoff: float,
    spin: float | None,
    tenant: str,
    host: str,
    zone: str,
    home_key: str,
) -> Connection: ...
def fingerprint(spec: object) -> bytes: ...
def block_keys(fingerprint: bytes, tokens: object, block_tokens: int) -> list[bytes]: ...
def block_key(fingerprint: bytes, tokens: object, parent: bytes | None, extra: bytes) -> bytes: ...
def pool_keys(unit_keys: object, units: int, pool: int) -> list[bytes]: ...
def rect_bytes(layout: object, rect: object) -> int: ...
def next_action(code: int) -> str: ...
def set_log_level(level: str) -> None: ...
