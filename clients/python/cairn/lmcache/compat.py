"""The parts of LMCache that the adapters use. No version that is tested differs in them."""

from __future__ import annotations

import importlib.metadata

from cairn._engine.surface import Implements, Surface
from cairn._engine.versions import check_version

__all__ = ["SURFACE", "check"]

_CONNECTOR = "lmcache.v1.storage_backend.connector"


def check() -> None:
    """RuntimeError: a version of LMCache that lacks what is used."""
    check_version("lmcache", importlib.metadata.version("lmcache"), SURFACE)


SURFACE = Surface(
    package="lmcache",
    uses={
        "lmcache.utils": {
            "CacheEngineKey": (
                "_dtype_str",
                "chunk_hash",
                "chunk_hash_hex",
                "model_name",
                "tags",
                "worker_id",
                "world_size",
            ),
        },
        "lmcache.v1.config": {"LMCacheEngineConfig": None},
        "lmcache.v1.exceptions": {"IrrecoverableException": None},
        "lmcache.v1.memory_management": {
            "MemoryFormat": None,
            "MemoryObj": (
                "byte_array",
                "get_dtypes",
                "get_memory_format",
                "get_shapes",
                "get_size",
                "ref_count_down",
                "ref_count_up",
            ),
        },
        "lmcache.v1.metadata": {
            "LMCacheMetadata": (
                "chunk_size",
                "get_dtypes",
                "get_num_groups",
                "get_shapes",
                "kv_shape",
                "model_name",
                "use_mla",
                "world_size",
            ),
        },
        "lmcache.v1.storage_backend.local_cpu_backend": {"LocalCPUBackend": ("allocate",)},
        "lmcache.v1.token_database": {
            "ChunkedTokenDatabase": ("_get_vllm_hash_func", "_hash_tokens", "hash_func"),
        },
        _CONNECTOR: {
            "ConnectorContext": (
                "config",
                "local_cpu_backend",
                "metadata",
                "plugin_name",
                "url",
            ),
            "extract_plugin_type": None,
        },
    },
    implements=(
        Implements(
            _CONNECTOR, "ConnectorAdapter", "cairn.lmcache.connector", "CairnConnectorAdapter"
        ),
        Implements(
            f"{_CONNECTOR}.base_connector",
            "RemoteConnector",
            "cairn.lmcache.connector",
            "CairnConnector",
            only_some=("counters",),
            made_here=True,
        ),
    ),
)
