"""The pools of a model's KV cache: one for each of vLLM's KV cache groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.types import Pool, PoolNeed

__all__ = ["MAX_POOLS", "PoolPlan", "layers_of", "make_pools", "step_of"]

MAX_POOLS = 32  # In a layout.


@dataclass(frozen=True)
class PoolPlan:
    """A KV cache group, which is the pool of the same number."""

    name: str
    layers: tuple[str, ...]
    block_tokens: int
    block_bytes: int
    """On each rank."""
    tail: int
    """After n tokens, the layers need this many tokens before n. 0: all of them."""

    @property
    def chained(self) -> bool:
        """Blocks are of use only with all blocks before them."""
        return self.tail == 0

    def needed(self, tokens: int) -> range:
        """The blocks of a prompt that the layers need to go on after `tokens` tokens."""
        begin = 0 if self.chained else max(0, tokens - self.tail)
        return range(begin // self.block_tokens, -(-tokens // self.block_tokens))

    def pool(self, parts: int) -> Pool:
        """Its place in the layout. `parts`: ranks, each of which stores its own."""
        return Pool(self.name, self.block_tokens, self.block_bytes, parts, self.chained)

    def need(self, number: int) -> PoolNeed:
        """For the question of a match."""
        return PoolNeed(number, self.tail)


def make_pools(groups: Sequence[Any]) -> tuple[PoolPlan, ...]:
    """ValueError: groups of which it is not known what their layers need."""
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    kinds = [type(group.kv_cache_spec) for group in groups]
    names = ", ".join(kind.__name__ for kind in kinds)
    got = f"the model's KV cache groups are {names}, expected "
    if MambaSpec in kinds:
        raise ValueError(
            f"{got}full attention and sliding windows: layers that keep a state are stored by the "
            "tier (CairnTier), not by the connector"
        )
    if not kinds or any(
        kind not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec) for kind in kinds
    ):
        raise ValueError(f"{got}full attention and sliding windows")
    if len(groups) > MAX_POOLS:
        raise ValueError(
            f"the model has {len(groups)} KV cache groups, expected at most {MAX_POOLS}"
        )
    pools = []
    for number, group in enumerate(groups):
        spec = group.kv_cache_spec
        window = (
            getattr(spec, "sliding_window", None) if kinds[number] is SlidingWindowSpec else None
        )
        # A window of one token needs nothing before it, which no question can say.
        tail = 0 if window is None else max(1, window - 1 + spec.extra_retained_tokens)
        pools.append(
            PoolPlan(
                name=f"group{number}_" + ("full" if window is None else f"window_{window}"),
                layers=tuple(group.layer_names),
                block_tokens=spec.block_size,
                block_bytes=spec.page_size_bytes * len(group.layer_names),
                tail=tail,
            )
        )
    return tuple(pools)


def layers_of(pool: PoolPlan, kv_caches: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a pool's layers. ValueError: one is not there."""
    missing = [name for name in pool.layers if name not in kv_caches]
    if missing:
        raise ValueError(f"the engine has no KV cache of '{missing[0]}', which '{pool.name}' has")
    return {name: kv_caches[name] for name in pool.layers}


def step_of(pools: Collection[PoolPlan]) -> int:
    """vLLM takes only multiples of this many tokens from a connector."""
    return math.lcm(*(pool.block_tokens for pool in pools))
