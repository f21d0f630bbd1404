"""Llama in PyTorch, float32, on the weights of a GGUF file: the yardstick for prefill.

    torch_bench.py MODEL.gguf [THREADS]

Reads lines like "prefill 512" or "decode 512" and answers each with a JSON line, tokens per second.
"""

import json
import sys
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F


class Llama:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        number = lambda key: reader.fields[key].parts[reader.fields[key].data[0]][0]
        self.layers = int(number("llama.block_count"))
        self.heads = int(number("llama.attention.head_count"))
        self.kv_heads = int(number("llama.attention.head_count_kv"))
        self.hidden = int(number("llama.embedding_length"))
        self.dim = self.hidden // self.heads
        self.eps = float(number("llama.attention.layer_norm_rms_epsilon"))
        base = float(number("llama.rope.freq_base"))
        self.w = {
            t.name: torch.from_numpy(
                np.array(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32)
            )
            for t in reader.tensors
        }
        self.vocab = self.w["token_embd.weight"].shape[0]
        # Files of this architecture rotate neighbouring channels; half-split is what frameworks
        # use.
        for name, heads in (("attn_q", self.heads), ("attn_k", self.kv_heads)):
            for i in range(self.layers):
                key = f"blk.{i}.{name}.weight"
                w = self.w[key].reshape(heads, self.dim // 2, 2, self.hidden)
                self.w[key] = w.transpose(1, 2).reshape(heads * self.dim, self.hidden).contiguous()
        frequency = base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angle = torch.arange(8192, dtype=torch.float64)[:, None] * frequency[None, :]
        self.cos = angle.cos().float().repeat(1, 2)
        self.sin = angle.sin().float().repeat(1, 2)

    def cache(self, tokens):
        return torch.empty(self.layers, 2, self.kv_heads, tokens, self.dim)

    def rotate(self, x, positions):
        half = self.dim // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos[positions] + turned * self.sin[positions]

    def states(self, ids, attend, positions=None, watch=None):
        """Last hidden states after the norm, [tokens, hidden]; positions are 0, 1, ... when not
        given.

        attend(layer, q, k, v) -> [heads, tokens, dim]; q [heads, tokens, dim], k and v [kv_heads,
        tokens, dim], after RoPE. watch(layer, where, x), if given, sees the residual [tokens,
        hidden] at the "input" of a layer, and after its "attention".
        """
        n = ids.shape[0]
        x = self.w["token_embd.weight"][ids]
        positions = torch.arange(n) if positions is None else positions
        for i in range(self.layers):
            w = lambda name: self.w[f"blk.{i}.{name}.weight"]
            if watch is not None:
                watch(i, "input", x)
            h = F.rms_norm(x, (self.hidden,), w("attn_norm"), self.eps)
            q = F.linear(h, w("attn_q")).view(n, self.heads, self.dim).transpose(0, 1)
            k = F.linear(h, w("attn_k")).view(n, self.kv_heads, self.dim).transpose(0, 1)
            v = F.linear(h, w("attn_v")).view(n, self.kv_heads, self.dim).transpose(0, 1)
            a = attend(i, self.rotate(q, positions), self.rotate(k, positions), v)
            x = x + F.linear(a.transpose(0, 1).reshape(n, -1), w("attn_output"))
            if watch is not None:
                watch(i, "attention", x)
            h = F.rms_norm(x, (self.hidden,), w("ffn_norm"), self.eps)
            x = x + F.linear(
                F.silu(F.linear(h, w("ffn_gate"))) * F.linear(h, w("ffn_up")), w("ffn_down")
            )
        return F.rms_norm(x, (self.hidden,), self.w["output_norm.weight"], self.eps)

    def logits(self, states):
        return F.linear(states, self.w.get("output.weight", self.w["token_embd.weight"]))

    def forward(self, ids, cache, start, every_token=False):
        """Logits of the last token, or of every token; cache holds the K and V of the tokens before
        `start`."""
        n = ids.shape[0]
        positions = torch.arange(start, start + n)
        visible = (
            None if n == 1 or start == 0 else torch.arange(start + n)[None, :] <= positions[:, None]
        )

        def attend(i, q, k, v):
            cache[i, 0, :, start : start + n] = k
            cache[i, 1, :, start : start + n] = v
            return F.scaled_dot_product_attention(
                q[None],
                cache[i, 0, :, : start + n][None],
                cache[i, 1, :, : start + n][None],
                attn_mask=visible,
                is_causal=n > 1 and visible is None,
                enable_gqa=True,
            )[0]

        states = self.states(ids, attend, positions)
        return self.logits(states if every_token else states[-1])


def full(_, q, k, v):
    """Causal attention to all rows, for Llama.states."""
    return F.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, enable_gqa=True
    )[0]


def main():
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    torch.set_grad_enabled(False)
    model = Llama(sys.argv[1])
    for line in sys.stdin:
        what, n = line.split()
        n = int(n)
        ids = (1000 + torch.arange(n + 64) * 7919 % 40000) % model.vocab
        cache = model.cache(n + 64)
        start = time.perf_counter()
        model.forward(ids[:n], cache, 0)
        rate = n / (time.perf_counter() - start)
        if what == "decode":
            steps = 32
            start = time.perf_counter()
            for i in range(n, n + steps):
                model.forward(ids[i : i + 1], cache, i)
            rate = steps / (time.perf_counter() - start)
        print(
            json.dumps({"engine": "pytorch", "what": what, "n": n, "value": rate, "unit": "tok/s"}),
            flush=True,
        )


if __name__ == "__main__":
    main()
