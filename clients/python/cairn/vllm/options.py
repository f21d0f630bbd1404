"""Settings of the connector beyond those that all adapters have. Needs no vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cairn._engine.options import Options, choice

__all__ = ["ConnectorOptions"]


@dataclass(frozen=True)
class ConnectorOptions(Options):
    """The connector's settings."""

    fetch: Literal["measured", "always"] = choice("measured", "always")
    """Which hits are taken: "measured" (those that are loaded faster than computed, by what both
    have cost), or "always" (all of them)."""
    load_buffer: int = 64 << 20
    """KV on a GPU: bytes of pinned memory through which loads pass."""
    draft_revision: str = ""
    """Digest or exact revision of the weights of a draft model; empty: found out from its files."""
    device_library: str = ""
    """KV on a GPU: the library that drives it. Empty: libcairn_cuda.so of this package, next to the
    interpreter, or where the linker looks."""
    codec: str = ""
    """KV on a GPU: the codec of a recipe in which blocks are stored, such as "turbo:bits=4". Empty:
    as the engine packed them."""
    fixed_adapters: bool = False
    """The operator's word that the files of a LoRA adapter never change once the engine can read
    them. Then adapters whose files are younger than the engine are cached, too."""
    media: Literal["bypass", "engine"] = choice("bypass", "engine")
    """Requests with images or other media: "bypass", or "engine", the operator's word that callers
    pass no identifiers for media. Then vLLM's identifiers are digests of contents."""
    store_tp: int = 0
    """Into how many parts, by its heads, a block is cut. Engines with the same value share blocks,
    whatever their tensor_parallel_size, of which it is a multiple. 0: one part for each rank, for
    engines with as many ranks alone."""
    window_interval: int = 4096
    """Models with windows: prompts can be taken up again at their ends, where prompts part, and
    after each multiple of this many tokens. 0: not at these. Blocks that windows need elsewhere are
    not stored."""
    state_interval: int = 4096
    """Models whose layers keep a state: of what vLLM hands over between these places, one state is
    stored after each multiple of this many tokens. 0: none."""
