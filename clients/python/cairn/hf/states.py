"""The states that layers keep in place of keys and values, and their bytes.

A checkpoint has the states of all layers after some token, one after the other, each from a
multiple of 16 bytes on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, LinearAttentionLayer

__all__ = ["KeptState", "checkpoint_bytes", "checkpoint_of", "restore_states", "states_of"]

_ALIGNED = 16


@dataclasses.dataclass(frozen=True)
class KeptState:
    """One tensor that a layer replaces with each token."""

    layer: int
    number: int
    """A layer may have several."""
    recurrent: bool
    """False: the last inputs of a convolution."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    begin: int
    """Its first byte in a checkpoint."""

    @property
    def end(self) -> int:
        """The byte behind its last one."""
        return self.begin + math.prod(self.shape) * self.dtype.itemsize

    def of(self, cache: Cache) -> torch.Tensor:
        """It, as the cache has it now. ValueError: it has another form."""
        layer: Any = cache.layers[self.layer]
        states = layer.recurrent_states if self.recurrent else layer.conv_states
        tensor: torch.Tensor = states[self.number]
        if tuple(tensor.shape) != self.shape or tensor.dtype != self.dtype:
            raise ValueError(
                f"layer {self.layer} has a state of shape {tuple(tensor.shape)} {tensor.dtype}, "
                f"expected {self.shape} {self.dtype}"
            )
        return tensor

    def bytes_in(self, checkpoint: torch.Tensor) -> torch.Tensor:
        """Its place in a checkpoint, as a tensor of its form."""
        return checkpoint[self.begin : self.end].view(self.dtype).view(self.shape)


def states_of(cache: Cache) -> list[KeptState]:
    """The states of a cache that one token went through."""
    states: list[KeptState] = []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, LinearAttentionLayer):
            continue
        for number in range(layer.number_of_states):
            for recurrent, tensor in (
                (False, layer.conv_states[number]),
                (True, layer.recurrent_states[number]),
            ):
                if tensor is not None:
                    begin = -(-states[-1].end // _ALIGNED) * _ALIGNED if states else 0
                    facts = (tuple(tensor.shape), tensor.dtype, tensor.device)
                    states.append(KeptState(index, number, recurrent, *facts, begin))
    return states


def checkpoint_bytes(states: Sequence[KeptState]) -> int:
    """The bytes of all of them."""
    return states[-1].end


def checkpoint_of(cache: Cache, states: Sequence[KeptState]) -> torch.Tensor:
    """A copy in host memory of what the cache has now, as bytes."""
    checkpoint = torch.zeros(checkpoint_bytes(states), dtype=torch.uint8)
    for state in states:
        state.bytes_in(checkpoint).copy_(state.of(cache))
    return checkpoint


def restore_states(cache: Cache, states: Sequence[KeptState], checkpoint: torch.Tensor) -> None:
    """Makes the states of an empty cache those of the checkpoint."""
    for state in states:
        layer: Any = cache.layers[state.layer]
        tensor = state.bytes_in(checkpoint).to(state.device)
        if state.recurrent:
            layer.update_recurrent_state(tensor, state_idx=state.number)
        else:
            layer.update_conv_state(tensor, state_idx=state.number)
        layer.has_previous_state[state.number] = True
