"""vLLM's connector interface over the two halves. Nothing is raised once the engine runs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from cairn._engine.pool_store import PoolStore
from cairn._engine.store import Store
from cairn.vllm import compat
from cairn.vllm.events import EventFeed, block_event
from cairn.vllm.metadata import LoadTimes, Metadata
from cairn.vllm.metrics import CairnStats, PromMetrics
from cairn.vllm.namespace import Plan, check_config, make_plan, read_options
from cairn.vllm.pooled_scheduler import PooledSchedulerHalf
from cairn.vllm.ranks import rank_of
from cairn.vllm.scheduler import SchedulerHalf
from cairn.vllm.weighing import Weighing
from cairn.vllm.worker import WorkerHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
    )
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from cairn.vllm.number_places import PageAccess
    from cairn.vllm.options import ConnectorOptions

__all__ = ["CairnConnector"]

_LOG = logging.getLogger("cairn")
_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(otherwise: Callable[[], Any]) -> Callable[[_Method], _Method]:
    """Counts and logs an exception of ours, and returns `otherwise()` instead."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: CairnConnector, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self._store.counters.add("internal_errors")
                _LOG.exception("cairn: %s failed, the engine goes on without", method.__name__)
                return otherwise()

        return call  # type: ignore[return-value]

    return wrap


def _nothing() -> None:
    return None


def _weighing(store: Store, plan: Plan, options: ConnectorOptions) -> Weighing | None:
    # The sizes of blocks in a codec are known to the workers alone, so that nobody here can probe.
    return Weighing(store) if options.fetch == "measured" and plan.coding is None else None


def _device(options: ConnectorOptions) -> tuple[str, int] | None:
    """The GPU that this worker computes on."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return None
    return options.device_library, torch.cuda.current_device()


class CairnConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads KV from a cache node and stores it there, whole blocks at a time, between the engine's
    steps.

    `kv_connector_extra_config` has the settings of docs/program/engines/vllm.md.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """RuntimeError: a version of vLLM that lacks what is used. ValueError: a setting is not
        valid. Both messages name it.

        A node that cannot be reached is neither: it may come later.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        check_config(vllm_config)
        options = read_options(vllm_config)
        self._plan = plan = make_plan(vllm_config, kv_cache_config, options)
        transfer = vllm_config.kv_transfer_config
        who = "scheduler" if role == KVConnectorRole.SCHEDULER else "worker"
        store = PoolStore if plan.pools else Store
        self._store = store(
            options, plan.spec, f"vllm-{who}", device=_device(options) if who == "worker" else None
        )
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._events: EventFeed[KVCacheEvent] | None = None
        if role == KVConnectorRole.SCHEDULER:
            half = PooledSchedulerHalf if plan.pools else SchedulerHalf
            self._scheduler = half(
                self._store,
                plan,
                reads=transfer.is_kv_consumer,
                writes=transfer.is_kv_producer,
                weighing=_weighing(self._store, plan, options) if transfer.is_kv_consumer else None,
            )
            self._store.wait_open(2.0)
            events = vllm_config.kv_events_config
            if events is not None and events.enable_kv_cache_events and plan.engine_keys:
                self._events = EventFeed(self._store, block_event(kv_cache_config.kv_cache_groups))
        else:
            self._worker = WorkerHalf(self._store, plan, rank_of(vllm_config))

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """On a GPU, an order of axes in which a block of all layers is one run of bytes. vLLM
        takes another one, with a warning, if the model's attention cannot have it."""
        from vllm.platforms import current_platform

        return "BLHNC" if current_platform.is_cuda() else None

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """No: after it wakes up, the engine's pages may lie elsewhere. vLLM asks since 0.33, and
        takes a connector that says nothing for one that does."""
        return False

    @property
    def requires_kv_delivery(self) -> bool:
        """A lost store is only a later miss."""
        return False

    # ---- scheduler ----

    @_guarded(_nothing)
    def on_new_request(self, request: Request) -> None:
        """Asks the node now."""
        assert self._scheduler is not None
        self._scheduler.on_new_request(request)

    @_guarded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Answers from the node's answer. None until that has come, or its time is up."""
        assert self._scheduler is not None
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Not guarded: the engine waits for a load that was promised, and this method notes the
        promise."""
        assert self._scheduler is not None
        self._scheduler.after_alloc(request, blocks, num_external_tokens)

    @_guarded(dict)
    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[Any, int]:
        """By tier of the node. vLLM asks since 0.32."""
        assert self._scheduler is not None
        sources = compat.hit_sources()
        tiers = self._scheduler.hit_tiers(request, num_external_tokens)
        return {sources[tier]: tokens for tier, tokens in tiers.items()}

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The blocks that workers load and store around this step."""
        assert self._scheduler is not None
        return self._scheduler.build_metadata(scheduler_output)

    @_guarded(_nothing)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Loads that ended."""
        assert self._scheduler is not None
        self._scheduler.on_output(connector_output)

    @_guarded(lambda: (False, None))
    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks may be freed at once, because blocks to be stored were copied."""
        assert self._scheduler is not None
        self._scheduler.on_finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`, with the blocks of all KV cache groups."""
        return self.request_finished(request, [])

    @_guarded(tuple)
    def take_events(self) -> Iterable[KVCacheEvent]:
        """The blocks that the node stored and lost since the last step, if the engine publishes
        events."""
        return self._events.take() if self._events is not None else ()

    def reset_cache(self) -> bool:
        """From now on this process uses nothing that was stored before."""
        assert self._scheduler is not None
        self._scheduler.reset()
        if self._events is not None:
            # Routers forget all blocks of an engine that is reset, and nobody here uses these.
            self._events.stop()
        return True

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """At the start; ValueError: pages that cannot be taken as bytes, or that the codec cannot
        read."""
        assert self._worker is not None
        self._worker.register(kv_caches, self._page_access)

    def _page_access(self, kv_caches: Mapping[str, torch.Tensor]) -> PageAccess:
        from cairn.vllm.page_access import VllmPages

        layers = self._config.compilation_config.static_forward_context
        return VllmPages(layers, kv_caches, self._plan.blocks, self._plan.block_tokens)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begins this step's loads, in the background."""
        assert self._worker is not None
        self._worker.start_loads(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end between steps, never inside one."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are stored whole, after the step."""

    @_guarded(_nothing)
    def wait_for_save(self) -> None:
        """Copies full blocks out."""
        assert self._worker is not None
        self._worker.start_saves(self._step())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Loads that have ended, well or not."""
        assert self._worker is not None
        return None, self._worker.finished(self._step().idle) or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads that have ended, and with several KV cache groups those that failed."""
        _, ended = self.get_finished(finished_req_ids)
        assert self._worker is not None
        return KVConnectorTransferResults(
            finished_recving=ended or set(), failed_recving=self._worker.take_failed()
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that these loads did not bring, with one KV cache group."""
        assert self._worker is not None
        return self._worker.take_bad_blocks()

    @_guarded(_nothing)
    def build_connector_worker_meta(self) -> LoadTimes | None:
        """How long the loads took that have ended, for the scheduler's half."""
        assert self._worker is not None
        return self._worker.take_times()

    def _step(self) -> Metadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Metadata)
        return metadata

    # ---- both ----

    @_guarded(_nothing)
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """The counts of events since the last step. vLLM's scheduler calls this once at the end of
        each step, by which the step is measured."""
        if self._scheduler is not None:
            self._scheduler.on_step_end()
        data = self._store.counters.take()
        return CairnStats(data) if data else None

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        """In the API server, from what came over the wire."""
        return CairnStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """In the API server."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @_guarded(_nothing)
    def shutdown(self) -> None:
        """Stores what was copied out, then ends the session."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
        if self._events is not None:
            self._events.close()
        self._store.close()
