"""SGLang's host pools with random bytes, its own storage backends and its page hashes, without a
GPU. Files that import it need its fixtures, too."""

import pytest
import torch

import standins

with standins.installed():
    from sglang.srt.mem_cache import device_pool_info
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheFile,
        HiCacheStorage,
        HiCacheStorageConfig,
        HiCacheStorageExtraInfo,
        HiCacheStorageFailureInjector,
        PoolHitPolicy,
        PoolName,
        PoolTransfer,
    )
    from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool
    from sglang.srt.mem_cache.pool_host import base as pool_base
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.storage import StorageBackendFactory
    from sglang.srt.mem_cache.utils import get_hash_str

__all__ = [
    "HiCacheFile",
    "HiCacheStorage",
    "HiCacheStorageExtraInfo",
    "HiCacheStorageFailureInjector",
    "PoolHitPolicy",
    "PoolName",
    "PoolTransfer",
    "Rows",
    "config",
    "file_storage",
    "hashes",
    "indices",
    "kv_pool",
    "little_memory",
    "mamba_pool",
    "page_of",
    "paged_pool",
    "refill",
    "settings",
    "sglang_finds_its_packages",
    "storage",
]


@pytest.fixture(autouse=True)
def sglang_finds_its_packages():
    """SGLang imports some of them when they are used."""
    with standins.installed():
        yield


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """SGLang wants 10 GB left over; these pools have less than one MB."""
    monkeypatch.setattr(pool_base, "HICACHE_HOST_MEMORY_RESERVE_BYTES", 0)


# ---- host pools ----


def kv_pool(
    layout="page_first",
    seed=0,
    *,
    layers=3,
    heads=2,
    dim=32,
    page=64,
    pages=8,
    dtype=torch.float32,
):
    """A real host pool with random KV, of more than twice as many pages."""
    generator = torch.Generator().manual_seed(seed)
    k, v = (
        [torch.zeros(page * pages, heads, dim, dtype=dtype) for _ in range(layers)]
        for _ in range(2)
    )

    def addresses(tensors):
        return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)

    info = device_pool_info.MHABufferInfo(
        buffers=device_pool_info.KVBuffers(
            k=k,
            v=v,
            k_data_ptrs=addresses(k),
            v_data_ptrs=addresses(v),
            layout=device_pool_info.KVBufferLayout.NHD,
        ),
        page_size=page,
        head_num=heads,
        head_dim=dim,
        v_head_dim=dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    made = MHATokenToKVPoolHost(
        info,
        2.0,
        0,
        page,
        layout,
        pin_memory=False,
        device="cpu",
        device_capacity_tokens=page * pages,
        start_layer=0,
        end_layer=layers,
    )
    made.kv_buffer.copy_(100 * torch.rand(made.kv_buffer.shape, generator=generator))
    return made


def mamba_pool(seed=0, *, layers=2, slots=8, side=False):
    """A real host pool with random states, of more than twice as many slots. `side`: with states of
    another kind, which SGLang gives by copies alone."""
    generator = torch.Generator().manual_seed(seed)
    info = device_pool_info.MambaStateBufferInfo(
        temporal=torch.randn(layers, slots, 3, 5, generator=generator),
        conv=(torch.randn(layers, slots, 7, generator=generator).to(torch.bfloat16),),
        extra_checkpoint_buffers=(torch.randn(slots, 2, generator=generator),) if side else (),
    )
    made = MambaPoolHost(
        info, 2.0, 0, device_capacity=slots, pin_memory=False, device="cpu", layout="page_first"
    )
    for buffer in made.kv_buffer:
        buffer.copy_(torch.randn(buffer.shape, generator=generator).to(buffer.dtype))
    return made


def paged_pool(layout="page_first", seed=0, *, layers=3, row_bytes=40, page=64, pages=16):
    """A real host pool of DeepSeek V4 with random bytes."""
    generator = torch.Generator().manual_seed(seed)
    made = DeepSeekV4PagedHostPool(
        "paged",
        [torch.zeros(pages, row_bytes, dtype=torch.uint8) for _ in range(layers)],
        row_bytes,
        pages,
        page,
        layout,
        pin_memory=False,
    )
    refill(made, range(pages), generator)
    return made


class Rows:
    """A pool of a class that nobody knows: a row of bytes for each page."""

    dtype = torch.uint8
    layout = "rows"

    def __init__(self, seed, *, rows, row_bytes, page=1, says_where=False):
        generator = torch.Generator().manual_seed(seed)
        self.page_size = page
        self.data = torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, generator=generator)
        if says_where:
            self.get_page_buffer_meta = self._where

    def _where(self, host_indices):
        pages = [int(at) // self.page_size for at in host_indices[:: self.page_size]]
        size = self.data.shape[1]
        half = size // 2
        places = [
            (self.data[page].data_ptr() + at, n)
            for page in pages
            for at, n in ((0, half), (half, size - half))
        ]
        return [at for at, _ in places], [n for _, n in places]

    def get_data_page(self, index, flat=True):
        return self.data[int(index) // self.page_size]

    def get_dummy_flat_data_page(self):
        return torch.zeros(self.data.shape[1], dtype=torch.uint8)

    def set_from_flat_data_page(self, index, data_page):
        self.data[int(index) // self.page_size].copy_(data_page)


def indices(pool, pages):
    """The host indices of these pages."""
    size = pool.page_size
    return torch.cat(
        [torch.arange(page * size, (page + 1) * size) for page in pages]
        or [torch.empty(0, dtype=torch.int64)]
    )


def page_of(pool, page):
    """A copy of the bytes of a page."""
    data = pool.get_data_page(page * pool.page_size, flat=True)
    return data.contiguous().view(-1).view(torch.uint8).clone()


def refill(pool, pages, generator):
    """Random bytes in these pages."""
    like = pool.get_dummy_flat_data_page()
    size = like.numel() * like.element_size()
    for page in pages:
        data = torch.randint(0, 100, (size,), dtype=torch.uint8, generator=generator)
        pool.set_from_flat_data_page(
            page * pool.page_size, data.view(like.dtype).reshape(like.shape)
        )


# ---- storage backends ----


def config(rank=0, ranks=1, *, mla=False, extra=None, **more):
    """As SGLang makes it."""
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=ranks,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="m",
        extra_config=extra,
        **more,
    )


def settings(node, v1=True, **more):
    """The extra configuration that users write."""
    return {
        "backend_name": "cairn",
        "module_path": "cairn.sglang",
        "class_name": "CairnStorage",
        "interface_v1": int(v1),
        "address": node.grpc,
        "revision": "r",
        **more,
    }


def registered(backend, kv, others=()):
    """Tells a backend its pools, as SGLang does."""
    backend.register_mem_pool_host(kv)
    others = dict(others)
    if others:
        for name, pool in {PoolName.KV: kv, **others}.items():
            backend.register_mem_host_pool_v2(pool, name)
    backend.on_host_pools_registered()
    return backend


def storage(node, host_pool, rank=0, ranks=1, v1=True, mla=False, others=(), dcp=None, **more):
    """Cairn's, as SGLang makes it."""
    made = config(rank, ranks, mla=mla, extra=settings(node, v1, **more), **(dcp or {}))
    backend = StorageBackendFactory.create_backend("dynamic", made, host_pool)
    return registered(backend, host_pool, others)


def file_storage(folder, host_pool, rank=0, ranks=1, mla=False, others=(), dcp=None):
    """SGLang's own, which says what is right."""
    made = HiCacheFile(config(rank, ranks, mla=mla, **(dcp or {})), str(folder))
    return registered(made, host_pool, {"kv": host_pool, **dict(others)})


def hashes(seed, page, pages):
    """A chain of SGLang's own page hashes."""
    return get_hash_str(list(range(seed * 10000, seed * 10000 + pages * page)), page_size=page)
