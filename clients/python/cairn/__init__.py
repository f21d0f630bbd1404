"""Client of the Cairn KV-cache service.

    import cairn

    with cairn.Client("127.0.0.1:7400") as client:
        namespace = client.open_namespace(spec).fingerprint
        keys = cairn.block_keys(namespace, tokens, 64)
        with client.match(namespace, keys) as match:
            if match.matched_blocks:
                client.fetch(match.lease, blocks[: match.matched_blocks])

`Client` is for threads, `AsyncClient` for asyncio. Failures are `cairn.Error`s, with one class for
each code. A miss is an answer and not a failure.
"""

from cairn._native import Cancellation, Lease
from cairn.aio import AsyncClient, AsyncEventStream, AsyncStagedPush
from cairn.client import Client, EventStream, PendingMatch, StagedPush, set_log_level
from cairn.cluster import ClusterEvents, MemberEvent, MemberEventKind
from cairn.errors import *  # noqa: F403
from cairn.errors import __all__ as _errors
from cairn.keys import block_key, block_keys, fingerprint, pool_keys
from cairn.types import *  # noqa: F403
from cairn.types import __all__ as _types

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "AsyncStagedPush",
    "Cancellation",
    "Client",
    "ClusterEvents",
    "EventStream",
    "Lease",
    "MemberEvent",
    "MemberEventKind",
    "PendingMatch",
    "StagedPush",
    "block_key",
    "block_keys",
    "fingerprint",
    "pool_keys",
    "set_log_level",
    *_errors,
    *_types,
]
