"""As much of vLLM 0.32 and torch as `cairn.vllm` imports, for machines with neither. The real ones
run in tests/engines."""

import abc
import contextlib
import dataclasses
import enum
import hashlib
import sys
import types

import pytest


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    pass


class KVConnectorBase_V1:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._metadata = None

    def bind_connector_metadata(self, metadata):
        self._metadata = metadata

    def clear_connector_metadata(self):
        self._metadata = None

    def _get_connector_metadata(self):
        assert self._metadata is not None
        return self._metadata

    def handle_preemptions(self, metadata):
        pass


@dataclasses.dataclass
class KVConnectorTransferResults:
    finished_sending: set = dataclasses.field(default_factory=set)
    finished_recving: set = dataclasses.field(default_factory=set)
    failed_recving: set = dataclasses.field(default_factory=set)


class SupportsHMA(abc.ABC):
    @abc.abstractmethod
    def request_finished_all_groups(self, request, block_ids): ...


class CacheHitSource(enum.Enum):
    HOST = "host"
    DISK = "disk"


@dataclasses.dataclass
class KVConnectorStats:
    data: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: list | None
    transfer_time: float
    transfer_bytes: int


@dataclasses.dataclass
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str

    @property
    def head_size_v(self):
        return self.head_size

    @property
    def page_size_bytes(self):
        return self.block_size * self.num_kv_heads * self.head_size * 2 * 2


@dataclasses.dataclass
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int = 0
    extra_retained_tokens: int = 0


@dataclasses.dataclass
class MambaSpec:
    block_size: int
    state_content_size_bytes: int = 100
    page_size_padded: int = 128
    mamba_cache_mode: str = "align"

    @property
    def page_size_bytes(self):
        return self.page_size_padded


def sha256(value):
    return hashlib.sha256(repr(value).encode()).digest()


def stage_of(layers, stage, stages):
    """The layers of a stage of a pipeline; the last ones have more of them."""
    return layers * stage // stages, layers * (stage + 1) // stages


class Platform:
    device_name = "Fake device"

    def __init__(self, kind="cuda"):
        self.kind = kind

    def is_cpu(self):
        return self.kind == "cpu"

    def is_cuda(self):
        return self.kind == "cuda"


def _modules(stream):
    """Name -> what is in it. `stream()`: the engine's stream."""
    v1 = "vllm.distributed.kv_transfer.kv_connector.v1"
    nothing = type("Nothing", (), {})
    return {
        "vllm": {"__version__": "0.32.0"},
        f"{v1}.base": {
            "KVConnectorBase_V1": KVConnectorBase_V1,
            "KVConnectorMetadata": KVConnectorMetadata,
            "KVConnectorRole": KVConnectorRole,
            "KVConnectorTransferResults": KVConnectorTransferResults,
            "SupportsHMA": SupportsHMA,
        },
        f"{v1}.metrics": {"KVConnectorStats": KVConnectorStats, "KVConnectorPromMetrics": nothing},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": CacheHitSource},
        "vllm.distributed.kv_events": {
            "MEDIUM_CPU": "CPU",
            "MEDIUM_STORAGE": "STORAGE",
            "BlockRemoved": nothing,
            "BlockStored": nothing,
            "KVCacheEvent": nothing,
        },
        "vllm.v1.kv_offload.base": {
            "Locality": types.SimpleNamespace(REMOTE="REMOTE"),
            "LookupResult": nothing,
            "Medium": types.SimpleNamespace(CPU="CPU", STORAGE="STORAGE"),
            "OffloadingEvent": nothing,
            "OffloadKey": bytes,
            "ReqContext": nothing,
            "RequestOffloadingContext": nothing,
            "make_offload_key": lambda key, group: key + group.to_bytes(4, "little"),
        },
        "vllm.v1.kv_offload.tiering.async_lookup": {"AsyncLookupManager": nothing},
        "vllm.v1.kv_offload.tiering.base": {
            "JobResult": JobResult,
            "SecondaryTierManager": type("SecondaryTierManager", (), {}),
            "TransferJob": nothing,
        },
        "vllm.v1.core.kv_cache_utils": {
            "get_none_hash_seed": lambda: "seed",
            "maybe_convert_block_hash": bytes,
            "resolve_none_hash_seed": lambda hash_fn: "seed",
        },
        "vllm.v1.kv_cache_interface": {
            "FullAttentionSpec": FullAttentionSpec,
            "MambaSpec": MambaSpec,
            "MLAAttentionSpec": nothing,
            "SlidingWindowSpec": SlidingWindowSpec,
        },
        "vllm.platforms": {"current_platform": Platform()},
        "vllm.utils.hashing": {"get_hash_fn_by_name": lambda name: sha256},
        "vllm.distributed.utils": {"get_pp_indices": stage_of},
        "torch": {
            "__version__": "2.13.0",
            "cuda": types.SimpleNamespace(
                current_stream=lambda device: types.SimpleNamespace(cuda_stream=stream(device)),
                current_device=lambda: 0,
            ),
        },
    }


@contextlib.contextmanager
def standing_in(stream):
    """While this lasts, vllm and torch are these, and `cairn.vllm` is imported afresh.

    `stream(device)`: the handle of the engine's stream.
    """
    with pytest.MonkeyPatch.context() as patch:
        ours = ("vllm", "torch", "cairn.vllm")
        before = {
            name: sys.modules.pop(name)
            for name in list(sys.modules)
            if name in ours or name.startswith(tuple(f"{our}." for our in ours))
        }
        made = {}
        for name, members in _modules(stream).items():
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                path = ".".join(parts[:i])
                if path not in made:
                    made[path] = types.ModuleType(path)
                    made[path].__path__ = []
                    patch.setitem(sys.modules, path, made[path])
            vars(made[name]).update(members)
        yield
        for name in list(sys.modules):
            if name in ours or name.startswith(tuple(f"{our}." for our in ours)):
                del sys.modules[name]
    sys.modules.update(before)


def engine_config(address, **settings):
    """The parts that vLLM gives a connector. `settings`: `kv_connector_extra_config`."""
    return types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(
            kv_load_failure_policy="recompute",
            # Stand-ins take no time to compute, so that no hit would be worth its load.
            kv_connector_extra_config={
                "address": address,
                "revision": "1",
                "fetch": "always",
                **settings,
            },
            is_kv_consumer=True,
            is_kv_producer=True,
        ),
        cache_config=types.SimpleNamespace(
            calculate_kv_scales=False,
            prefix_caching_hash_algo="sha256",
            cache_dtype="auto",
            enable_prefix_caching=True,
            use_replayssm=False,
        ),
        parallel_config=types.SimpleNamespace(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            tensor_parallel_size=1,
            cp_kv_cache_interleave_size=1,
            rank=0,
        ),
        speculative_config=None,
        lora_config=None,
        kv_events_config=None,
        load_config=types.SimpleNamespace(load_format="auto"),
        model_config=types.SimpleNamespace(
            model="standin",
            runner_type="generate",
            dtype="torch.bfloat16",
            quantization=None,
            hf_config=types.SimpleNamespace(to_dict=dict),
            get_total_num_hidden_layers=lambda: 5,
        ),
    )


def cache_config(layers, blocks, block_tokens, heads, width, layout, dtype="torch.float16"):
    """`width`: numbers of a token in one head, keys and values."""
    return types.SimpleNamespace(
        num_blocks=blocks,
        hash_block_size=None,
        kv_cache_layout=layout,
        kv_cache_tensors=[],
        kv_cache_groups=[
            types.SimpleNamespace(
                kv_cache_spec=FullAttentionSpec(block_tokens, heads, width // 2, dtype),
                layer_names=[f"layer{i}" for i in range(layers)],
            )
        ],
    )
