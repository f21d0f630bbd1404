#!/usr/bin/env python3
"""Prefill and decode on two workers, compared with one worker, each worker on a core of its own.

    python3 benchmarks/worker/apart.py --build build/release --out report.json

Two questions. How much later does the first token come through a pair than from one worker? And
how much longer do the gaps between tokens of a decode worker become while prompts go through it?
Both are ratios within one run. Times are those of the client.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "is",
    "was",
    "for",
    "on",
    "are",
    "with",
    "as",
    "his",
    "they",
    "at",
    "be",
    "this",
    "from",
    "have",
]


class Server:
    """A node or a worker on one core, from its ready line to its end."""

    def __init__(self, core, argv):
        self.process = subprocess.Popen(
            ["taskset", "-c", str(core), *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in self.process.stdout:
            found = re.search(r"ready .*grpc=(\S+)", line)
            if found:
                self.address = found.group(1)
                break
        else:
            raise RuntimeError(f"{argv[0]} did not start")
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Bench:
    def __init__(self, build, words):
        self.bin = pathlib.Path(build) / "bin"
        self.words = words
        self.random = random.Random(7)

    def node(self):
        return Server(
            1,
            [
                str(self.bin / "cairn-cache"),
                *("--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"),
                *("--host.capacity", "1GiB"),
            ],
        )

    def worker(self, core, role, node):
        return Server(
            core,
            [
                str(self.bin / "cairn-worker"),
                *("--model", MODEL, "--threads", "1", "--role", role, "--cache", node.address),
                *("--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"),
            ],
        )

    def prompt(self, words=None):
        return " ".join(self.random.choice(WORDS) for _ in range(words or self.words))

    def generate(self, workers, prompt, tokens):
        argv = [str(self.bin / "cairn"), "generate", *workers, "--prompt", prompt]
        return subprocess.Popen(
            [*argv, "--ignore-eos", "--max-tokens", str(tokens)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def first_token(self, workers, prompt):
        """Seconds until the first byte of the answer."""
        begin = time.monotonic()
        process = self.generate(workers, prompt, 2)
        os.read(process.stdout.fileno(), 1)
        took = time.monotonic() - begin
        process.stdout.read()
        process.wait()
        return took

    def gaps(self, workers, tokens, beside=None):
        """Seconds between pieces of an answer. `beside`: prompts that go this way meanwhile."""
        process = self.generate(workers, self.prompt(20), tokens)
        over = threading.Event()
        prompts = []

        def load():
            while not over.is_set():
                prompts.append(self.first_token(beside, self.prompt()))

        os.read(process.stdout.fileno(), 4096)
        thread = threading.Thread(target=load)
        if beside:
            thread.start()
        last = time.monotonic()
        found = []
        while os.read(process.stdout.fileno(), 4096):
            now = time.monotonic()
            found.append(now - last)
            last = now
        over.set()
        if beside:
            thread.join()
        process.wait()
        return found, len(prompts)


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def ttft(bench, trials):
    pair, one = [], []
    node = bench.node()
    prefill = bench.worker(0, "prefill", node)
    decode = bench.worker(1, "decode", node)
    alone = bench.worker(0, "both", node)
    through = ["--prefill-worker", prefill.address, "--worker", decode.address]
    direct = ["--worker", alone.address]
    for workers in (through, direct):
        bench.first_token(workers, bench.prompt())
    for _ in range(trials):
        pair.append(bench.first_token(through, bench.prompt()))
        one.append(bench.first_token(direct, bench.prompt()))
    for server in (alone, decode, prefill, node):
        server.stop()
    ratio = statistics.median(pair) / statistics.median(one)
    return {"pair_s": pair, "one_s": one, "ratio": ratio}


def token_gap(bench, trials, tokens):
    quiet, loaded, prompts = [], [], 0
    node = bench.node()
    prefill = bench.worker(0, "prefill", node)
    decode = bench.worker(1, "decode", node)
    through = ["--prefill-worker", prefill.address, "--worker", decode.address]
    for _ in range(trials):
        quiet += bench.gaps(["--worker", decode.address], tokens)[0]
        gaps, count = bench.gaps(["--worker", decode.address], tokens, through)
        loaded += gaps
        prompts += count
    for server in (decode, prefill, node):
        server.stop()
    return {
        "quiet_p99_s": p99(quiet),
        "loaded_p99_s": p99(loaded),
        "quiet_gaps": len(quiet),
        "loaded_gaps": len(loaded),
        "prompts_beside": prompts,
        "ratio": p99(loaded) / p99(quiet),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out")
    parser.add_argument("--words", type=int, default=1500, help="of a prompt")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000, help="of an answer that is watched")
    args = parser.parse_args()
    os.chdir(ROOT)
    bench = Bench(args.build, args.words)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    report = {
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": "benchmarks/worker/apart.py",
        "prompt_words": args.words,
        "ttft": ttft(bench, args.trials),
        "token_gap": token_gap(bench, 1 + args.trials // 3, args.tokens),
    }
    text = json.dumps(report, indent=1)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
