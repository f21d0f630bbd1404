"""The adapter's counters among vLLM's metrics: `cairn_vllm_<name>_total`."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from cairn._engine.counters import COUNTERS

__all__ = ["CairnStats", "PromMetrics"]


class CairnStats(KVConnectorStats):
    """Sums by name of COUNTERS, of one step or of several."""

    data: dict[str, Any]

    def reset(self) -> None:
        """Forgets."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another worker's or step's."""
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the engine's log."""
        return {f"cairn {name}": round(value, 3) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Nothing happened."""
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """Prometheus counters, with the engine's own labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._by_engine: dict[int, dict[str, Any]] = {
            engine: {} for engine in per_engine_labelvalues
        }
        for name, meaning in COUNTERS.items():
            metric = self._counter_cls(
                name=f"cairn_vllm_{name}", documentation=meaning, labelnames=labelnames
            )
            for engine, values in per_engine_labelvalues.items():
                self._by_engine[engine][name] = metric.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds a step's sums."""
        for name, value in transfer_stats_data.items():
            counter = self._by_engine.get(engine_idx, {}).get(name)
            if counter is not None:
                counter.inc(value)
