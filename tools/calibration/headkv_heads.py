#!/usr/bin/env python3
"""Scores KV heads as HeadKV does: by what they attend to while an answer is read out of a context.

    pip install torch gguf
    python3 tools/calibration/headkv_heads.py MODEL.gguf --hay TEXT --out calibration

Source: Fu et al., "Not All Heads Matter: A Head-Level KV Cache Compression Method with Integrated
Retrieval and Reasoning", 2024, section 3.1. A context hides what leads to an answer and the answer
itself; both are the needle, of n tokens. For each token of the answer a query head scores the
attention that it pays to those of the needle's tokens that are among its n most attended ones. The
score is the mean over the answers' tokens and over the contexts; a KV head has the mean of its
query heads, since budgets are shares.

Other than in the paper: needles are made up, of words drawn by lot, and hidden in a text's tokens;
the answer is given and not generated, so that a small model that would miss it is measured too.
"""

import argparse
import pathlib

import head_file
import torch
from llama import Llama, full
from sample_text import SampleText
from tokenizer import Tokenizer

NAMES = ("Alice", "Bruno", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "purple")


class Needles:
    """Contexts that hide who owns a box, and what the box holds."""

    def __init__(self, tokenizer, hay, words, tokens, seed):
        self.encode, self.hay, self.words, self.tokens = tokenizer.encode, hay, words, tokens
        self.draw = torch.Generator().manual_seed(seed)
        self.vocabulary = [
            i
            for i, t in enumerate(tokenizer.tokens)
            if t[0] == "Ġ" and 4 <= len(t) <= 9 and t[1:].isascii() and t[1:].isalpha()
        ]

    def below(self, n):
        return int(torch.randint(n, (1,), generator=self.draw))

    def next(self):
        """Token ids, the needle's tokens (begin, end), and the rows that foretell the answer's
        tokens."""
        name, colour = NAMES[self.below(len(NAMES))], COLOURS[self.below(len(COLOURS))]
        answer = [self.vocabulary[self.below(len(self.vocabulary))] for _ in range(self.words)]
        needle = self.encode(f"\n\n{name} owns the {colour} box. The {colour} box holds") + answer
        ask = self.encode(f"\n\nWhat does the box of {name} hold? It holds")
        room = self.tokens - len(needle) - len(ask) - len(answer)
        start, at = self.below(len(self.hay) - room), self.below(room)
        hay = self.hay[start : start + room]
        ids = hay[:at] + needle + hay[at:] + ask + answer
        first = len(ids) - len(answer) - 1  # The row before a token foretells it.
        return torch.tensor(ids), (at, at + len(needle)), torch.arange(first, len(ids) - 1)


def needle_scores(q, k, needle, rows):
    """Each query head's attention to the needle among its most attended tokens, mean over the rows:
    [heads]. q [heads, tokens, dim], k [kv_heads, tokens, dim], after RoPE."""
    heads, n, dim = q.shape
    k = k.repeat_interleave(heads // k.shape[0], 0)
    logits = q[:, rows] @ k.transpose(1, 2) * dim**-0.5
    logits.masked_fill_(torch.arange(n)[None, :] > rows[:, None], float("-inf"))
    best = logits.softmax(-1).topk(needle[1] - needle[0], -1)
    inside = (best.indices >= needle[0]) & (best.indices < needle[1])
    return (best.values * inside).sum(-1).mean(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    SampleText.add_arguments(parser, "hay")
    parser.add_argument("--out", default="calibration", help="folder for the file")
    parser.add_argument("--contexts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=640, help="of a context")
    parser.add_argument("--words", type=int, default=4, help="of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    model, tokenizer = Llama(args.model), Tokenizer.of_file(args.model)
    hay = SampleText.of_arguments(args)
    needles = Needles(tokenizer, tokenizer.encode(hay.text), args.words, args.tokens, args.seed)
    scores = torch.zeros(model.layers, model.kv_heads)
    for number in range(args.contexts):
        ids, needle, rows = needles.next()

        def attend(layer, q, k, v, needle=needle, rows=rows):
            found = needle_scores(q, k, needle, rows)
            scores[layer] += found.view(model.kv_heads, -1).mean(-1) / args.contexts
            return full(layer, q, k, v)

        model.states(ids, attend)
        print(f"context {number + 1} of {args.contexts}", flush=True)
    print("largest", [round(float(s), 3) for s in scores.flatten().sort().values[-12:]])
    about = [
        f"{pathlib.Path(args.model).name}, by tools/calibration/headkv_heads.py",
        hay.about,
        f"run: {args.contexts} contexts of {args.tokens} tokens, answers of {args.words} words, "
        f"seed {args.seed}",
    ]
    print(head_file.write(args.out, "headkv", args.model, scores.tolist(), about))


if __name__ == "__main__":
    main()
