"""Code that the caches of this package share: a model, its layers, and a session with a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.hf import compat
from cairn.hf.layers import KeptLayer, namespace_of

__all__ = ["ModelCache"]

_Cache = TypeVar("_Cache", bound="ModelCache")


class ModelCache:
    """A cache of one model's KV. Not thread-safe, because models are not."""

    def __init__(
        self,
        model: Any,
        probe: Callable[[Any], list[KeptLayer]],
        block_tokens: int,
        settings: dict[str, Any],
        kind: str = "",
    ) -> None:
        """`probe` runs the model once. `kind`: as in namespace_of. Errors: those of PrefixCache."""
        compat.check()
        options = Options.read(settings)
        self._model = model
        self._block_tokens = block_tokens
        self._layers = probe(model)
        self._store = Store(
            options,
            namespace_of(model, self._layers, block_tokens, options, kind),
            "huggingface",
        )
        self._store.wait_open(2.0)

    def counters(self) -> dict[str, float]:
        """The counts of events since the start, by name."""
        return self._store.counters.totals()

    def close(self) -> None:
        """Ends the session."""
        self._store.close()

    def __enter__(self: _Cache) -> _Cache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
