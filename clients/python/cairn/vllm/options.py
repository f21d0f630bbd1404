"""Settings of the connector beyond those that all adapters have. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cairn._engine.options import Options

__all__ = ["ConnectorOptions"]


@dataclass(frozen=True)
class ConnectorOptions(Options):
    """The connector's settings."""

    load_buffer: int = 64 << 20
    """KV on a GPU: bytes of pinned memory through which loads pass."""
    device_library: str = ""
    """KV on a GPU: the library that drives it. Empty: libcairn_cuda.so, next to the interpreter or
    where the linker looks."""

    @classmethod
    def read(
        cls, settings: Mapping[str, Any], prefix: str = "", without: Collection[str] = ()
    ) -> ConnectorOptions:
        """As `Options.read`. ValueError also if `codec` is given."""
        if isinstance(settings, Mapping) and "codec" in settings:
            raise ValueError(
                f"setting '{prefix}codec': got {settings['codec']!r}, expected no such setting: "
                "blocks are stored as the engine packed them, because nothing has proved "
                "where K and V lie in its pages"
            )
        return super().read(settings, prefix, without)
