"""Methods that ask all rows of a segment or none, from the papers' formulas or the authors'
programs, and methods made of others, in torch. captured.py says what a method is.
"""

import numpy as np
import torch
import torch.nn.functional as F
from captured import kept_rows, top
from random_numbers import split_mix


def h2o(recent_share):
    """Sums of the causal softmax over all rows; `recent_share` of the rows are the most recent
    ones."""

    def run(layers, ratio):
        masks = []
        for layer in layers:
            n = kept_rows(layer, ratio)
            recent = int(n * recent_share)
            rest = layer.tokens - recent
            s = layer.by_group(layer.attention_sums).mean(1)
            masks.append(
                torch.stack(
                    [
                        torch.cat(
                            (top(head[:rest], n - recent), torch.ones(recent, dtype=torch.bool))
                        )
                        for head in s
                    ]
                )
            )
        return torch.stack(masks)

    return run


def prefixkv(sinks):
    """PrefixKV with its share of attention found exactly: of all layers' rows, in the order of
    their score within the layer, those before which the smallest share of it lies."""

    def run(layers, ratio):
        tokens, fixed = layers[0].tokens, sinks + 1
        scores = [layer.attention_sums.mean(0) for layer in layers]
        before = []
        for i, score in enumerate(scores):
            ordered = torch.sort(score.double(), descending=True).values
            share = (ordered.cumsum(0) - ordered) / ordered.sum()
            before += [(float(s), i) for s in share[: tokens - fixed]]
        total = (kept_rows(layers[0], ratio) - fixed) * len(layers)
        chosen = [i for _, i in sorted(before)[:total]]
        masks = []
        for i, (layer, score) in enumerate(zip(layers, scores)):
            best = top(score[sinks : tokens - 1], chosen.count(i))
            mask = torch.cat((torch.ones(sinks, dtype=torch.bool), best, torch.ones(1).bool()))
            masks.append(mask.expand(layer.kv_heads, -1))
        return torch.stack(masks)

    return run


def noisy_sums(layer, index, seed):
    """The weight that each row gets from all queries when Gumbel noise is added to the logits:
    [heads, tokens]."""
    bits = 12
    weight = torch.from_numpy(-1 / np.log((np.arange(1 << bits) + 0.5) / (1 << bits))).float()
    sums = torch.zeros(layer.heads, layer.tokens)
    for row in range(layer.tokens):
        attention = layer.attention(row, row + 1)[:, 0]
        for h in range(layer.heads):
            numbers = split_mix(seed, (index, h, row), row // 5 + 1)
            draws = (numbers[:, None] >> (np.arange(5, dtype=np.uint64) * bits)) % (1 << bits)
            noisy = attention[h] * weight[torch.from_numpy(draws.flatten()[: row + 1].astype(int))]
            sums[h, : row + 1] += noisy / noisy.double().sum().float()
    return sums


def keyformer(recent_share, seed):
    """Keyformer at the end of a prompt: sums of the softmax of logits and Gumbel noise, and the
    most recent rows."""

    def run(layers, ratio):
        masks = []
        for layer in layers:
            n = kept_rows(layer, ratio)
            recent = int(n * recent_share + 1e-9)
            rest = layer.tokens - recent
            s = layer.by_group(noisy_sums(layer, layer.layer_idx, seed)).mean(1)
            best = torch.stack([top(head[:rest], n - recent) for head in s])
            masks.append(F.pad(best, (0, recent), value=True))
        return torch.stack(masks)

    return run


def by_lot(seed):
    """Rows drawn by lot, other ones for each layer and head: the first numbers of a permutation,
    one after the other (Fisher and Yates)."""

    def run(layers, ratio):
        tokens, rows = layers[0].tokens, kept_rows(layers[0], ratio)
        heads = len(layers) * layers[0].kv_heads
        numbers = iter(split_mix(seed, (), heads * rows).tolist())
        masks = torch.zeros(heads, tokens, dtype=torch.bool)
        for mask in masks:
            order = list(range(tokens))
            for i in range(rows):
                other = i + next(numbers) % (tokens - i)
                order[i], order[other] = order[other], order[i]
            mask[order[:rows]] = True
        return masks.view(len(layers), -1, tokens)

    return run


def sepllm(sinks, share):
    """SepLLM under a budget: first rows, the latest separators before the recent rows, and these.
    At most `share` of what the first rows leave are separators; if there are fewer, the recent rows
    get what is left."""

    def run(layers, ratio):
        tokens, rows = layers[0].tokens, kept_rows(layers[0], ratio) - sinks
        marked = layers[0].separators.clone()
        marked[:sinks] = False
        for taken in range(int(rows * share), -1, -1):
            recent = tokens - (rows - taken)
            before = torch.nonzero(marked[:recent])[:, 0]
            if len(before) >= taken:
                break
        mask = torch.zeros(tokens, dtype=torch.bool)
        mask[:sinks] = mask[recent:] = True
        mask[before[len(before) - taken :]] = True
        return mask.expand(len(layers), layers[0].kv_heads, -1).clone()

    return run


def simlayer(sinks, recent, queries):
    """The laziest layers keep sinks and recent rows, as many layers as the budget asks for. A layer
    is as lazy as the authors' program says: what a query pays to the sinks and to the `recent` rows
    before its own, in the mean over the last queries."""

    def run(layers, ratio):
        tokens, even = layers[0].tokens, kept_rows(layers[0], ratio)
        behind = torch.arange(tokens - queries, tokens)[:, None] - torch.arange(tokens)
        near = (behind > 0) & (behind <= recent)
        near[:, :sinks] = True
        lazy = [
            float((layer.last_attention(queries).mean(0) * near).sum(-1).mean()) for layer in layers
        ]
        total = len(layers) * even
        short = min(sinks + recent, even)
        full = (total - len(layers) * short) // (tokens - short)
        spare = total - len(layers) * short - full * (tokens - short)
        order = sorted(range(len(layers)), key=lambda i: (lazy[i], i))
        masks = torch.ones(len(layers), layers[0].kv_heads, tokens, dtype=torch.bool)
        for rank, layer in enumerate(order):
            if rank < full:
                continue
            n = short + (spare if rank == full else 0)
            masks[layer, :, sinks : tokens - (n - sinks)] = False
        return masks

    return run


def head_classes(sinks, recent, scores):
    """Heads with the largest of the scores [layers * kv_heads] keep all rows, the others the first
    and the most recent ones, as DuoAttention and RazorAttention have it."""

    def run(layers, ratio):
        tokens, even = layers[0].tokens, kept_rows(layers[0], ratio)
        few = min(sinks + recent, even)
        left = len(scores) * even
        masks = torch.zeros(len(scores), tokens, dtype=torch.bool)
        for head in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
            # All if the heads after it still get their few, else what they leave.
            later = int((~masks.any(-1)).sum()) - 1
            n = min(tokens, left - few * later)
            masks[head, :sinks] = True
            masks[head, tokens - (n - sinks) :] = True
            left -= n
        return masks.view(len(layers), -1, tokens)

    return run


def in_pairs(run):
    """Every second layer keeps the rows of the one before it (ChunkKV's index reuse)."""

    def masks(layers, ratio):
        found = run(layers, ratio)
        found[1::2] = found[: len(found) - 1 : 2]
        return found

    return masks


def first_layers(count, run, others):
    """One method in the first layers, another one in the others."""

    def masks(layers, ratio):
        return torch.cat((run(layers, ratio)[:count], others(layers, ratio)[count:]))

    return masks
