"""Code that the caches of this package share: a model, its layers, and a session with a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cairn._engine.options import Options
from cairn._engine.pool_store import PoolStore
from cairn._engine.store import Store
from cairn.hf import compat
from cairn.hf.layers import KeptLayer, namespace_of, native_layout
from cairn.types import Layout, PooledLayout

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
        layout_of: Callable[[list[KeptLayer], int], Layout] = native_layout,
    ) -> None:
        """`probe` runs the model once. `kind`: as in namespace_of. `layout_of`: of its layers and
        the tokens of a block. Errors: those of PrefixCache."""
        compat.check()
        options = Options.read(settings)
        self._model = model
        self._block_tokens = block_tokens
        self._layers = probe(model)
        device = next(plane.device for layer in self._layers for plane in layer)
        layout = layout_of(self._layers, block_tokens)
        store = PoolStore if isinstance(layout, PooledLayout) else Store
        spec = namespace_of(model, device, layout, options, kind)
        self._store = store(options, spec, "huggingface")
        self._store.wait_open(2.0)

    @staticmethod
    def _inputs_of(inputs: Any, generation_config: Any, arguments: dict[str, Any]) -> Any:
        """The inputs of a call of `generate`, whose configuration goes to its other arguments."""
        if inputs is None:
            inputs = arguments.pop("input_ids", None)
        arguments["generation_config"] = generation_config
        return inputs

    def _bypass(self, inputs: Any, arguments: dict[str, Any]) -> Any:
        """A call that the cache cannot serve."""
        self._store.counters.add("bypassed_requests")
        return self._model.generate(inputs, **arguments)

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
