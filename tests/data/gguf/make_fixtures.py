#!/usr/bin/env python3
"""Writes dequantise.bin: random blocks of every weight type and their numbers as the `gguf` package
decodes them.

Usage: make_fixtures.py [--output DIR]       (needs the Python packages gguf 0.19 and numpy)

Format, little-endian: per type a record of
    8 bytes name, padded with zeros; u32 number of blocks; u32 numbers per block; u32 bytes per
    block; the blocks; the numbers as float32.
"""

import argparse
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Type -> offsets of its float16 scales within a block.
SCALES = {
    Type.F32: [],
    Type.F16: [],
    Type.BF16: [],
    Type.Q8_0: [0],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
}


def random_half(rng: np.random.Generator, n: int) -> np.ndarray:
    """Finite float16 of both signs over the whole range, subnormals included."""
    bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    bits = np.where((bits >> 10 & 31) == 31, bits & 0xBFFF, bits)
    return bits.astype(np.uint16)


def random_blocks(rng: np.random.Generator, kind: Type, count: int) -> np.ndarray:
    size = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in SCALES[kind]:
        blocks[:, offset : offset + 2] = random_half(rng, count)[:, None].view(np.uint8)
    if kind == Type.F16:
        blocks = random_half(rng, count)[:, None].view(np.uint8)
    if kind in (Type.F32, Type.BF16):  # No NaN: their payloads are not compared.
        top = blocks[:, -1]
        blocks[:, -1] = np.where(top & 0x7F == 0x7F, top & 0xBF, top)
    return np.ascontiguousarray(blocks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    args = parser.parse_args()
    rng = np.random.default_rng(20240601)
    with open(args.output / "dequantise.bin", "wb") as out:
        for kind in SCALES:
            elements, size = GGML_QUANT_SIZES[kind]
            count = {1: 512, 32: 64, 256: 16}[elements]
            blocks = random_blocks(rng, kind, count)
            if kind == Type.F32:
                numbers = blocks.view(np.float32)
            else:
                numbers = dequantize(blocks, kind)
            numbers = np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1)
            assert numbers.size == count * elements and np.isfinite(numbers).all()
            out.write(struct.pack("<8sIII", kind.name.encode(), count, elements, size))
            out.write(blocks.tobytes())
            out.write(numbers.tobytes())


if __name__ == "__main__":
    main()
