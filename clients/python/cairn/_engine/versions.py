"""Which versions of engines an adapter runs with.

Every release of an engine may change what its adapter uses. Versions that were tested start. A
newer one starts with a warning if its source still has all that the adapter uses, and is refused
by the name of what changed if not. An older one is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cairn._engine.surface import Surface, changes, installed, record

__all__ = ["TESTED", "Range", "check_version", "differences", "is_tested"]

_LOG = logging.getLogger("cairn")
_SHOWN = 5  # Changes that an error names.
_fitting: set[tuple[str, str]] = set()  # Versions that were warned of.


class Range(NamedTuple):
    """Versions from `first` on, before `end`."""

    first: str
    end: str

    def __str__(self) -> str:
        return f"at least {self.first} and below {self.end}"


TESTED: Mapping[str, Range] = {
    "vllm": Range("0.30", "0.33"),
    "sglang": Range("0.5.21", "0.5.24"),
    "lmcache": Range("0.5.4", "0.5.7"),
    "transformers": Range("5.17", "5.20"),
}


def is_tested(engine: str, version: str) -> bool:
    """Suffixes such as "+cpu" are ignored."""
    tested = TESTED[engine]
    return _numbers(tested.first) <= _numbers(version) < _numbers(tested.end)


def check_version(
    engine: str, version: str, surface: Surface, found: Callable[[], list[str]] | None = None
) -> None:
    """RuntimeError: the installed `version` was not tested, and is older than those that were, or
    lacks something of `surface`. The message names it.

    `found`: tells what is different; by default the installed files do.
    """
    if is_tested(engine, version) or (engine, version) in _fitting:
        return
    tested = TESTED[engine]
    text = f"{engine} {version} was not tested with this version of cairn, expected {tested}"
    if _numbers(version) < _numbers(tested.first):
        raise RuntimeError(text)
    if different := (found or (lambda: differences(surface)))():
        named = "; ".join(different[:_SHOWN])
        more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise RuntimeError(f"{text}. It differs from these: {named}{more}")
    _fitting.add((engine, version))
    _LOG.warning("cairn: %s. It has all that the adapter uses, so the adapter starts", text)


def differences(surface: Surface) -> list[str]:
    """What the installed engine lacks of a surface."""
    return changes(record(installed(surface.package), surface), surface)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: (0, 33, 0) for "0.33.0rc1+cpu"."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in found[0].split(".")) if found else ()
