"""Keeps KV of Hugging Face `generate` at a cache node: docs/program/engines/huggingface.md.

prefixes = cairn.hf.PrefixCache(model, address="127.0.0.1:7400")
output = prefixes.generate(input_ids, max_new_tokens=50)

`EncoderCache` does the same for models with an encoder and a decoder, and `HybridCache` for those
some of whose layers keep a state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.hf.encoder import EncoderCache
    from cairn.hf.hybrid import HybridCache
    from cairn.hf.prefix import PrefixCache

__all__ = ["EncoderCache", "HybridCache", "PrefixCache"]


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for. RuntimeError: a version of transformers that lacks
    what is used."""
    if name not in __all__:
        raise AttributeError(f"module 'cairn.hf' has no attribute '{name}'")
    from cairn.hf import compat

    # Before what they are built on is imported, which another version may have elsewhere.
    compat.check()
    if name == "EncoderCache":
        from cairn.hf.encoder import EncoderCache

        return EncoderCache
    if name == "HybridCache":
        from cairn.hf.hybrid import HybridCache

        return HybridCache
    from cairn.hf.prefix import PrefixCache

    return PrefixCache
