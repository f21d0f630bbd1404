#!/usr/bin/env python3
"""KL of reference codecs on the texts and positions of a `cairn fidelity` run.

    cairn fidelity --recipe raw --suite prose --exact
    reference.py --model MODEL.gguf --plan build/fidelity/plan-prose.json [--codec NAME...] > reference.json

The plan holds the tokens. Rows are like those of `cairn fidelity --json`: log-softmax in float64, bootstrap over documents. Full KV here is
binary16, as there; arithmetic is float32.
"""

import argparse
import json
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "worker"))
from codecs_reference import CODECS  # noqa: E402
from torch_bench import Llama  # noqa: E402


def bootstrap(groups, seed=20260101, rounds=2000):
    values = torch.tensor(groups, dtype=torch.float64)
    pick = torch.randint(0, len(groups), (rounds, len(groups)), generator=torch.Generator().manual_seed(seed))
    means = values[pick].sum(1)
    means = (means[:, 0] / means[:, 1]).sort().values
    return [float(means[int(0.025 * rounds)]), float(means[int(0.975 * rounds) - 1])]


def score(model, cache, context, continuation):
    return model.forward(torch.tensor(continuation), cache.clone(), context, every_token=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--codec", action="append", choices=sorted(CODECS), help="all when not given")
    parser.add_argument("--limit", type=int, default=0, help="only the first N texts")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    model = Llama(arguments.model)
    plan = json.load(open(arguments.plan, encoding="utf-8"))
    texts = plan["texts"][:arguments.limit or None]
    names = arguments.codec or list(CODECS)
    sums = {name: {"kl": [], "needles": [], "full": 0.0, "other": 0.0, "same": 0, "n": 0, "bits": [], "err": []} for name in names}

    for number, text in enumerate(texts):
        context = text["context"]
        n = len(context)
        longest = max(len(c["tokens"]) for c in text["continuations"])
        cache = model.cache(n + longest)
        model.forward(torch.tensor(context), cache, 0)
        cache = cache.half().float()
        full = [score(model, cache, n, c["tokens"]) for c in text["continuations"]]
        for name in names:
            total = sums[name]
            k, v, bits = CODECS[name](cache[:, 0, :, :n], cache[:, 1, :, :n])
            total["bits"].append(bits)
            total["err"].append([float((a - b).norm() / b.norm()) for a, b in ((k, cache[:, 0, :, :n]), (v, cache[:, 1, :, :n]))])
            coded = cache.clone()
            coded[:, 0, :, :n], coded[:, 1, :, :n] = half_of(k), half_of(v)
            kl, right, cases = 0.0, 0, 0
            for c, rows in zip(text["continuations"], full):
                tokens, begin = c["tokens"], c["answer_begin"]
                judged = torch.arange(begin - 1, len(tokens) - 1)
                target = torch.tensor(tokens[begin:])
                if plan["suite"] == "needles":
                    if not bool((rows[judged].argmax(-1) == target).all()):
                        continue
                other = score(model, coded, n, tokens)[judged].double().log_softmax(-1)
                p = rows[judged].double().log_softmax(-1)
                if plan["suite"] == "needles":
                    cases += 1
                    right += bool((other.argmax(-1) == target).all())
                    continue
                kl += float((p.exp() * (p - other)).sum())
                total["full"] -= float(p.gather(1, target[:, None]).sum())
                total["other"] -= float(other.gather(1, target[:, None]).sum())
                total["same"] += int((p.argmax(-1) == other.argmax(-1)).sum())
                total["n"] += len(target)
                cases += len(target)
            total["needles" if plan["suite"] == "needles" else "kl"].append([right if plan["suite"] == "needles" else kl, cases])
        print(f"\r{plan['suite']}: text {number + 1} of {len(texts)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    rows = []
    for name in names:
        total = sums[name]
        row = {"recipe": name, "suite": plan["suite"], "bits_per_number": sum(total["bits"]) / len(total["bits"]),
               "err_k": sum(e[0] for e in total["err"]) / len(total["err"]), "err_v": sum(e[1] for e in total["err"]) / len(total["err"])}
        if plan["suite"] == "needles":
            row |= {"needles_ok": sum(a for a, _ in total["needles"]), "needles_n": sum(b for _, b in total["needles"]),
                    "needles_ci": bootstrap([g for g in total["needles"] if g[1]])}
        else:
            row |= {"kl": sum(a for a, _ in total["kl"]) / total["n"], "kl_ci": bootstrap(total["kl"]),
                    "ppl_delta": math.exp((total["other"] - total["full"]) / total["n"]) - 1, "top1": total["same"] / total["n"]}
        rows.append(row)
    json.dump({"model": arguments.model.rsplit("/", 1)[-1], "split": plan["split"], "arithmetic": "float32", "rows": rows}, sys.stdout, indent=2)
    print()


def half_of(x):
    return x.half().float()


if __name__ == "__main__":
    main()
