"""Pages of SGLang's host pools at a cache node."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig

from cairn._engine.memory import memory_at
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn._engine.weights import weights_revision
from cairn.sglang import compat
from cairn.types import Memory, NamespaceSpec, OpaqueLayout, Part, Rect

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
_MAX_PAGE_TOKENS = 65535
_MAX_PART = 64 << 20


def _guarded(otherwise: Callable[[Sequence[Any]], Any]) -> Callable[[_Method], _Method]:
    """An exception would end SGLang's storage thread forever, so it is counted and logged, and is a
    miss."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: CairnStorage, keys: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, keys, *args, **kwargs)
            except Exception:
                if self._store is not None:
                    self._store.counters.add("internal_errors")
                _LOG.exception("cairn: %s failed, SGLang goes on without", method.__name__)
                return otherwise(keys)

        return call  # type: ignore[return-value]

    return wrap


class CairnStorage(HiCacheStorage):
    """Pages of one rank's host pool, whole, under SGLang's own page hashes (SHA-256 chains).

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
        for name, wanted in (("attn_cp_size", 1), ("dcp_size", 1), ("should_split_heads", False)):
            if getattr(storage_config, name, wanted) != wanted:
                raise ValueError(
                    f"field '{name}': got {getattr(storage_config, name)}, expected {wanted}"
                )
        self._config = storage_config
        ranks = 1 if storage_config.is_mla_model else storage_config.tp_size
        rank = 0 if storage_config.is_mla_model else storage_config.tp_rank
        self._parts, self._rect = ranks, Rect(0, 1, rank, rank + 1)
        self._store: Store | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Called when the form of pages is known. ValueError: its pages cannot be stored."""
        super().register_mem_pool_host(mem_pool_host)
        page_tokens = mem_pool_host.page_size
        if page_tokens > _MAX_PAGE_TOKENS:
            raise ValueError(
                f"setting '--page-size': got {page_tokens}, expected at most {_MAX_PAGE_TOKENS}"
            )
        _, sizes = mem_pool_host.get_page_buffer_meta(torch.arange(page_tokens))
        if sum(sizes) > _MAX_PART:
            raise ValueError(
                f"setting '--page-size': a page of {page_tokens} tokens has {sum(sizes)} bytes, "
                f"expected at most {_MAX_PART}"
            )
        self._page_tokens, self._page_bytes = page_tokens, sum(sizes)
        self._store = Store(self._options, self._spec(mem_pool_host, sizes), "sglang")
        self._store.wait_open(2.0)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """ValueError: a model with state in addition to its KV, which would be incomplete without
        it."""
        if str(host_pool_name) != "kv":
            raise ValueError(
                f"the model keeps a pool '{host_pool_name}' in addition to its KV, expected none"
            )

    def _spec(self, pool: Any, sizes: Sequence[int]) -> NamespaceSpec:
        config, options = self._config, self._options
        model = config.model_name or ""
        revision = options.revision or weights_revision(model)
        layout = (
            f"sglang {type(pool).__name__} layout={pool.layout} dtype={pool.dtype} "
            f"layers={getattr(pool, 'layer_num', '?')} "
            f"head_num={getattr(pool, 'head_num', '?')} head_dim={getattr(pool, 'head_dim', '?')} "
            f"pieces={list(sizes)[:4]}x{len(sizes)} "
            f"tp={config.tp_size} pp={config.pp_rank}/{config.pp_size} "
            f"{'v1' if self._zero_copy else 'flat'}"
        )
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        return NamespaceSpec(
            model=os.path.basename(os.path.normpath(model)) or "model",
            revision=revision,
            numerics=f"sglang {sglang.__version__} torch {torch.__version__} {where}",
            tenant=options.tenant,
            salt=options.salt.encode(),
            weight_epoch=options.weight_epoch,
            layout=OpaqueLayout(
                layout,
                max_part_bytes=self._page_bytes,
                parts=self._parts,
                block_tokens=self._page_tokens,
            ),
            key_scheme="sglang-sha256",
        )

    # ---- queries ----

    @_guarded(lambda keys: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Pages in a row, from the first on, that all ranks can load."""
        found = self._pool_store().lookup(_keys(keys))
        return 0 if found is None else found.matched_blocks

    @_guarded(lambda key: False)
    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self._pool_store().exists(_keys([key]))[0]

    # ---- pages straight from and to the host pool (interface_v1) ----

    @_guarded(lambda keys: [False] * len(keys))
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        """For each page whether it was loaded. Pages that were not have undefined bytes in the
        pool."""
        failed = self._pool_store().load_any(_keys(keys), self._pages(host_indices), self._rect)
        return [i not in failed for i in range(len(keys))]

    @_guarded(lambda keys: [False] * len(keys))
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        """For each page whether the node has it."""
        return self._save(keys, self._pages(host_indices), extra_info)

    # ---- pages as flat tensors ----

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
        failed = self._pool_store().load_any(
            _keys(keys), [_bytes_of(target) for target in target_locations], self._rect
        )
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
        return all(self._save(keys, [_bytes_of(value.contiguous()) for value in values], None))

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
        return {} if self._store is None else self._store.counters.totals()

    def close(self) -> None:
        """Ends the session."""
        if self._store is not None:
            self._store.close()

    def _pool_store(self) -> Store:
        if self._store is None:
            raise RuntimeError("no host pool was registered")
        return self._store

    def _pages(self, host_indices: torch.Tensor) -> list[Memory]:
        """The pool's memory, page by page: one piece or several."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        pages = len(host_indices) // self._page_tokens
        pieces = [memory_at(address, size) for address, size in zip(addresses, sizes)]
        each = len(pieces) // pages
        return [pieces[i * each : (i + 1) * each] for i in range(pages)]

    def _save(self, keys: list[str], pages: Sequence[Memory], extra_info: Any) -> list[bool]:
        own = _keys(keys)
        before = _keys((getattr(extra_info, "prefix_keys", None) or [])[-1:])
        parents: list[bytes | None] = [before[0] if before else None, *own]
        parts = [
            Part(key, page, parent=parent, rect=self._rect)
            for key, page, parent in zip(own, pages, parents)
        ]
        return self._pool_store().save(parts, [self._page_bytes] * len(parts))


def _keys(keys: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in keys]


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.uint8).numpy()
