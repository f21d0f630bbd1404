"""One store for engines with different numbers of tensor ranks.

The setting `store_tp` says into how many parts a block is cut by its heads. Each worker has some of
them:

    store_tp 4      part      0      1      2      3
                    heads     0, 1   2, 3   4, 5   6, 7
    tensor 1        worker    0      0      0      0
    tensor 2        worker    0      0      1      1
    tensor 4        worker    0      1      2      3

Only where the heads of a block are runs of bytes that do not depend on how many heads a worker has:
attention whose pages hold keys and values alone, heads outside of tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cairn.vllm.drafts import has_draft_kv
from cairn.vllm.pools import keeps_states, specs_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["columns_of", "heads_of_column", "spec_of_column"]

# Heads outside of tokens.
_LAYOUTS = ("LBHNC", "BLHNC")


def columns_of(
    setting: str,
    store_tp: int,
    shards: int,
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
) -> int:
    """How many parts a worker has. `shards`: workers of different heads. `setting`: its whole name.

    ValueError: parts that would not be the same with another number of ranks.
    """
    got = f"setting '{setting}': got {store_tp}"
    if has_draft_kv(vllm_config):
        raise ValueError(f"{got}, expected 0, since the KV of a draft is cut in another way")
    heads = vllm_config.model_config.get_total_num_kv_heads()
    groups = kv_cache_config.kv_cache_groups
    mla = all(_is_mla(spec) for group in groups for spec in specs_of(group))
    if shards > (1 if mla else heads):
        raise ValueError(
            f"{got}, expected 0: {shards} ranks store parts of a block, "
            f"and the model has {1 if mla else heads} KV heads"
        )
    for number, group in enumerate(groups):
        if keeps_states(group):
            raise ValueError(
                f"{got}, expected 0: layers of KV cache group {number} keep a state, "
                "which ranks cut in another way than by heads"
            )
        for spec in specs_of(group):
            total = spec.num_kv_heads * shards
            if store_tp % shards or total % store_tp:
                raise ValueError(
                    f"{got}, expected a multiple of {shards}, which are the parts that ranks "
                    f"have, and a divisor of {total}, which are the model's KV heads"
                )
            _check_page(got, spec)
    columns = store_tp // shards
    if columns > 1 and kv_cache_config.kv_cache_layout not in _LAYOUTS:
        raise ValueError(
            f"{got}, expected {shards}: pages are in the order "
            f"{kv_cache_config.kv_cache_layout}, and have a part's heads together "
            f"in {' and '.join(_LAYOUTS)} alone"
        )
    return columns


def _is_mla(spec: Any) -> bool:
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    return isinstance(spec, MLAAttentionSpec)


def _check_page(got: str, spec: Any) -> None:
    """A page must have nothing but the numbers of its heads, each head's together: no scales, and
    keys not apart from values."""
    if _is_mla(spec):
        return
    slots = getattr(spec, "num_head_slots", None)
    if slots not in (None, spec.num_kv_heads):
        raise ValueError(
            f"{got}, expected 0: a block of a layer has {slots} places for {spec.num_kv_heads} "
            "heads"
        )
    head_size_v = getattr(spec, "head_size_v", spec.head_size)
    numbers = spec.block_size * spec.num_kv_heads * (spec.head_size + head_size_v)
    if spec.page_size_bytes not in (numbers, 2 * numbers, 4 * numbers):
        raise ValueError(
            f"{got}, expected 0: a block of a layer has {spec.page_size_bytes} bytes, "
            f"and its {numbers} keys and values would have 1, 2 or 4 each"
        )


def spec_of_column(spec: Any, columns: int) -> Any:
    """A layer's KV as one part has it, which is the same with any number of ranks."""
    if columns == 1:
        return spec
    return dataclasses.replace(spec, num_kv_heads=spec.num_kv_heads // columns)


def heads_of_column(kv_caches: Mapping[str, Any], column: int, columns: int) -> Mapping[str, Any]:
    """The tensors of a worker's part `column` of `columns`, by layer. ValueError: tensors whose
    second axis is not that of heads."""
    if columns == 1:
        return kv_caches
    own = {}
    for name, cache in kv_caches.items():
        shape = tuple(cache.shape)
        if len(shape) < 3 or shape[1] % columns:
            raise ValueError(
                f"the KV cache of '{name}' has shape {shape}, expected heads in the second axis, "
                f"a multiple of {columns}"
            )
        heads = shape[1] // columns
        own[name] = cache.narrow(1, column * heads, heads)
    return own
