#!/usr/bin/env python3
"""Scores KV heads as RazorAttention does: echo and induction on random tokens that repeat.

    pip install torch gguf
    python3 tools/calibration/razor_heads.py MODEL.gguf --out calibration

Source: Tang et al., "RazorAttention: Efficient KV Cache Compression Through Retrieval Heads", 2024,
section 3.2. A query's echo score is the attention that it pays to earlier tokens equal to its own,
its induction score that to the tokens behind these; the mean over the queries of all repeats but
the first. A KV head has the largest score of its query heads.

The paper keeps the best 14 % of heads by induction and the best 1 % by echo. Here a budget says how
many heads are kept, so the heads are put into one order in which, wherever it is cut, 14 were taken
by induction for each one by echo. A head's score is 1 for the first of this order, falling to 0. No
text is read: tokens are drawn by lot.
"""

import argparse
import pathlib

import torch

import head_file
from llama import Llama, full

INDUCTION_TO_ECHO = 14


def repeated(vocab, period, repeats, seed):
    draw = torch.Generator().manual_seed(seed)
    # Special tokens are the first ones.
    return torch.randint(min(64, vocab // 4), vocab, (period,), generator=draw).repeat(repeats)


def head_scores(q, k, period):
    """Echo and induction of each query head, [heads] each."""
    heads, n, dim = q.shape
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    echo, induction = torch.zeros(heads), torch.zeros(heads)
    for h in range(heads):
        logits = (q[h] @ k[h * k.shape[0] // heads].T) * dim**-0.5
        p = logits.masked_fill_(future, float("-inf")).softmax(-1)
        for back in range(period, n + 1, period):
            echo[h] += p.diagonal(-back).sum()
            # The token behind an equal one lies one less back; the first repeat's last row is not
            # asked.
            induction[h] += p.diagonal(1 - back)[1 if back == period else 0 :].sum()
    return echo / (n - period), induction / (n - period)


def in_one_order(echo, induction):
    """[layers, kv_heads] each to one of scores from 1 to 0. Ties: the head that comes first."""
    order = lambda x: torch.sort(x.flatten(), descending=True, stable=True).indices.tolist()
    by_echo, by_induction, taken = order(echo), order(induction), []
    while len(taken) < echo.numel():
        # After each 14 by induction, one by echo.
        source = (
            by_echo if len(taken) % (INDUCTION_TO_ECHO + 1) == INDUCTION_TO_ECHO else by_induction
        )
        taken.append(next(h for h in source if h not in taken))
    scores = torch.empty(len(taken))
    scores[torch.tensor(taken)] = torch.linspace(1, 0, len(taken))
    return scores.view_as(echo)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--out", default="calibration", help="folder for the file")
    parser.add_argument("--period", type=int, default=256, help="random tokens (the paper: 2500)")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    model = Llama(args.model)
    echo = torch.zeros(model.layers, model.kv_heads)
    induction = torch.zeros_like(echo)

    def attend(layer, q, k, v):
        for total, of_heads in zip((echo, induction), head_scores(q, k, args.period)):
            total[layer] += of_heads.view(model.kv_heads, -1).amax(-1) / args.draws
        return full(layer, q, k, v)

    for seed in range(args.draws):
        model.states(repeated(model.vocab, args.period, args.repeats, seed), attend)
        print(f"draw {seed + 1} of {args.draws}", flush=True)
    for name, x in (("echo", echo), ("induction", induction)):
        print(
            name,
            "largest",
            [round(float(s), 3) for s in x.flatten().sort(descending=True).values[:12]],
            "median",
            float(x.median()),
        )
    about = [
        f"{pathlib.Path(args.model).name}, by tools/calibration/razor_heads.py",
        "text: none, random tokens",
        f"run: {args.draws} draw(s) of {args.period} tokens, {args.repeats} times each",
    ]
    print(
        head_file.write(
            args.out, "razor", args.model, in_one_order(echo, induction).tolist(), about
        )
    )


if __name__ == "__main__":
    main()
