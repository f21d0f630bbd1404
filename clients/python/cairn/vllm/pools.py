"""The pools of a model's KV cache: one for each of vLLM's KV cache groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cairn._engine.limits import MAX_POOLS
from cairn.types import Pool, PoolNeed

if TYPE_CHECKING:
    from cairn.vllm.ranks import Ranks

__all__ = [
    "PoolPlan",
    "first_spec",
    "is_full_attention",
    "keeps_states",
    "layer_bytes",
    "layers_of",
    "make_pools",
    "specs_of",
    "step_of",
]


@dataclass(frozen=True)
class PoolPlan:
    """A KV cache group, which is the pool of the same number."""

    name: str
    layers: tuple[str, ...]
    block_tokens: int
    own_bytes: int
    """The bytes of each part of a block at this worker, without padding."""
    tail: int
    """After n tokens, the layers need the blocks of this many tokens before n. 0: all of them."""
    proof_blocks: int = 0
    """And this many blocks after n must be at the node, which are not loaded. For a draft's layers,
    whose KV depends on the next token."""
    page_bytes: int = 0
    """From a block of a layer to its next one in the engine's memory, if padding is between them.
    0: there is none."""
    most_bytes: int = 0
    """The bytes of a part at any worker, at most. 0: `own_bytes`."""
    states: bool = False
    """A block is a checkpoint of the layers' states after its last token. vLLM says which of its
    blocks has it, and when."""

    @property
    def part_bytes(self) -> int:
        """The bytes of a part at any worker, at most."""
        return self.most_bytes or self.own_bytes

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
        """Its place in the layout. `parts`: of a block, which ranks share."""
        return Pool(self.name, self.block_tokens, self.part_bytes, parts, self.chained)

    def need(self, number: int) -> PoolNeed:
        """For a load, which needs no proof again."""
        return PoolNeed(number, self.tail)

    def proven_need(self, number: int) -> PoolNeed:
        """For the question of a match."""
        return PoolNeed(number, self.tail, self.proof_blocks)


def specs_of(group: Any) -> Sequence[Any]:
    """Those that are known of a group's layers, the first layer's first. Blocks may be of different
    sizes, such as a draft's next to the target's: then workers are told all of them, and the
    scheduler only the first one."""
    spec = group.kv_cache_spec
    by_layer = getattr(spec, "kv_cache_specs", None)
    return [spec] if by_layer is None else [by_layer[name] for name in group.layer_names]


def first_spec(group: Any) -> Any:
    """The spec of a group's first layer, which vLLM tells scheduler and workers alike."""
    return specs_of(group)[0]


def keeps_states(group: Any) -> bool:
    """Whether all layers keep a state instead of KV."""
    from vllm.v1.kv_cache_interface import MambaSpec

    return all(type(spec) is MambaSpec for spec in specs_of(group))


def layer_bytes(group: Any, kv_cache_config: Any, columns: int) -> list[int]:
    """The bytes of each of the worker's `columns` parts of a block, by layer of a group, without
    the padding after a state.

    Scheduler and workers must find the same, so layers of other sizes than the first one's are
    known by their distances in memory, which grow as their blocks do.
    """
    strides = {
        name: tensor.layer_stride
        for tensor in kv_cache_config.kv_cache_tensors
        for name in tensor.layers
    }
    first = first_spec(group)
    size = first.state_content_size_bytes if keeps_states(group) else first.page_size_bytes
    own = [strides.get(name, 1) for name in group.layer_names]
    return [size * stride // own[0] // columns for stride in own]


def is_full_attention(group: Any) -> bool:
    """Whether all layers need all tokens before."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    return all(type(spec) in (FullAttentionSpec, MLAAttentionSpec) for spec in specs_of(group))


def make_pools(kv_cache_config: Any, proofs: Sequence[bool], ranks: Ranks) -> tuple[PoolPlan, ...]:
    """`proofs`: by group, whether its blocks need a proof.

    ValueError: groups of which it is not known what their layers need.
    """
    groups = kv_cache_config.kv_cache_groups
    kinds = [kind for group in groups if (kind := _kind(group)) is not None]
    if not kinds or len(kinds) < len(groups):
        # A group should have one kind of layers.
        names = (sorted({type(spec).__name__ for spec in specs_of(group)}) for group in groups)
        raise ValueError(
            f"the model's KV cache groups are {', '.join(' and '.join(name) for name in names)}, "
            "expected full attention, sliding windows and states"
        )
    if len(groups) > MAX_POOLS:
        raise ValueError(
            f"the model has {len(groups)} KV cache groups, expected at most {MAX_POOLS}"
        )
    pools = []
    for number, (group, (name, tail)) in enumerate(zip(groups, kinds)):
        states = keeps_states(group)
        sizes = layer_bytes(group, kv_cache_config, ranks.columns)
        pools.append(
            PoolPlan(
                name=f"group{number}_{name}",
                layers=tuple(group.layer_names),
                block_tokens=group.kv_cache_spec.block_size,
                own_bytes=sum(sizes),
                tail=tail,
                proof_blocks=int(proofs[number]),
                page_bytes=first_spec(group).page_size_bytes if states else 0,
                most_bytes=ranks.most_bytes(sizes[0], sum(sizes)),
                states=states,
            )
        )
    return tuple(pools)


def _kind(group: Any) -> tuple[str, int] | None:
    """The name of what the layers of a group keep, and the length of the tail that they need. None:
    it is not known what they need."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    specs = specs_of(group)
    if is_full_attention(group):
        return "full", 0
    if keeps_states(group):
        return "state", 1
    if any(type(spec) is not SlidingWindowSpec for spec in specs):
        return None
    window = max(spec.sliding_window for spec in specs)
    # A window of one token needs nothing before it, which no question can say.
    tail = max(1, window - 1 + max(spec.extra_retained_tokens for spec in specs))
    return f"window_{window}", tail


def layers_of(pool: PoolPlan, kv_caches: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a pool's layers. ValueError: one is not there."""
    missing = [name for name in pool.layers if name not in kv_caches]
    if missing:
        raise ValueError(f"the engine has no KV cache of '{missing[0]}', which '{pool.name}' has")
    return {name: kv_caches[name] for name in pool.layers}


def step_of(pools: Collection[PoolPlan]) -> int:
    """vLLM takes only multiples of this many tokens from a connector."""
    return math.lcm(*(pool.block_tokens for pool in pools))
