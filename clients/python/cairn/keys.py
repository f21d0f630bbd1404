"""Names of namespaces and blocks, computed as Cairn's workers do (docs/inside/formats/keys.md)."""

from __future__ import annotations

from collections.abc import Sequence

from cairn import _native
from cairn.types import Buffer, NamespaceSpec

__all__ = ["block_key", "block_keys", "fingerprint", "pool_keys"]


def fingerprint(spec: NamespaceSpec) -> bytes:
    """The 32 bytes that name a namespace. Does not ask the node. InvalidArgumentError names a wrong
    field."""
    return _native.fingerprint(spec)


def block_keys(
    fingerprint: bytes, tokens: Sequence[int] | Buffer, block_tokens: int
) -> list[bytes]:
    """The keys of all full blocks of a prompt. Tokens that do not fill a block have none.

    `tokens`: integers, or a contiguous buffer of i32 or i64, such as a numpy array.
    """
    return _native.block_keys(fingerprint, tokens, block_tokens)


def block_key(
    fingerprint: bytes,
    tokens: Sequence[int] | Buffer,
    parent: bytes | None = None,
    extra: bytes = b"",
) -> bytes:
    """The key of the block with these tokens after `parent` (None: a root).

    `extra`: anything else that the KV depends on, such as the digest of an adapter or an image.
    """
    return _native.block_key(fingerprint, tokens, parent, extra)


def pool_keys(unit_keys: Sequence[bytes], units: int, pool: int) -> list[bytes]:
    """The keys of all blocks of a pool that a prompt fills, from the prompt's key of each unit.

    `units`: the units in one of the pool's blocks, its `block_tokens` over those of the layout.
    `pool`: its number in the layout. A block has the key of its last unit, XOR a mask of the pool.
    """
    return _native.pool_keys(unit_keys, units, pool)
