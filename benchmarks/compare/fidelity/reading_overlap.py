#!/usr/bin/env python3
"""Shares of rows that Cairn's read policies and their definitions in torch both choose, for the
same tokens of the real model. Each program computes its own KV and its own hidden states.

    reading_overlap.py --model MODEL.gguf --plan build/fidelity/plan-prose.json --limit 1
      --program build/release/benchmarks/reading_rows --policy quest:rows=0.2 ... [--steps N]

The overlap of a choice is the number of rows that both read over the larger of the two numbers;
printed are the mean over texts, steps, layers and heads, and the hundredth part with the least.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import numpy as np
import torch
from reading_reference import Reader, capture
from reference import begin, with_progress


def of_cairn(program, model, text, steps, policy):
    """Rows [steps, layers, kv_heads, n] that reading_rows prints."""
    tokens = text["context"] + text["continuations"][0]["tokens"][:steps]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(" ".join(map(str, tokens)))
        file.flush()
        out = subprocess.run(
            [program, "--model", model, "--tokens", file.name]
            + ["--context", str(len(text["context"])), "--policy", policy],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    lines = [
        [np.frombuffer(bytes.fromhex(mask), dtype=np.uint8) for mask in line.split()]
        for line in out.splitlines()
    ]
    masks = np.unpackbits(np.array(lines), axis=-1, bitorder="little").astype(bool)
    return masks.reshape(steps, -1, *masks.shape[1:])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", required=True)
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--steps", type=int, default=32, help="tokens of each continuation")
    arguments, model, plan, texts = begin(parser)
    found = {policy: [] for policy in arguments.policy}
    for text in with_progress(plan["suite"], texts):
        layers = capture(model, text["context"])
        steps = min(arguments.steps, len(text["continuations"][0]["tokens"]))
        for policy in arguments.policy:
            chosen = []
            Reader(model, policy).score(
                layers,
                text["continuations"][0]["tokens"][:steps],
                keep=lambda _, rows, chosen=chosen: chosen.append(rows),
            )
            theirs = torch.stack(chosen).permute(2, 0, 1, 3).numpy()
            ours = of_cairn(arguments.program, arguments.model, text, steps, policy)
            most = np.maximum(ours.sum(-1), theirs.sum(-1))
            found[policy].append(((ours & theirs).sum(-1) / most).reshape(-1))
    rows = [
        {
            "policy": policy,
            "texts": len(of_text),
            "choices": int(sum(map(len, of_text))),
            "overlap": float(np.concatenate(of_text).mean()),
            "overlap_p1": float(np.quantile(np.concatenate(of_text), 0.01)),
        }
        for policy, of_text in found.items()
    ]
    json.dump(
        {"suite": plan["suite"], "steps": arguments.steps, "rows": rows}, sys.stdout, indent=1
    )
    print()


if __name__ == "__main__":
    main()
