#!/usr/bin/env python3
"""KL of reference codecs on the texts and positions of a `cairn fidelity` run.

    cairn fidelity --recipe raw --suite prose --exact
    reference.py --model MODEL.gguf --plan build/fidelity/plan-prose.json [--codec NAME...] >
    reference.json

The plan holds the tokens. Rows are like those of `cairn fidelity --json`: log-softmax in float64,
bootstrap over documents. Full KV here is binary16, as there; arithmetic is float32.
"""

import argparse
import json
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "worker"))
from codecs_reference import CODECS, half  # noqa: E402
from torch_bench import Llama  # noqa: E402


def bootstrap(groups, seed=20260101, rounds=2000):
    values = torch.tensor(groups, dtype=torch.float64)
    pick = torch.randint(
        0, len(groups), (rounds, len(groups)), generator=torch.Generator().manual_seed(seed)
    )
    means = values[pick].sum(1)
    means = (means[:, 0] / means[:, 1]).sort().values
    return [float(means[int(0.025 * rounds)]), float(means[int(0.975 * rounds) - 1])]


def is_needles(plan):
    """Whether its continuations are questions with answers: what is counted then is answers, not
    KL."""
    return any(c["answer_begin"] > 1 for text in plan["texts"] for c in text["continuations"])


def score(model, cache, context, continuation):
    return model.forward(torch.tensor(continuation), cache.clone(), context, every_token=True)


class Judge:
    """The answers of full KV about one continuation, to compare others with."""

    def __init__(self, rows, continuation, needles):
        tokens, begin = continuation["tokens"], continuation["answer_begin"]
        self._judged = torch.arange(begin - 1, len(tokens) - 1)
        self._target = torch.tensor(tokens[begin:])
        self.positions = len(self._target)
        self.answered = bool((rows[self._judged].argmax(-1) == self._target).all())
        self._full = None if needles else rows[self._judged].double().log_softmax(-1)

    def is_answered(self, rows):
        return bool((rows[self._judged].argmax(-1) == self._target).all())

    def compare(self, rows):
        """KL, both negative log-likelihoods and the positions with the same most likely token, all
        summed."""
        p, q = self._full, rows[self._judged].double().log_softmax(-1)
        nll = [-float(x.gather(1, self._target[:, None]).sum()) for x in (p, q)]
        return (
            float((p.exp() * (p - q)).sum()),
            nll[0],
            nll[1],
            int((p.argmax(-1) == q.argmax(-1)).sum()),
        )


class Row:
    """One method's sums over the texts of a suite; errors (of K, of V) only of codecs."""

    def __init__(self, name, needles):
        self.name, self.needles = name, needles
        self.texts, self.bits, self.errors = [], [], []
        self.full, self.other, self.same = 0.0, 0.0, 0

    def add(self, judges, scores):
        """One text: the logits of its continuations, in the judges' order."""
        (self._add_needles if self.needles else self._add_document)(judges, scores)

    def _add_document(self, judges, scores):
        kl, positions = 0.0, 0
        for judge, rows in zip(judges, scores):
            one, full, other, same = judge.compare(rows)
            kl, positions = kl + one, positions + judge.positions
            self.full, self.other, self.same = (
                self.full + full,
                self.other + other,
                self.same + same,
            )
        self.texts.append([kl, positions])

    def _add_needles(self, judges, scores):
        self.texts.append(
            [
                int(judge.is_answered(rows)) if judge.answered else None
                for judge, rows in zip(judges, scores)
            ]
        )

    def report(self, suite):
        errors = [sum(e) / len(e) for e in zip(*self.errors)] or [None, None]
        row = {
            "recipe": self.name,
            "suite": suite,
            "bits_per_number": sum(self.bits) / len(self.bits),
            "err_k": errors[0],
            "err_v": errors[1],
        }
        if self.needles:
            groups = [
                [sum(cases), len(cases)]
                for text in self.texts
                if (cases := [c for c in text if c is not None])
            ]
            return row | {
                "needles_ok": sum(a for a, _ in groups),
                "needles_n": sum(b for _, b in groups),
                "needles_ci": bootstrap(groups),
                "texts": self.texts,
            }
        positions = sum(n for _, n in self.texts)
        return row | {
            "kl": sum(a for a, _ in self.texts) / positions,
            "kl_ci": bootstrap(self.texts),
            "ppl_delta": math.exp((self.other - self.full) / positions) - 1,
            "top1": self.same / positions,
            "texts": self.texts,
        }


def write_report(model, plan, rows):
    json.dump(
        {
            "model": pathlib.Path(model).name,
            "split": plan["split"],
            "arithmetic": "float32",
            "rows": [row.report(plan["suite"]) for row in rows],
        },
        sys.stdout,
    )
    print()


def begin(parser):
    """Adds what every reference is told, and loads it: arguments, model, plan and the texts of it
    to measure."""
    parser.add_argument("--model", required=True)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--limit", type=int, default=0, help="only the first N texts")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    model = Llama(arguments.model)
    plan = json.load(open(arguments.plan, encoding="utf-8"))
    texts = plan["texts"][: arguments.limit or None]
    return arguments, model, plan, texts


def with_progress(suite, texts):
    for number, text in enumerate(texts):
        yield text
        print(f"\r{suite}: text {number + 1} of {len(texts)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def measure(model, text, rows):
    """Adds one text to every row: the context is computed once and each codec applied to the same K
    and V."""
    context = text["context"]
    n = len(context)
    continuations = text["continuations"]
    cache = model.cache(n + max(len(c["tokens"]) for c in continuations))
    model.forward(torch.tensor(context), cache, 0)
    cache = half(cache)
    judges = [Judge(score(model, cache, n, c["tokens"]), c, rows[0].needles) for c in continuations]
    full_k, full_v = cache[:, 0, :, :n], cache[:, 1, :, :n]
    for row in rows:
        k, v, bits = CODECS[row.name](full_k, full_v)
        row.bits.append(bits)
        row.errors.append([float((a - b).norm() / b.norm()) for a, b in ((k, full_k), (v, full_v))])
        coded = cache.clone()
        coded[:, 0, :, :n], coded[:, 1, :, :n] = half(k), half(v)
        row.add(judges, (score(model, coded, n, c["tokens"]) for c in continuations))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--codec", action="append", choices=sorted(CODECS), help="all when not given"
    )
    arguments, model, plan, texts = begin(parser)
    rows = [Row(name, is_needles(plan)) for name in arguments.codec or CODECS]
    for text in with_progress(plan["suite"], texts):
        measure(model, text, rows)
    write_report(arguments.model, plan, rows)


if __name__ == "__main__":
    main()
