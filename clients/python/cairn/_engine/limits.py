"""The limits of a layout whose bytes a node does not know (common/keys/namespace_spec.cc)."""

__all__ = ["MAX_BLOCK_TOKENS", "MAX_COLUMNS", "MAX_PART", "MAX_POOLS"]

MAX_PART = 64 << 20
"""Bytes of a part."""
MAX_COLUMNS = 1024
"""Parts of a block, or of a pool's block."""
MAX_BLOCK_TOKENS = 65535
MAX_POOLS = 32
