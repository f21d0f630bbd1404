"""The pools of a model's KV cache: one for each of vLLM's KV cache groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.types import Pool, PoolNeed

__all__ = [
    "MAX_POOLS",
    "PoolPlan",
    "first_spec",
    "is_full_attention",
    "layer_bytes",
    "layers_of",
    "make_pools",
    "step_of",
]

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
    proof_blocks: int = 0
    """And this many blocks after n must be at the node, which are not loaded. For a draft's layers,
    whose KV depends on the next token."""

    @property
    def chained(self) -> bool:
        """Blocks are of use only with all blocks before them."""
        return self.tail == 0

    @property
    def proof_tokens(self) -> int:
        """The length of the proof."""
        return self.proof_blocks * self.block_tokens

    def needed(self, tokens: int) -> range:
        """The blocks of a prompt that the node must have to go on after `tokens` tokens."""
        begin = 0 if self.chained else max(0, tokens - self.tail)
        end = -(-tokens // self.block_tokens) + self.proof_blocks
        return range(begin // self.block_tokens, end)

    def pool(self, parts: int) -> Pool:
        """Its place in the layout. `parts`: ranks, each of which stores its own."""
        return Pool(self.name, self.block_tokens, self.block_bytes, parts, self.chained)

    def need(self, number: int) -> PoolNeed:
        """For a load, which needs no proof again."""
        return PoolNeed(number, self.tail)

    def proven_need(self, number: int) -> PoolNeed:
        """For the question of a match."""
        return PoolNeed(number, self.tail, self.proof_blocks)


def _specs(group: Any) -> Sequence[Any]:
    """Those that are known of a group's layers, the first layer's first. Blocks may be of different
    sizes, such as a draft's next to the target's: then workers are told all of them, and the
    scheduler only the first one."""
    spec = group.kv_cache_spec
    by_layer = getattr(spec, "kv_cache_specs", None)
    return [spec] if by_layer is None else [by_layer[name] for name in group.layer_names]


def first_spec(group: Any) -> Any:
    """The spec of a group's first layer, which vLLM tells scheduler and workers alike."""
    return _specs(group)[0]


def layer_bytes(group: Any, kv_cache_config: Any) -> list[int]:
    """The bytes of a block in each layer of a group, on each rank.

    Scheduler and workers must find the same, so layers of other sizes than the first one's are
    known by their distances in memory, which grow as their blocks do.
    """
    strides = {
        name: tensor.layer_stride
        for tensor in kv_cache_config.kv_cache_tensors
        for name in tensor.layers
    }
    size = first_spec(group).page_size_bytes
    own = [strides.get(name, 1) for name in group.layer_names]
    return [size * stride // own[0] for stride in own]


def is_full_attention(group: Any) -> bool:
    """Whether all layers need all tokens before."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    return all(type(spec) in (FullAttentionSpec, MLAAttentionSpec) for spec in _specs(group))


def make_pools(kv_cache_config: Any, proofs: Sequence[bool]) -> tuple[PoolPlan, ...]:
    """`proofs`: by group, whether its blocks need a proof.

    ValueError: groups of which it is not known what their layers need.
    """
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    groups = kv_cache_config.kv_cache_groups
    # The kinds of layers by group, of which a group should have one.
    kinds = [
        sorted({type(spec) for spec in _specs(group)}, key=lambda kind: kind.__name__)
        for group in groups
    ]
    flat = [kind for group in kinds for kind in group]
    names = ", ".join(" and ".join(kind.__name__ for kind in group) for group in kinds)
    got = f"the model's KV cache groups are {names}, expected "
    if MambaSpec in flat:
        raise ValueError(
            f"{got}full attention and sliding windows: layers that keep a state are stored by the "
            "tier (CairnTier), not by the connector"
        )
    full = {FullAttentionSpec, MLAAttentionSpec}
    if not kinds or any(not (set(kind) <= full or kind == [SlidingWindowSpec]) for kind in kinds):
        raise ValueError(f"{got}full attention and sliding windows")
    if len(groups) > MAX_POOLS:
        raise ValueError(
            f"the model has {len(groups)} KV cache groups, expected at most {MAX_POOLS}"
        )
    pools = []
    for number, group in enumerate(groups):
        window, tail = None, 0
        if kinds[number] == [SlidingWindowSpec]:
            specs = _specs(group)
            window = max(spec.sliding_window for spec in specs)
            # A window of one token needs nothing before it, which no question can say.
            tail = max(1, window - 1 + max(spec.extra_retained_tokens for spec in specs))
        pools.append(
            PoolPlan(
                name=f"group{number}_" + ("full" if window is None else f"window_{window}"),
                layers=tuple(group.layer_names),
                block_tokens=group.kv_cache_spec.block_size,
                block_bytes=sum(layer_bytes(group, kv_cache_config)),
                tail=tail,
                proof_blocks=int(proofs[number]),
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
