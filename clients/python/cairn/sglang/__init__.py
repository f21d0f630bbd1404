"""The third level of SGLang's hierarchical cache: docs/program/engines/sglang.md.

SGLang loads `CairnStorage` itself, as its backend "dynamic".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.sglang.storage import CairnStorage

__all__ = ["CairnStorage"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for. RuntimeError: a version of SGLang that lacks what is used."""
    if name == "CairnStorage":
        from cairn.sglang import compat

        # Before what it is built on is imported, which another version may have elsewhere.
        compat.check()
        from cairn.sglang.storage import CairnStorage

        return CairnStorage
    raise AttributeError(f"module 'cairn.sglang' has no attribute '{name}'")
