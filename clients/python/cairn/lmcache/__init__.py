"""Adapters for LMCache: docs/program/engines/lmcache.md.

LMCache loads both itself, from "cairn.lmcache": `CairnClient` in its multi-process mode,
`CairnConnectorAdapter` in its in-process mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.lmcache.client import CairnClient
    from cairn.lmcache.connector import CairnConnectorAdapter

__all__ = ["CairnClient", "CairnConnectorAdapter"]


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: who uses one needs nothing of the other."""
    if name == "CairnClient":
        from cairn.lmcache.client import CairnClient

        return CairnClient
    if name == "CairnConnectorAdapter":
        from cairn.lmcache import compat

        # Before what it is built on is imported, which another version may have elsewhere.
        compat.check()
        from cairn.lmcache.connector import CairnConnectorAdapter

        return CairnConnectorAdapter
    raise AttributeError(f"module 'cairn.lmcache' has no attribute '{name}'")
