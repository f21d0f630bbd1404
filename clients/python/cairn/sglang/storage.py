"""Pages of SGLang's host pools at a cache node."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sglang
import torch
from sglang.srt import runtime_context
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolTransferResult,
)

from cairn._engine.counters import Counters
from cairn._engine.limits import MAX_BLOCK_TOKENS
from cairn._engine.options import Options
from cairn._engine.pool_store import PoolQuestion, PoolStore
from cairn._engine.store import Store
from cairn._engine.weights import weights_revision
from cairn.sglang import compat
from cairn.sglang.lengths import find_lengths
from cairn.sglang.opened import Opened
from cairn.sglang.pages import HostPages, bytes_of
from cairn.sglang.pools import (
    ALL_PAGES,
    KV,
    Ranks,
    StoredPool,
    plain_layout,
    policy_of,
    pooled_layout,
    stored_pools,
    tails_of,
)
from cairn.types import Layout, NamespaceSpec, PoolNeed

__all__ = ["CairnStorage"]

_LOG = logging.getLogger("cairn")
_Method = TypeVar("_Method", bound=Callable[..., Any])

# The keys of SGLang in the same dictionary as our settings.
_FOREIGN = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
)
_MOST_KEYS = 65536  # In one question to a node.
_MOST_BLOCKS = 4 * _MOST_KEYS  # Over all pools.


def _guarded(otherwise: Callable[[Any], Any]) -> Callable[[_Method], _Method]:
    """An exception would end SGLang's storage thread forever, so it is counted and logged, and is a
    miss."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: CairnStorage, keys: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, keys, *args, **kwargs)
            except Exception:
                self._counters.add("internal_errors")
                _LOG.exception("cairn: %s failed, SGLang goes on without", method.__name__)
                return otherwise(keys)

        return call  # type: ignore[return-value]

    return wrap


class CairnStorage(HiCacheStorage):
    """Pages of one rank's host pools, whole, under SGLang's own page hashes (SHA-256 chains).

    Thread-safe, as SGLang queries, loads and stores in a thread each. All ranks of a
    tensor-parallel engine get the same answer: a page is there when all of them have stored their
    part.
    """

    def __init__(
        self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None
    ) -> None:
        """RuntimeError: a version of SGLang that lacks what is used. ValueError: a setting is not
        valid."""
        compat.check()
        extra = dict(storage_config.extra_config or {})
        self._zero_copy = bool(extra.get("interface_v1", 0))
        self._options = Options.read(
            {k: v for k, v in extra.items() if k not in _FOREIGN}, "extra_config."
        )
        for name, wanted in (("attn_cp_size", 1), ("should_split_heads", False)):
            if getattr(storage_config, name, wanted) != wanted:
                raise ValueError(
                    f"field '{name}': got {getattr(storage_config, name)}, expected {wanted}"
                )
        self._config = storage_config
        self._ranks = _ranks_of(storage_config)
        self._counters = Counters()
        self._lock = threading.Lock()
        self._kv: HostPages | None = None
        self._others: dict[str, HostPages] = {}
        self._opened: Opened | None = None

    # ---- the pools ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Called when the form of the KV's pages is known. ValueError: its pages cannot be
        stored."""
        super().register_mem_pool_host(mem_pool_host)
        if getattr(mem_pool_host, "shard_size", 1) > 1:
            raise ValueError(
                f"the KV is in a {type(mem_pool_host).__name__}: each page lies on one of "
                f"{mem_pool_host.shard_size} ranks, expected pages that each rank has its part of"
            )
        page_tokens = self._page_tokens()
        if page_tokens > MAX_BLOCK_TOKENS:
            raise ValueError(
                f"setting '--page-size': got {page_tokens}, expected at most {MAX_BLOCK_TOKENS}"
            )
        meta = mem_pool_host.get_page_buffer_meta(torch.arange(page_tokens))
        # Without: an anchor that only counts the tokens of other pools' pages.
        self._kv = None if meta is None else HostPages(KV, mem_pool_host, page_tokens, meta[1])
        self._revision = self._options.revision or weights_revision(self._config.model_name or "")

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Called for each pool of the model. A pool that comes when others are in use is in a
        namespace with them from then on. ValueError: its pages cannot be stored."""
        name = str(host_pool_name)
        if name == KV:
            return  # It is known as the anchor.
        pages = HostPages.found(name, host_pool)
        with self._lock:
            others = {**self._others, name: pages}
            stored_pools(self._kv, others, self._ranks)
            self._others = others
            before, self._opened = self._opened, None
        if before is not None:
            before.store.close()
            self._open()

    def on_host_pools_registered(self) -> None:
        """Called when all pools are known, by versions that have it. ValueError: they cannot be
        stored together."""
        self._open()

    def _open(self) -> Opened:
        with self._lock:
            if self._opened is None:
                if not hasattr(self, "mem_pool_host"):
                    raise RuntimeError("no host pool was registered")
                self._opened = self._new()
                self._opened.store.wait_open(2.0)
            return self._opened

    def _new(self) -> Opened:
        kv, page_tokens = self._kv, self._page_tokens()
        pools = stored_pools(kv, self._others, self._ranks)
        if not pools:
            raise ValueError(
                f"the KV is in a {type(self.mem_pool_host).__name__}, which has no bytes, and no "
                "other pool was registered"
            )
        layout: Layout
        made: type[Store] = Store
        if kv is None or self._others:
            layout = pooled_layout(self._description(()), pools, page_tokens)
            made = PoolStore
        else:
            layout = plain_layout(self._description(kv.sizes), pools[0], page_tokens)
        store = made(self._options, self._spec(layout), "sglang", self._counters)
        return Opened(store, {pool.name: pool for pool in pools}, page_tokens)

    def _page_tokens(self) -> int:
        if self._ranks.dcp_size > 1:
            return int(self._config.logical_page_size)
        return int(self.mem_pool_host.page_size)

    def _description(self, sizes: Sequence[int]) -> str:
        pool, config, ranks = self.mem_pool_host, self._config, self._ranks
        text = (
            f"sglang {type(pool).__name__} layout={pool.layout} dtype={pool.dtype} "
            f"layers={getattr(pool, 'layer_num', '?')} "
            f"head_num={getattr(pool, 'head_num', '?')} head_dim={getattr(pool, 'head_dim', '?')} "
        )
        if sizes:
            text += f"pieces={list(sizes)[:4]}x{len(sizes)} "
        text += (
            f"tp={config.tp_size} pp={config.pp_rank}/{config.pp_size} "
            f"{'v1' if self._zero_copy else 'flat'}"
        )
        if ranks.dcp_size > 1:
            text += f" dcp={ranks.dcp_size}"
        if any(getattr(one, "dtype", None) is torch.uint8 for one in self._pools()):
            text += _kinds_of_bytes()
        return text

    def _pools(self) -> list[Any]:
        return [self.mem_pool_host, *(pages.pool for pages in self._others.values())]

    def _spec(self, layout: Layout) -> NamespaceSpec:
        options = self._options
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        return NamespaceSpec(
            model=os.path.basename(os.path.normpath(self._config.model_name or "")) or "model",
            revision=self._revision,
            numerics=f"sglang {sglang.__version__} torch {torch.__version__} {where}",
            tenant=options.tenant,
            salt=options.salt.encode(),
            weight_epoch=options.weight_epoch,
            layout=layout,
            key_scheme="sglang-sha256",
        )

    # ---- queries ----

    @_guarded(lambda keys: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Pages of the KV in a row, from the first on, that all ranks can load."""
        opened = self._open()
        hashes = _hashes(keys[:_MOST_KEYS])
        if opened.pooled is None:
            found = opened.store.lookup(hashes)
            return 0 if found is None else found.matched_blocks
        if KV not in opened.pools or not hashes:
            return 0
        needs = [PoolNeed(opened.pools[KV].number)]
        size = opened.page_tokens
        there = opened.pooled.lengths(PoolQuestion(hashes, needs, size, len(hashes) * size))
        return 0 if there is None else there.restorable_tokens // size

    @_guarded(lambda key: False)
    def exists(self, key: str) -> bool:
        """Whether a page of the KV is there."""
        opened = self._open()
        return KV in opened.pools and opened.store.exists(_hashes([key]))[0]

    @_guarded(lambda keys: _result([], {}))
    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """All lengths in pages after which every pool has what its hit policy wants, the longest,
        and the longest of each pool alone.

        A pool that the policy lets stand apart (BLOCK_GROUPS) has the pages that it stands for. A
        policy that is not known is counted and logged, and nothing is found.
        """
        opened, transfers = self._open(), list(pool_transfers or ())
        tails = tails_of(transfers)
        tails.pop(KV, None)  # Every page of it is needed in any case.
        hashes = _hashes(keys[: min(_MOST_KEYS, _MOST_BLOCKS // (len(tails) + 1))])
        if opened.pooled is None:
            # The blocks of KV alone are of no pool.
            found = opened.store.lookup(hashes)
            kv_pages = 0 if found is None else found.matched_blocks
            lengths = [] if tails else list(range(1, kv_pages + 1))
            return _result(lengths, {KV: kv_pages} if kv_pages else {})
        return _result(*find_lengths(opened, opened.pooled, hashes, tails, transfers))

    # ---- pages straight from and to the host pool of the KV (interface_v1) ----

    @_guarded(lambda keys: [False] * len(keys))
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        """For each page whether it was loaded. Pages that were not have undefined bytes in the
        pool."""
        opened = self._open()
        if KV not in opened.pools:
            return [True] * len(keys)  # It has no bytes.
        return self._load(opened, opened.pools[KV], keys, host_indices)

    @_guarded(lambda keys: [False] * len(keys))
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        """For each page whether the node has it."""
        opened = self._open()
        if KV not in opened.pools:
            return [True] * len(keys)
        pool = opened.pools[KV]
        pages = pool.pages.to_store(host_indices)
        return opened.save(pool, _hashes(keys), pages, _before(extra_info), True)

    # ---- pages of any pools ----

    @_guarded(lambda transfers: _all_failed(transfers))
    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """By pool, for each page whether it was loaded. A pool that fails takes no other one with
        it. Pages that were not loaded have undefined bytes in the pool."""
        return {one.name: self._get_pool(one, extra_info) for one in transfers}

    @_guarded(lambda transfers: _all_failed(transfers))
    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """By pool, for each page whether the node has it. A pool that fails takes no other one with
        it."""
        return {one.name: self._set_pool(one, extra_info) for one in transfers}

    @_guarded(lambda transfer: [False] * len(transfer.keys or ()))
    def _get_pool(self, transfer: Any, extra_info: Any) -> list[bool]:
        opened = self._open()
        pool, keys = opened.pool_of(transfer), transfer.keys or []
        return self._load(opened, pool, keys, transfer.host_indices) if keys else []

    @_guarded(lambda transfer: [False] * len(transfer.keys or ()))
    def _set_pool(self, transfer: Any, extra_info: Any) -> list[bool]:
        opened = self._open()
        pool, keys = opened.pool_of(transfer), transfer.keys or []
        if not keys:
            return []
        pages = pool.pages.to_store(transfer.host_indices)
        # Pages of other policies need not follow each other.
        chain = policy_of(transfer) == ALL_PAGES
        return opened.save(pool, _hashes(keys), pages, _before(extra_info), chain)

    # ---- pages of the KV as flat tensors ----

    @_guarded(lambda key: None)
    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """The page in `target_location`, or None."""
        pages: list[torch.Tensor | None] = self.batch_get([key], [target_location])
        return pages[0]

    @_guarded(lambda keys: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Each page in its target, or None."""
        opened = self._open()
        if KV not in opened.pools:
            return list(target_locations)
        pages = [[bytes_of(target)] for target in target_locations]
        failed = opened.load(opened.pools[KV], _hashes(keys), pages)
        return [None if i in failed else target for i, target in enumerate(target_locations)]

    @_guarded(lambda key: False)
    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Whether the node has the page."""
        return bool(self.batch_set([key], [value]))

    @_guarded(lambda keys: False)
    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Whether the node has all pages."""
        opened = self._open()
        if KV not in opened.pools:
            return True
        pages = [[bytes_of(value.contiguous())] for value in values]
        return all(opened.save(opened.pools[KV], _hashes(keys), pages, None, True))

    # ---- the rest ----

    def clear(self) -> None:
        """Deletes nothing: other engines use the same pages. The weights' epoch is in the
        settings."""
        _LOG.error(
            "cairn: pages at the node are not deleted by SGLang; "
            "raise 'weight_epoch' to leave them behind"
        )

    def counters(self) -> dict[str, float]:
        """The counts of events since the start, by name."""
        return self._counters.totals()

    def close(self) -> None:
        """Ends the session."""
        with self._lock:
            opened = self._opened
        if opened is not None:
            opened.store.close()

    def _load(
        self, opened: Opened, pool: StoredPool, keys: list[str], host_indices: torch.Tensor
    ) -> list[bool]:
        pages = pool.pages.to_fill(host_indices)
        failed = opened.load(pool, _hashes(keys), pages)
        pool.pages.filled(host_indices, pages, failed)
        return [i not in failed for i in range(len(keys))]


def _before(extra_info: Any) -> bytes | None:
    """The hash of the page before the first one of a call, if it is told."""
    before = _hashes((getattr(extra_info, "prefix_keys", None) or [])[-1:])
    return before[0] if before else None


def _all_failed(transfers: Sequence[Any]) -> dict[str, list[bool]]:
    return {one.name: [False] * len(one.keys or ()) for one in transfers}


def _result(lengths: list[int], hits: dict[str, int]) -> PoolTransferResult:
    return PoolTransferResult(lengths[-1] if lengths else 0, hits, lengths)


def _ranks_of(config: HiCacheStorageConfig) -> Ranks:
    """Older versions know no shards of a latent KV."""
    latent = bool(config.is_mla_model)
    return Ranks(
        tp_rank=config.tp_rank,
        tp_size=config.tp_size,
        latent=latent,
        dcp_rank=getattr(config, "dcp_rank", 0),
        dcp_size=getattr(config, "dcp_size", 1),
        writer=getattr(config, "is_storage_writer", not latent or config.tp_rank == 0),
    )


def _kinds_of_bytes() -> str:
    """SGLang keeps 8-bit numbers of every kind as bytes, so that its settings alone tell the kind.
    "auto" is what the model's weights say."""
    try:
        args = runtime_context.get_server_args()
    except ValueError:
        return ""  # Without a server there is no model.
    names = ("kv_cache_dtype", "speculative_draft_kv_cache_dtype")
    return "".join(f" {name}={getattr(args, name, None)}" for name in names)


def _hashes(keys: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in keys]
