#!/usr/bin/env python3
"""Read policies in numpy, on the tokens that `cairn fidelity` wrote to its plan: a second program
with the same rules of choice, for comparing KL.

    python3 benchmarks/compare/fidelity/reading_reference.py --model MODEL.gguf
    --plan build/fidelity/plan-prose.json [--limit N] --policy precision:rows=0.02 ... > report.json

Policies are written as for `cairn fidelity --read-policy`; of their parameters this program knows
those of `DEFAULTS`. Documents only. All tokens of a continuation go through a layer at once: each
chooses its rows by its own query, and attends to them and to the continuation's tokens before it.
K and V are rounded to binary16, arithmetic is float32.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "reference"), str(ROOT / "benchmarks" / "fidelity")]
from compare import interval
from llama_numpy import Llama

DEFAULTS = {
    "precision": {"rows": 0.02, "near": "turbo3", "query": "own"},
    "exact-topk": {"rows": 0.05, "query": "own"},
    "keys-copy": {"rows": 0.1, "near": "turbo2", "query": "own"},
    "quest": {"rows": 0.2, "page": 16, "query": "own"},
    "landmark": {"rows": 0.2, "page": 8, "query": "own"},
    "infinigen": {"rows": 0.2, "partial": 0.3, "alpha": 4.0, "query": "input"},
}
# Lloyd-Max levels for a normal distribution, the positive half.
LEVELS = {2: (0.452780035, 1.51041761), 3: (0.245094179, 0.756005281, 1.34390928, 2.1519457)}
NONE = np.float32(-1e30)


def parse(text):
    name, _, rest = text.partition(":")
    policy = {"name": name, **DEFAULTS[name]}
    for entry in filter(None, rest.split(",")):
        key, _, value = entry.partition("=")
        if key not in policy:
            raise SystemExit(f"{text}: this program knows no '{key}' of {name}")
        policy[key] = type(policy[key])(value)
    return policy


def half(x):
    return x.astype(np.float16).astype(np.float32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def turbo_signs(layer, values, dim):
    """docs/formats/codecs.md, turbo: SplitMix64, one step for 64 dimensions."""
    mask = (1 << 64) - 1
    state = (0x436169726E54514B + (2 * layer + values) * 0xD1342543DE82EF95) & mask
    signs = []
    while len(signs) < dim:
        state = (state + 0x9E3779B97F4A7C15) & mask
        bits = state
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & mask
        bits ^= bits >> 31
        signs += [-1.0 if bits >> i & 1 else 1.0 for i in range(64)]
    return np.array(signs[:dim], np.float32)


def copied(x, layer, values, bits):
    """Rows [n][dim] as turbo with so many bits decodes them."""
    dim = x.shape[-1]
    h = np.array([[1.0]], np.float32)
    while len(h) < dim:
        h = np.block([[h, h], [h, -h]])
    signs = turbo_signs(layer, values, dim)
    z = (x * signs) @ h
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    t = z / np.maximum(norm, 1e-30)
    levels = np.array(LEVELS[bits], np.float32)
    borders = (levels[1:] + levels[:-1]) / 2
    c = levels[(np.abs(t)[..., None] > borders).sum(-1)] * np.where(t < 0, -1, 1)
    gain = half((z * c).sum(-1, keepdims=True) / (c * c).sum(-1, keepdims=True))
    return half((c @ h) * signs * gain / dim).astype(np.float32)


class Index:
    """Of the keys of one layer and KV head: logits of units, and the rows of a unit."""

    def __init__(self, policy, layer, keys):
        self.rows_of_unit = policy.get("page", 1)
        name = policy["name"]
        pages = [keys[i : i + self.rows_of_unit] for i in range(0, len(keys), self.rows_of_unit)]
        self.form = lambda q: q
        if name == "quest":
            self.units = np.array([np.concatenate([p.max(0), p.min(0)]) for p in pages])
            self.form = lambda q: np.concatenate([np.maximum(q, 0), np.minimum(q, 0)], -1)
        elif name == "landmark":
            self.units = half(np.array([p.mean(0) for p in pages]))
        elif name == "infinigen":
            _, vectors = np.linalg.eigh(keys.T.astype(np.float64) @ keys)
            columns = round(policy["partial"] * keys.shape[1])
            axes = vectors[:, ::-1][:, :columns].astype(np.float32)
            self.units = half(keys @ axes)
            self.form = lambda q: q @ axes
        elif name in ("precision", "keys-copy"):
            bits = int(policy["near"].split("/")[0].removeprefix("turbo"))
            self.units = copied(keys, layer, 0, bits)
        else:
            self.units = keys

    def logits(self, q):
        return self.form(q) @ self.units.T / np.sqrt(q.shape[-1])


def choose(policy, index, q, rows):
    """Of queries [group][tokens][dim]: which rows each token reads, [tokens][rows]."""
    logits = index.logits(q)
    score = softmax(logits).max(0)
    page = index.rows_of_unit
    units = max(1, round(policy["rows"] * rows / page))
    order = np.argsort(-score, axis=-1, kind="stable")[:, :units]
    chosen = np.zeros(score.shape, bool)
    np.put_along_axis(chosen, order, True, -1)
    if policy["name"] == "infinigen":
        chosen &= (logits >= logits.max(-1, keepdims=True) - policy["alpha"]).any(0)
    chosen = np.repeat(chosen, page, -1)[:, :rows]
    chosen[:, 0] = True
    return chosen


class Reader(Llama):
    def __init__(self, path):
        super().__init__(path)
        self.kept = {}
        # Channels in half-split order, as the worker keeps them.
        self.order = np.r_[0 : self.head_dim : 2, 1 : self.head_dim : 2]

    def weight(self, name):
        if name not in self.kept:
            self.kept[name] = super().weight(name).astype(np.float32)
        return self.kept[name]

    def turn(self, x, first):
        """RoPE of [tokens][heads][dim] from position `first`; channels in half-split order."""
        pairs = np.arange(self.rope_dim // 2)
        angle = (first + np.arange(len(x)))[:, None] * self.rope_base ** (
            -2.0 * pairs / self.rope_dim
        )
        cos, sin = (f(angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.concatenate([even * cos - odd * sin, even * sin + odd * cos], -1)

    def project(self, x, block, name, heads):
        return (x @ self.weight(f"{block}.{name}").T).reshape(len(x), heads, self.head_dim)

    def layers_of(self, ids, first, attend):
        """Hidden states of ids from position `first`; attend(layer, q, k, v, guess) gives
        attention's output, [tokens][heads][dim]."""
        x = self.weight("token_embd")[ids]
        before = None
        for layer in range(self.layers):
            block = f"blk.{layer}"
            normed = self.norm(x, f"{block}.attn_norm")
            q = self.turn(self.project(normed, block, "attn_q", self.heads), first)
            k = half(self.turn(self.project(normed, block, "attn_k", self.kv_heads), first))
            v = half(self.project(normed, block, "attn_v", self.kv_heads))
            guess = None
            if before is not None:
                seen = self.norm(before, f"{block}.attn_norm")
                guess = self.turn(self.project(seen, block, "attn_q", self.heads), first)
            before = x
            out = attend(layer, q, k, v, guess).reshape(len(x), -1)
            x = x + out @ self.weight(f"{block}.attn_output").T
            normed = self.norm(x, f"{block}.ffn_norm")
            gate = normed @ self.weight(f"{block}.ffn_gate").T
            up = normed @ self.weight(f"{block}.ffn_up").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"{block}.ffn_down").T
        return self.norm(x, "output_norm")

    def logits_of(self, x):
        output = "output" if "output.weight" in self.tensors else "token_embd"
        return x @ self.weight(output).T

    def prefill(self, ids):
        """K and V of all layers, [rows][kv_heads][dim] each, and the hidden states."""
        kv = []
        group = self.heads // self.kv_heads

        def attend(layer, q, k, v, guess):
            kv.append((k, v))
            n, out = len(q), np.empty_like(q)
            hidden = np.triu(np.full((n, n), NONE), 1)
            for h in range(self.heads):
                p = softmax(q[:, h] @ k[:, h // group].T / np.sqrt(self.head_dim) + hidden)
                out[:, h] = p @ v[:, h // group]
            return out

        return kv, self.layers_of(ids, 0, attend)

    def read(self, ids, context, policy):
        """Hidden states of ids behind a context, read with a policy."""
        group = self.heads // self.kv_heads
        rows = len(context[0][0])

        def attend(layer, q, k, v, guess):
            n, out = len(q), np.empty_like(q)
            hidden = np.triu(np.full((n, n), NONE), 1)
            keys, values = context[layer]
            for h in range(self.kv_heads):
                heads = slice(h * group, (h + 1) * group)
                index = Index(policy, layer, keys[:, h])
                asked = q if guess is None or policy["query"] == "own" else guess
                chosen = choose(policy, index, asked[:, heads].swapaxes(0, 1), rows)
                with_copy = policy["name"] == "precision"
                if with_copy:
                    bits = int(policy["near"].split("/")[-1].removeprefix("turbo"))
                    near_v = copied(values[:, h], layer, 1, bits)
                for i in range(h * group, (h + 1) * group):
                    exact = q[:, i] @ keys[:, h].T / np.sqrt(self.head_dim)
                    other = index.logits(q[:, i]) if with_copy else NONE
                    own = q[:, i] @ k[:, h].T / np.sqrt(self.head_dim) + hidden
                    p = softmax(np.concatenate([np.where(chosen, exact, other), own], -1))
                    read, own = p[:, :rows], p[:, rows:]
                    out[:, i] = (read * chosen) @ values[:, h] + own @ v[:, h]
                    if with_copy:
                        out[:, i] += (read * ~chosen) @ near_v
            return out

        return self.layers_of(ids, rows, attend)


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--limit", type=int, default=0)
    args = parser.parse_args()
    with open(args.plan, encoding="utf-8") as file:
        plan = json.load(file)
    texts = plan["texts"][: args.limit or None]
    model = Reader(args.model)
    rows = [{"recipe": p, "suite": plan["suite"], "texts": []} for p in args.policy]
    for text in texts:
        context, ids = text["context"], text["continuations"][0]["tokens"]
        kv, states = model.prefill(np.array(context + ids))
        full = log_softmax(model.logits_of(states[len(context) : -1]))
        near = [(k[: len(context)], v[: len(context)]) for k, v in kv]
        for row in rows:
            states = model.read(np.array(ids), near, parse(row["recipe"]))
            other = log_softmax(model.logits_of(states[:-1]))
            kl = float((np.exp(full) * (full - other)).sum())
            row["texts"].append([kl, len(ids) - 1])
            print(f"{text['name']}: {row['recipe']}: {kl / (len(ids) - 1):.5f}", file=sys.stderr)
    for row in rows:
        mean = lambda drawn: sum(t[0] for t in drawn) / sum(t[1] for t in drawn)
        row["kl"] = mean(row["texts"])
        row["kl_ci"] = list(interval(row["texts"], mean))
    print(json.dumps({"split": plan["split"], "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
