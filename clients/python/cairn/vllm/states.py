"""Layers that keep a state instead of KV: Mamba, gated delta nets, short convolutions.

A state has taken in all tokens before it, so a prompt can go on only where a checkpoint of it is.
vLLM makes one where a step ends at the end of a block, and hands it over in that step:

    tokens   0 ......... 544 ........ 1088 ....... 1632 .. 1700
    KV       [          ][           ][           ][            a block for each 544 tokens
    states                             S           S            after steps of 1088, 544 and 68

Later the block may have another state, so its place in the block table says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn.vllm.metadata import NO_BLOCK
from cairn.vllm.pools import keeps_states, specs_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["Checkpoint", "check_states", "checkpoints"]


class Checkpoint(NamedTuple):
    """The states of all layers after a prompt's first `tokens` tokens."""

    tokens: int
    blocks: Mapping[int, int]
    """The engine's block by pool."""


def checkpoints(
    offers: Iterable[tuple[int, int, int]], pools: Collection[int], step: int
) -> list[Checkpoint]:
    """The checkpoints among what vLLM hands over of one request, in the order of their lengths.

    `offers`: KV cache group, block and number of tokens. `pools`: all that keep states. A
    checkpoint of some of them restores nothing, and neither does one whose length is no multiple of
    `step`.
    """
    found: dict[int, dict[int, int]] = {}
    for pool, block, tokens in offers:
        if tokens > 0 and tokens % step == 0 and block != NO_BLOCK:
            found.setdefault(tokens, {})[pool] = block
    return [
        Checkpoint(tokens, blocks)
        for tokens, blocks in sorted(found.items())
        if blocks.keys() == set(pools)
    ]


def check_states(vllm_config: VllmConfig, groups: Sequence[Any]) -> None:
    """ValueError: a setting with which vLLM hands over no checkpoints, or of which it is not known
    that their blocks have them."""
    states = [spec for group in groups if keeps_states(group) for spec in specs_of(group)]
    if not states:
        return
    cache, speculative = vllm_config.cache_config, vllm_config.speculative_config
    layers = "for a model whose layers keep a state"
    if not cache.enable_prefix_caching:
        raise ValueError(
            f"setting 'enable_prefix_caching': got false {layers}, expected true, since vLLM "
            "keeps no state at the ends of blocks without it: start it with "
            "--enable-prefix-caching"
        )
    for spec in states:
        if spec.mamba_cache_mode != "align":
            raise ValueError(
                f"setting 'mamba_cache_mode': got '{spec.mamba_cache_mode}' {layers}, expected "
                "'align', the mode in which vLLM hands over states"
            )
    if speculative is not None:
        raise ValueError(
            f"setting 'speculative_config.method': got '{speculative.method}' {layers}, expected "
            "none: vLLM then moves states from block to block after a step, and it is not shown "
            "that a block has its state when vLLM hands it over"
        )
    if getattr(cache, "use_replayssm", False):
        raise ValueError(
            f"setting 'use_replayssm': got true {layers}, expected false, since a state may then "
            "wait for tokens that are kept elsewhere"
        )
