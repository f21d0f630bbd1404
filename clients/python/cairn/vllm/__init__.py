"""Adapters for vLLM: docs/program/engines/vllm.md.

vLLM loads both itself: `CairnConnector` from "cairn.vllm" through `kv_connector_module_path`,
`CairnTier` from "cairn.vllm" through `module_path` of a secondary tier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.vllm.connector import CairnConnector
    from cairn.vllm.tier import CairnTier

__all__ = ["CairnConnector", "CairnTier"]


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: who uses one needs nothing of the other. RuntimeError:
    a version of vLLM that lacks what is used."""
    if name in __all__:
        from cairn.vllm import compat

        # Before what they are built on is imported, which another version may have elsewhere.
        compat.check()
    if name == "CairnConnector":
        from cairn.vllm.connector import CairnConnector

        return CairnConnector
    if name == "CairnTier":
        from cairn.vllm.tier import CairnTier

        return CairnTier
    raise AttributeError(f"module 'cairn.vllm' has no attribute '{name}'")
