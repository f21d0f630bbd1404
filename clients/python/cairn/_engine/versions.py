"""Every release of an engine may change interfaces that its adapter uses, so an adapter runs only
with the versions that it was tested with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["TESTED", "check_version"]

TESTED: Mapping[str, Sequence[str]] = {
    "vllm": ("0.32.0",),
    "sglang": ("0.5.23",),
    "lmcache": ("0.5.6",),
    "transformers": ("5.19.0",),
}


def check_version(engine: str, installed: str) -> None:
    """RuntimeError, which names the tested versions, if `installed` is none of them. Suffixes such
    as "+cpu" are ignored."""
    tested = TESTED[engine]
    if installed.partition("+")[0] not in tested:
        raise RuntimeError(
            f"{engine} {installed} was not tested with this version of cairn, "
            f"expected one of: {', '.join(tested)}"
        )
