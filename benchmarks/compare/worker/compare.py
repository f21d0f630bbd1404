"""The worker against PyTorch (prefill) and llama.cpp (decode), interleaved, two threads each.

    compare.py --bench build/release/bin/worker_bench --model MODEL.gguf --repeat 5 --out rows.json

Writes a list of rows: name, median, unit, n, spread, yardstick, ratio, floor, goal. A ratio is the
median of the ratios of neighbouring samples, so a slow minute of the machine hits both sides. More
is better.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from rows import row  # noqa: E402  (needs the path above)

LENGTHS = (512, 1024, 2048, 4096)


class Yardstick:
    """A process that stays: what it loads is not measured, and it sleeps between its turns."""

    def __init__(self, script, model, threads):
        environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS=str(threads))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), model, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def measure(self, what, n):
        self._process.stdin.write(f"{what} {n}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"yardstick ended with status {self._process.wait()}")
        return json.loads(line)["value"]

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--only", default="prefill,decode,recompute", help="some of prefill,decode,recompute"
    )
    parser.add_argument("--out", help="file for the rows; standard output when not given")
    args = parser.parse_args()

    def ours(what, n):
        done = subprocess.run(
            [args.bench, args.model, what, str(n), "--threads", str(args.threads)],
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout)["value"]

    rows = []
    for what, script, name, floor, goal in (
        ("prefill", "torch_bench.py", "PyTorch float32", 1.5, 2.8),
        ("decode", "llama_bench.py", "llama.cpp", 0.8, 1.3),
    ):
        if what not in args.only.split(","):
            continue
        yardstick = Yardstick(script, args.model, args.threads)
        yardstick.measure("prefill", 64)
        for n in LENGTHS:
            pairs = [(ours(what, n), yardstick.measure(what, n)) for _ in range(args.repeat)]
            rows.append(
                row(
                    f"{what}_{n}",
                    [a for a, _ in pairs],
                    "tok/s",
                    f"{name} {statistics.median(b for _, b in pairs):.0f} tok/s",
                    statistics.median(a / b for a, b in pairs),
                    floor,
                    goal,
                )
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        yardstick.close()
    if "recompute" in args.only.split(","):
        times = [ours("recompute", 128) for _ in range(args.repeat)]
        rows.append(
            row(
                "kv_cache_128_tokens",
                times,
                "x",
                "recomputing all at each step (6.56 x published)",
                statistics.median(times),
                None,
                None,
            )
        )

    text = json.dumps(rows, indent=1)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
