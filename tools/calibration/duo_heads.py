#!/usr/bin/env python3
"""Scores KV heads as DuoAttention does: by gates that are trained to close.

    pip install torch gguf
    python3 tools/calibration/duo_heads.py MODEL.gguf --hay TEXT --out calibration

Source: Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and
Streaming Heads", 2024, section 2.3. A KV head with gate a attends with a * (attention to all rows)
+ (1 - a) * (attention to the first and the most recent rows). The model stays as it is; gates begin
at 1 and minimise

    mean over the passkeys' tokens of the squared difference of last hidden states from those of the
    whole model + weight * mean of the gates

on contexts in which passkeys of random words are hidden in a text and asked for at the end. Gates
are clamped to [0, 1].

Other than in the paper: contexts are short and few, each is seen several times, steps are few, and
a head's score is the mean of its gate over all steps, since the last gates pile up at 0 and 1, and
a budget needs an order. Ctrl-C ends the
training: the steps until then count.
"""

import argparse
import pathlib
import time

import torch
import torch.nn.functional as F

import head_file
from llama import Llama, full
from sample_text import SampleText
from tokenizer import Tokenizer

ORDINALS = ("first", "second", "third", "fourth", "fifth")


class Contexts:
    """Passkeys of words that are one token each, hidden in a text's tokens."""

    def __init__(self, tokenizer, hay, passkeys, words, tokens, seed):
        self.tokenizer, self.hay, self.passkeys, self.words, self.tokens = (
            tokenizer,
            hay,
            passkeys,
            words,
            tokens,
        )
        self.draw = torch.Generator().manual_seed(seed)
        plain = [
            i
            for i, t in enumerate(tokenizer.tokens)
            if t[0] == "Ġ"
            and 4 <= len(t) <= 9
            and t[1:].isascii()
            and t[1:].isalpha()
            and t[1:].islower()
        ]
        self.vocabulary = torch.tensor(plain)

    def below(self, n):
        return int(torch.randint(n, (1,), generator=self.draw))

    def next(self):
        """Token ids, and a mask of the rows that must foretell a passkey's tokens at the end."""
        encode = self.tokenizer.encode
        keys = [
            self.vocabulary[
                torch.randint(len(self.vocabulary), (self.words,), generator=self.draw)
            ].tolist()
            for _ in range(self.passkeys)
        ]
        facts = [
            encode(f"\n\nThe {ORDINALS[i]} passkey is") + key + encode(".\n\n")
            for i, key in enumerate(keys)
        ]
        ask, asked = encode("\n\nNow all passkeys again.\n"), []
        asked += [False] * len(ask)
        for i, key in enumerate(keys):
            opening = encode(f"\nThe {ORDINALS[i]} passkey is")
            ask += opening + key + encode(".")
            # The row before a token foretells it.
            asked += [False] * (len(opening) - 1) + [True] * len(key) + [False] * 2
        room = self.tokens - len(ask) - sum(map(len, facts))
        start = self.below(len(self.hay) - room)
        hay = self.hay[start : start + room]
        cuts = sorted(self.below(room) for _ in facts)
        ids = []
        for fact, begin, end in zip(facts, [0] + cuts, cuts):
            ids += hay[begin:end] + fact
        ids += hay[cuts[-1] :]
        mask = torch.tensor([False] * len(ids) + asked)
        return torch.tensor(ids + ask), mask


def streaming_mask(n, sinks, recent):
    """Whether row i attends to row j: [n, n]."""
    behind = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    return (behind >= 0) & ((behind < recent) | (torch.arange(n)[None, :] < sinks))


def gated(gates, visible):
    def attend(layer, q, k, v):
        few = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=visible, enable_gqa=True
        )[0]
        gate = gates[layer].repeat_interleave(q.shape[0] // k.shape[0])[:, None, None]
        return gate * full(layer, q, k, v) + (1 - gate) * few

    return attend


def train(model, contexts, args):
    """Gates, [layers, kv_heads], in the mean over the steps, and how many steps were done."""
    gates = torch.ones(model.layers, model.kv_heads, requires_grad=True)
    visible = streaming_mask(args.tokens, args.sinks, args.recent)
    optimiser = torch.optim.AdamW([gates], lr=args.rate, weight_decay=0.0)
    total, done, seen = torch.zeros(gates.shape), 0, []
    try:
        for step in range(args.steps):
            total += one_step(model, contexts, args, step, gates, visible, optimiser, seen)
            done += 1
    except KeyboardInterrupt:
        print("ended early", flush=True)
    return total / done, done


def one_step(model, contexts, args, step, gates, visible, optimiser, seen):
    """Changes the gates and returns a copy. `seen`: the contexts so far, with the whole model's
    states."""
    start = time.monotonic()
    # Up over the first fifth of the steps, down over the last, as in the paper.
    ramp = max(1, args.steps // 5)
    optimiser.param_groups[0]["lr"] = args.rate * min(
        1, (step + 1) / ramp, (args.steps - step) / ramp
    )
    if len(seen) < args.contexts:
        ids, asked = contexts.next()
        with torch.no_grad():
            seen.append((ids, asked, model.states(ids, full)[asked]))
    ids, asked, want = seen[step % args.contexts]
    got = model.states(ids, gated(gates, visible))[asked]
    distance = (got - want).pow(2).mean()
    optimiser.zero_grad()
    (distance + args.weight * gates.mean()).backward()
    optimiser.step()
    with torch.no_grad():
        gates.clamp_(0, 1)
    print(
        f"step {step + 1}: distance {distance.item():.4f}, "
        f"gates {gates.mean().item():.3f} in the mean, "
        f"{int((gates > 0.5).sum())} of {gates.numel()} above a half, "
        f"{time.monotonic() - start:.1f} s",
        flush=True,
    )
    return gates.detach().clone()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    SampleText.add_arguments(parser, "hay")
    parser.add_argument("--out", default="calibration", help="folder for the file")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--contexts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=640, help="of a context")
    parser.add_argument("--passkeys", type=int, default=3)
    parser.add_argument("--words", type=int, default=8, help="of a passkey")
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--recent", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.04)
    parser.add_argument("--weight", type=float, default=0.5, help="of the gates' mean in the loss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = Llama(args.model)
    tokenizer = Tokenizer.of_file(args.model)
    hay = SampleText.of_arguments(args)
    contexts = Contexts(
        tokenizer, tokenizer.encode(hay.text), args.passkeys, args.words, args.tokens, args.seed
    )
    scores, steps = train(model, contexts, args)
    about = [
        f"{pathlib.Path(args.model).name}, by tools/calibration/duo_heads.py",
        hay.about,
        f"run: {steps} steps on {args.contexts} contexts of {args.tokens} tokens, "
        f"{args.passkeys} passkeys of {args.words} words, sinks {args.sinks}, "
        f"recent {args.recent}, rate {args.rate}, weight {args.weight}, seed {args.seed}",
    ]
    print(head_file.write(args.out, "duo", args.model, scores.tolist(), about))


if __name__ == "__main__":
    main()
