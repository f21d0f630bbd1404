#!/usr/bin/env python3
"""Finds a rotation of each KV head in which few columns tell most about logits, as InfiniGen does.

    pip install torch gguf
    python3 tools/calibration/infinigen_rotations.py MODEL.gguf --text TEXT --out calibration

Source: Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic
KV Cache Management", 2024, section 4.2. The model runs once over a sample. The queries of a head
are decomposed, Q = U S V', and the columns of V, the largest singular value first, are the
directions into which keys and queries are rotated.

Other than in the paper: queries and keys are rotated after RoPE, since a rotation in front of it
does not commute with it; the queries of all heads of a KV head's group are decomposed together; and
the queries' part of the choice of columns, the mean of |q . direction|, comes from this run and
stands in the file, since a worker that fetches a context has its keys but not its queries.
"""

import argparse
import pathlib

import rotation_file
import torch
from llama import Llama, full
from sample_text import SampleText
from tokenizer import Tokenizer


def rotation(queries):
    """Directions [dim, dim], one a row, of queries [n, dim], and the mean of |q . direction|,
    [dim]. A direction and its opposite are the same: the largest of its numbers is positive."""
    queries = queries.double()
    _, directions = torch.linalg.eigh(queries.T @ queries)
    directions = directions.T.flip(0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign()
    return directions, (queries @ directions.T).abs().mean(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    SampleText.add_arguments(parser, "text")
    parser.add_argument("--out", default="calibration", help="folder for the file")
    parser.add_argument("--contexts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024, help="of a context")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    model = Llama(args.model)
    sample = SampleText.of_arguments(args)
    ids = Tokenizer.of_file(args.model).encode(sample.text)
    if len(ids) < args.contexts * args.tokens:
        parser.error(f"--text has {len(ids)} tokens, expected {args.contexts} x {args.tokens}")
    seen = [[] for _ in range(model.layers)]
    for number in range(args.contexts):

        def attend(layer, q, k, v):
            seen[layer].append(q)
            return full(layer, q, k, v)

        first = number * args.tokens
        model.states(torch.tensor(ids[first : first + args.tokens]), attend)
        print(f"context {number + 1} of {args.contexts}", flush=True)
    heads = []
    for of_layer in seen:
        queries = torch.cat(of_layer, 1).view(model.kv_heads, -1, model.dim)
        heads.append([rotation(of_head) for of_head in queries])
    about = [
        f"{pathlib.Path(args.model).name}, by tools/calibration/infinigen_rotations.py",
        sample.about,
        f"run: the first {args.contexts} contexts of {args.tokens} tokens",
    ]
    print(rotation_file.write(args.out, args.model, heads, about))


if __name__ == "__main__":
    main()
