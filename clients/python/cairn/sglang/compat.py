"""The parts of SGLang that the storage backend uses. No version that is tested differs in them."""

from __future__ import annotations

from cairn._engine.surface import Implements, Surface
from cairn._engine.versions import check_version

__all__ = ["SURFACE", "check"]

_STORAGE = "sglang.srt.mem_cache.hicache_storage"


def check() -> None:
    """RuntimeError: a version of SGLang that lacks what is used."""
    import sglang

    check_version("sglang", sglang.__version__, SURFACE)


SURFACE = Surface(
    package="sglang",
    uses={
        "sglang.srt.runtime_context": {"get_server_args": None},
        _STORAGE: {
            "HiCacheStorageConfig": (
                "extra_config",
                "is_mla_model",
                "model_name",
                "pp_rank",
                "pp_size",
                "tp_rank",
                "tp_size",
            ),
            "HiCacheStorageExtraInfo": ("prefix_keys",),
            "PoolHitPolicy": ("ALL_PAGES", "TRAILING_PAGES"),
            "PoolTransfer": ("hit_policy", "host_indices", "keys", "name"),
            "PoolTransferResult": "kv_hit_pages, extra_pool_hit_pages, restorable_prefix_pages",
        },
        "sglang.srt.mem_cache.pool_host.base": {
            "HostKVCache": (
                "get_data_page(index, flat=)",
                "get_dummy_flat_data_page()",
                "page_size",
                "set_from_flat_data_page(index, data_page)",
            ),
        },
        "sglang.srt.mem_cache.pool_host.mha": {
            "MHATokenToKVPoolHost": ("dtype", "get_page_buffer_meta", "layout", "page_size"),
        },
    },
    implements=(
        Implements(
            _STORAGE,
            "HiCacheStorage",
            "cairn.sglang.storage",
            "CairnStorage",
            only_some=("close", "counters", "on_host_pools_registered"),
        ),
    ),
)
