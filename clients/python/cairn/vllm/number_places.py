"""Where the numbers of K and V lie in an engine's pages, proved: known numbers are written by the
engine's own operation, and then looked for in the pages' memory. Needs no torch.

Axes of a tensor do not show it. With two KV heads, two layouts have one shape; a kernel may pack
keys in an order of its own; and what a name of a layout means changes with the engine's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["LayerPlace", "NumberPlaces", "PageAccess", "PlaneShape", "find_numbers"]

_BASE = 256  # bfloat16 and half precision have all whole numbers up to it.


class PlaneShape(NamedTuple):
    """The shape of one block in one layer. There are as many heads of keys as of values."""

    heads: int
    k_dim: int
    v_dim: int
    tokens: int


class PageAccess(Protocol):
    """An engine's pages, of one type of number with 2 bytes."""

    def write(
        self, layer: str, block: int, keys: NDArray[np.float32], values: NDArray[np.float32]
    ) -> None:
        """By the engine's own operation, as if the tokens of the block had them: [tokens, heads,
        dim]."""

    def read(self, layer: str, block: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """All numbers of the block in the layer: their addresses, and what they are now."""


class LayerPlace(NamedTuple):
    """Addresses of the first key and value of block 0, and the bytes from one block to the next."""

    k: int
    v: int
    block_stride: int


class NumberPlaces(NamedTuple):
    """Number d of token n of head h of block b lies at the layer's address + b * block_stride + 2 *
    (h * strides[0] + n * strides[1] + d)."""

    layers: list[LayerPlace]
    k_strides: tuple[int, int]
    v_strides: tuple[int, int]


class _Plane(NamedTuple):
    address: int
    strides: tuple[int, int]


def find_numbers(
    pages: PageAccess, layers: Sequence[str], blocks: int, shape: PlaneShape
) -> NumberPlaces:
    """Writes into the first and the last block of each layer, which are zeros afterwards.

    ValueError: numbers that do not lie as `NumberPlaces` says, with the layer and what was found
    there.
    """
    if not layers or blocks < 1:
        raise ValueError(f"got {len(layers)} layers of {blocks} blocks, expected 1 or more of both")
    places: list[LayerPlace] = []
    strides: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    for layer in layers:
        k, v = _planes(pages, layer, 0, shape)
        last = blocks - 1
        stride = 2 * shape.heads * shape.tokens * (shape.k_dim + shape.v_dim)
        if last:
            last_k, last_v = _planes(pages, layer, last, shape)
            stride = (last_k.address - k.address) // last
            moved = _Plane(k.address + last * stride, k.strides)
            if (
                stride <= 0
                or last_k != moved
                or last_v != _Plane(v.address + last * stride, v.strides)
            ):
                raise ValueError(
                    f"layer '{layer}': its block {last} does not lie as block 0 does, "
                    "expected blocks at equal distances"
                )
        places.append(LayerPlace(k.address, v.address, stride))
        strides.add((k.strides, v.strides))
    if len(strides) != 1:
        raise ValueError(f"layers lie in {len(strides)} different ways, expected one")
    [(k_strides, v_strides)] = strides
    return NumberPlaces(places, k_strides, v_strides)


def _planes(pages: PageAccess, layer: str, block: int, shape: PlaneShape) -> tuple[_Plane, _Plane]:
    k_count = shape.heads * shape.tokens * shape.k_dim
    count = k_count + shape.heads * shape.tokens * shape.v_dim
    address = _addresses(pages, layer, block, shape, count)
    return (
        _plane(layer, "keys", address[:k_count].reshape(shape.heads, shape.tokens, shape.k_dim)),
        _plane(layer, "values", address[k_count:].reshape(shape.heads, shape.tokens, shape.v_dim)),
    )


def _addresses(
    pages: PageAccess, layer: str, block: int, shape: PlaneShape, count: int
) -> NDArray[np.int64]:
    """First the numbers of all keys, [heads][tokens][dim], and then those of all values.

    Each gets a number of its own, one digit after another: a digit is exact in 2 bytes.
    """

    def write(numbers: NDArray[np.float32]) -> None:
        split = shape.heads * shape.tokens * shape.k_dim
        keys = numbers[:split].reshape(shape.heads, shape.tokens, shape.k_dim)
        values = numbers[split:].reshape(shape.heads, shape.tokens, shape.v_dim)
        pages.write(
            layer,
            block,
            np.ascontiguousarray(keys.transpose(1, 0, 2)),
            np.ascontiguousarray(values.transpose(1, 0, 2)),
        )

    wanted: NDArray[np.int64] = np.arange(count, dtype=np.int64)
    found, places, weight = None, None, 1
    while weight < count:
        write(((wanted // weight) % _BASE + 1).astype(np.float32))
        places, numbers = pages.read(layer, block)
        digits = numbers.astype(np.int64) - 1
        strange = (digits + 1 != numbers) | (digits < 0) | (digits >= _BASE)
        if len(numbers) != count or strange.any():
            raise ValueError(
                f"layer '{layer}': a block has {len(numbers)} numbers, "
                f"{int(strange.sum())} of them none that the engine was given, "
                f"expected {count} as they were given"
            )
        found = digits * weight + (0 if found is None else found)
        weight *= _BASE
    write(np.zeros(count, np.float32))
    assert found is not None and places is not None
    order = np.argsort(found, kind="stable")
    if not np.array_equal(found[order], wanted):
        raise ValueError(
            f"layer '{layer}': some keys and values are twice in a block's memory, others nowhere"
        )
    return places[order]


def _plane(layer: str, kind: str, address: NDArray[np.int64]) -> _Plane:
    """`address`: [heads][tokens][dim]."""
    heads, tokens, dim = address.shape
    first = int(address[0, 0, 0])
    token = int(address[0, 1, 0]) - first if tokens > 1 else 2 * dim
    head = int(address[1, 0, 0]) - first if heads > 1 else token * tokens
    expected = (
        first
        + head * np.arange(heads)[:, None, None]
        + token * np.arange(tokens)[None, :, None]
        + 2 * np.arange(dim)[None, None, :]
    )
    if token <= 0 or head <= 0 or not np.array_equal(address, expected):
        raise ValueError(
            f"layer '{layer}': the engine packs {kind} in an order of its own, "
            "expected the numbers of a token's head next to each other, "
            "and tokens and heads at equal distances"
        )
    return _Plane(first, (head // 2, token // 2))
