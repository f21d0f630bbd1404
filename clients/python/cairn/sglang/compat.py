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
            only_some=("close", "counters"),
        ),
    ),
)
