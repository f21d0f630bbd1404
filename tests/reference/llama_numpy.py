#!/usr/bin/env python3
"""A Llama model in numpy, float64, from a GGUF file: short, slow and independent of the worker.

Usage: llama_numpy.py MODEL.gguf --ids 1,2,3 [--top 5]     prints the highest logits of the last
position
       llama_numpy.py MODEL.gguf --ids-file F --logits OUT.f32     writes the last position's logits

Weights are decoded by the `gguf` package. Rows of q and k are used in the file's order, where RoPE
turns the channels (2p, 2p + 1) of a head.
"""

import argparse
import pathlib

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Llama:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.layers = self.get("block_count")
        self.heads = self.get("attention.head_count")
        self.kv_heads = self.get("attention.head_count_kv", self.heads)
        self.head_dim = self.get("attention.key_length", self.get("embedding_length") // self.heads)
        self.rope_dim = self.get("rope.dimension_count", self.head_dim)
        self.rope_base = self.get("rope.freq_base", 10000.0)
        self.eps = self.get("attention.layer_norm_rms_epsilon")

    def get(self, key, otherwise=None):
        field = self.fields.get("llama." + key)
        return otherwise if field is None else field.contents()

    def weight(self, name):
        tensor = self.tensors[name + ".weight"]
        shape = [int(n) for n in reversed(tensor.shape)]
        return dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float64)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name)

    def rope(self, x):
        """x: [tokens][heads][head_dim], positions from 0."""
        pairs = np.arange(self.rope_dim // 2)
        angle = np.arange(len(x))[:, None] * self.rope_base ** (-2.0 * pairs / self.rope_dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., 0 : self.rope_dim : 2], x[..., 1 : self.rope_dim : 2]
        out = x.copy()
        out[..., 0 : self.rope_dim : 2] = even * cos - odd * sin
        out[..., 1 : self.rope_dim : 2] = even * sin + odd * cos
        return out

    def attention(self, x, block):
        n = len(x)
        split = lambda name, heads: (x @ self.weight(f"{block}.{name}").T).reshape(
            n, heads, self.head_dim
        )
        q = self.rope(split("attn_q", self.heads))
        k = self.rope(split("attn_k", self.kv_heads))
        v = split("attn_v", self.kv_heads)
        group = self.heads // self.kv_heads
        future = np.triu(np.ones((n, n), dtype=bool), 1)
        out = np.empty_like(q)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(self.head_dim)
            scores[future] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, head // group]
        return out.reshape(n, -1) @ self.weight(f"{block}.attn_output").T

    def logits(self, ids):
        """float64 [tokens][vocabulary]: the logits after each token."""
        x = self.weight("token_embd")[np.asarray(ids)]
        for layer in range(self.layers):
            block = f"blk.{layer}"
            x = x + self.attention(self.norm(x, f"{block}.attn_norm"), block)
            h = self.norm(x, f"{block}.ffn_norm")
            gate = h @ self.weight(f"{block}.ffn_gate").T
            up = h @ self.weight(f"{block}.ffn_up").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"{block}.ffn_down").T
        output = "output" if "output.weight" in self.tensors else "token_embd"
        return self.norm(x, "output_norm") @ self.weight(output).T


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ids", help="token ids, separated by commas")
    source.add_argument("--ids-file", type=pathlib.Path, help="token ids, separated by white space")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--logits", type=pathlib.Path, help="write them as float32")
    args = parser.parse_args()
    words = args.ids.split(",") if args.ids else args.ids_file.read_text().split()
    last = Llama(args.model).logits([int(word) for word in words])[-1]
    for token in np.argsort(-last)[: args.top]:
        print(f"{token:8d} {last[token]:.4f}")
    if args.logits:
        last.astype("<f4").tofile(args.logits)


if __name__ == "__main__":
    main()
