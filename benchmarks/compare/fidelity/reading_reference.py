#!/usr/bin/env python3
"""KL of read policies on the texts and positions of a `cairn fidelity` run, by their definitions in
torch.

    reading_reference.py --model MODEL.gguf --plan build/fidelity/plan-prose.json
      --policy quest:rows=0.2 ... > reference.json

As reference.py for codecs: the plan holds the tokens, rows are like those of `cairn fidelity
--json`, full KV is binary16, arithmetic is float32. A policy attends to the rows of the context
that it chooses for each token, layer and KV head, to the first row, and to the tokens' own KV.
Policies with a copy are not here: their codecs are compared elsewhere. Bits per number are 16 times
the share of rows that were chosen.
"""

import argparse
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from codecs_reference import half
from reference import Judge, Row, begin, is_needles, with_progress, write_report
from torch_bench import full

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Parameters with their defaults; a name that is not here does not exist.
POLICIES = {
    "exact-topk": {"rows": 0.05, "query": "own"},
    "quest": {"rows": 0.2, "query": "own", "page": 16},
    "landmark": {"rows": 0.2, "query": "own", "page": 8},
    "clusters": {"rows": 0.2, "query": "own", "centres": 0.05},
    "infinigen": {"rows": 0.2, "query": "input", "partial": 0.3, "alpha": 4, "rotation": "context"},
}


class Policy:
    def __init__(self, text):
        self.name, _, given = text.partition(":")
        if self.name not in POLICIES:
            raise SystemExit(f"'{text}': expected one of {', '.join(POLICIES)}")
        values = dict(POLICIES[self.name])
        for pair in filter(None, given.split(",")):
            key, _, value = pair.partition("=")
            if key not in values:
                raise SystemExit(f"'{text}': expected one of {', '.join(values)}")
            values[key] = value if isinstance(values[key], str) else type(values[key])(value)
        self.values = values
        self.unit = values.get("page", 1)


def clusters(keys, count):
    """Lloyd's k-means of keys [n, dim] of length 1, from rows at even distances, at most 8 rounds:
    cluster of each row [n], means of the keys as they are [count, dim]."""
    n = len(keys)
    rows = F.normalize(keys.double(), dim=-1)
    centres = rows[torch.arange(count) * n // count]

    def means(of, x, now):
        size = torch.zeros(count, dtype=torch.float64).index_add_(0, of, torch.ones(n).double())
        total = torch.zeros(count, x.shape[1], dtype=torch.float64).index_add_(0, of, x.double())
        return torch.where(size[:, None] > 0, total / size.clamp(min=1)[:, None], now)

    of = None
    for _ in range(8):
        if of is not None:
            centres = means(of, rows, centres)
        near = rows @ centres.T - centres.square().sum(-1) / 2
        nearest = near.argmax(-1)
        if of is not None and bool((nearest == of).all()):
            break
        of = nearest
    return of, means(of, keys, torch.zeros(count, keys.shape[1], dtype=torch.float64)).float()


def pages(keys, size):
    """[pages, size, dim]; a page that is not full repeats its last row."""
    short = -len(keys) % size
    return torch.cat((keys, keys[-1:].expand(short, -1))).view(-1, size, keys.shape[1])


def rotations(digits):
    """The contents of the calibration file that begins so: means [layers, kv_heads, dim] and
    directions [layers, kv_heads, dim, dim]."""
    (path,) = (ROOT / "calibration").glob(f"{digits}*.rotations")
    body, shape = path.read_bytes(), []
    for _ in range(64):
        line, _, body = body.partition(b"\n")
        if line.split(b" ")[0] in (b"layers", b"kv_heads", b"head_dim"):
            shape.append(int(line.split(b" ")[1]))
        if len(shape) == 3:
            break
    layers, heads, dim = shape
    numbers = torch.frombuffer(bytearray(body), dtype=torch.float16).float()
    numbers = numbers.view(layers, heads, dim + 1, dim)
    return numbers[:, :, 0], numbers[:, :, 1:]


class Head:
    """The form in which a policy stores the keys [n, dim] of a KV head, and the logits of units by
    it."""

    def __init__(self, policy, keys, rotation):
        self._policy, self._shared, self._columns = policy, None, None
        dim, values = keys.shape[1], policy.values
        if policy.name == "quest":
            of_page = pages(keys, policy.unit)
            stored = torch.cat((of_page.amax(1), of_page.amin(1)), -1)
        elif policy.name == "landmark":
            stored = torch.stack([page.mean(0) for page in keys.split(policy.unit)])
        elif policy.name == "clusters":
            count = max(1, round(values["centres"] * len(keys)))
            self._shared, stored = clusters(keys, count)
        elif policy.name == "infinigen":
            count = max(1, round(values["partial"] * dim))
            if rotation is None:
                spread = keys.double().T @ keys.double()
                self._columns = torch.linalg.eigh(spread).eigenvectors.T.flip(0)[:count].float()
            else:
                means, directions = rotation
                size = means + (keys @ directions.T).abs().mean(0)
                best = size.sort(stable=True, descending=True).indices[:count]
                self._columns = directions[best]
            stored = keys @ self._columns.T
        else:
            stored = keys
        self._stored = half(stored)
        self._scale = dim**-0.5

    def logits(self, q):
        """q [group, tokens, dim] to [group, tokens, units]."""
        if self._policy.name == "quest":
            q = torch.cat((q.clamp(min=0), q.clamp(max=0)), -1)
        if self._columns is not None:
            q = q @ self._columns.T
        logits = q @ self._stored.T * self._scale
        return logits if self._shared is None else logits[..., self._shared]


def choose(policy, logits, n):
    """Rows [tokens, n] that are read, of logits [group, tokens, units]."""
    unit, values = policy.unit, policy.values
    rows = min(n, max(1, round(values["rows"] * n / unit)) * unit)
    count = min(logits.shape[-1], -(-rows // unit))
    best = logits.softmax(-1).amax(0).sort(stable=True, dim=-1, descending=True).indices[:, :count]
    chosen = torch.zeros(logits.shape[1:], dtype=torch.bool).scatter_(1, best, True)
    if "alpha" in values:
        chosen &= (logits >= logits.amax(-1, keepdim=True) - values["alpha"]).any(0)
    return chosen.repeat_interleave(unit, -1)[:, :n]


class Reader:
    """Reads contexts of one model by one policy."""

    def __init__(self, model, text):
        self.model, self.policy = model, Policy(text)
        file = self.policy.values.get("rotation", "context")
        self._rotations = None if file == "context" else rotations(file)
        self.choosing = 0.0  # Seconds of processor time.

    def score(self, layers, continuation, keep=None):
        """Logits [tokens, vocab] of a continuation, whose tokens see those before them, and the
        share of rows chosen. layers: (keys, values) [kv_heads, n, dim] each. keep(layer, rows
        [kv_heads, tokens, n]) sees the choice."""
        model, n, tokens = self.model, layers[0][0].shape[1], len(continuation)
        positions = n + torch.arange(tokens)
        own = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        guesses, share = {}, 0.0
        query = self.policy.values["query"]

        def watch(layer, where, x):
            if where != query or layer + 1 == model.layers:
                return
            w = lambda name: model.w[f"blk.{layer + 1}.{name}.weight"]
            h = F.rms_norm(x, (model.hidden,), w("attn_norm"), model.eps)
            q = F.linear(h, w("attn_q")).view(tokens, model.heads, model.dim).transpose(0, 1)
            guesses[layer + 1] = model.rotate(q, positions)

        def attend(layer, q, k, v):
            nonlocal share
            began = time.process_time()
            keys, values = layers[layer]
            by = guesses.pop(layer, q).view(model.kv_heads, -1, tokens, model.dim)
            rows = []
            for head in range(model.kv_heads):
                rotation = self._rotations and tuple(x[layer, head] for x in self._rotations)
                stored = Head(self.policy, keys[head], rotation)
                rows.append(choose(self.policy, stored.logits(by[head]), n))
            rows = torch.stack(rows)
            share += float(rows.double().mean()) / model.layers
            if keep is not None:
                keep(layer, rows)
            rows = rows.clone()
            rows[:, :, 0] = True  # The sink.
            self.choosing += time.process_time() - began
            visible = torch.cat((rows, own.expand(model.kv_heads, -1, -1)), -1)
            group = model.heads // model.kv_heads
            return F.scaled_dot_product_attention(
                q[None],
                torch.cat((keys, half(k)), 1)[None],
                torch.cat((values, half(v)), 1)[None],
                attn_mask=visible.repeat_interleave(group, 0)[None],
                enable_gqa=True,
            )[0]

        states = model.states(torch.tensor(continuation), attend, positions, watch)
        return model.logits(states), share


def capture(model, context):
    """(keys, values) of each layer, [kv_heads, n, dim], rounded to binary16 as caches have them."""
    layers = []

    def attend(i, q, k, v):
        layers.append((half(k), half(v)))
        return full(i, q, k, v)

    model.states(torch.tensor(context), attend)
    return layers


def score_full(model, layers, continuation):
    n, tokens = layers[0][0].shape[1], len(continuation)
    visible = torch.ones(tokens, n + tokens, dtype=torch.bool).tril(n)

    def attend(i, q, k, v):
        return F.scaled_dot_product_attention(
            q[None],
            torch.cat((layers[i][0], half(k)), 1)[None],
            torch.cat((layers[i][1], half(v)), 1)[None],
            attn_mask=visible,
            enable_gqa=True,
        )[0]

    return model.logits(model.states(torch.tensor(continuation), attend, n + torch.arange(tokens)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", action="append", required=True, metavar="NAME:rows=R,...")
    arguments, model, plan, texts = begin(parser)
    needles = is_needles(plan)
    readers = [Reader(model, text) for text in arguments.policy]
    rows = [Row(text, needles) for text in arguments.policy]
    for text in with_progress(plan["suite"], texts):
        layers = capture(model, text["context"])
        continuations = [c["tokens"] for c in text["continuations"]]
        judges = [
            Judge(score_full(model, layers, tokens), c, needles)
            for tokens, c in zip(continuations, text["continuations"])
        ]
        for reader, row in zip(readers, rows):
            scored = [reader.score(layers, tokens) for tokens in continuations]
            row.bits.append(16 * sum(share for _, share in scored) / len(scored))
            row.add(judges, [logits for logits, _ in scored])
    for reader, row in zip(readers, rows):
        print(f"{row.name}: choosing {reader.choosing / len(texts):.1f} s a text", file=sys.stderr)
    write_report(arguments.model, plan, rows)


if __name__ == "__main__":
    main()
