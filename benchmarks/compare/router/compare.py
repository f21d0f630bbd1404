#!/usr/bin/env python3
"""Compares Cairn's router with smg and vllm-router before simulated engines over HTTP.

python3 benchmarks/compare/router/compare.py build/release --out build/bench/routers.json

README.md says what is simulated. Exit status 3: the other routers are not installed.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import added_time  # noqa: E402  (needs the path above)
import contenders  # noqa: E402
import load_client  # noqa: E402
import run  # noqa: E402
import trace  # noqa: E402
from rows import row  # noqa: E402

ENGINES = 4
# Some routers find their engines one after the other, and tell nobody when they have.
SETTLE_SECONDS = 1.5
STREAMS = 2000
STREAMS_MIB = 64
# Shown only.
NOT_JUDGED = ("smg_round_robin", "vllm_router_consistent_hash")
# The engines' caches, in tokens (benchmarks/model/worker_model.h).
CACHE_TOKENS = 3_000_000


def launchers(build, cache_tokens, compression=1, shorter=1):
    """name -> what starts it before these engines. Sizes are given in characters, and timers in
    seconds: both get what their defaults are to prompts of full length in real time."""
    seconds = lambda default: str(max(1, round(default / compression)))  # noqa: E731
    smg_tree = ["--max-tree-size", str(67_108_864 // shorter)]
    smg_timers = ["--load-monitor-interval", seconds(10), "--eviction-interval-secs", seconds(60)]
    smg_timers += ["--worker-warmup-secs", seconds(60)]
    vllm_tree = ["--max-tree-size", str(33_554_432 // shorter)]
    vllm_timers = ["--eviction-interval-secs", seconds(120)]
    smg_all = [*smg_tree, *smg_timers]
    cairn = ["--engines.text_block", str(256 // shorter)]
    # At least 1 ms.
    cairn += ["--engines.load_interval", f"{max(1, round(100 / compression))}ms"]
    cairn += ["--engines.cache_tokens", str(cache_tokens // shorter)]
    return {
        "cairn": lambda engines, log: contenders.cairn(build, engines, log, *cairn),
        "smg": lambda engines, log: contenders.smg(engines, log, *smg_all),
        "smg_unprotected": lambda engines, log: contenders.smg(
            engines, log, *smg_all, "--disable-worker-overload-protection"
        ),
        "smg_round_robin": lambda engines, log: contenders.smg(
            engines, log, *smg_timers, "--policy", "round_robin"
        ),
        "vllm_router": lambda engines, log: contenders.vllm_router(
            engines, log, *vllm_tree, *vllm_timers
        ),
        "vllm_router_consistent_hash": lambda engines, log: contenders.vllm_router(
            engines, log, "--policy", "consistent_hash"
        ),
        "direct": lambda engines, log: contenders.direct(engines),
    }


def percentile(samples, share):
    return sorted(samples)[int(share * (len(samples) - 1))]


class Comparison:
    def __init__(self, arguments, work):
        self.arguments = arguments
        self.work = work
        self.build = arguments.build.resolve()
        self.chosen = arguments.contenders.split(",")
        self.first_round = 0  # The first round that the results do not have yet.
        held = arguments.cache_tokens
        self.launchers = launchers(self.build, held)
        self.scaled_launchers = launchers(self.build, held, arguments.compression, trace.SHORTER)

    def log(self, name):
        return self.work / f"{name}.log"

    def play(self, name, requests):
        """One run of the trace: seconds of the model."""
        a = self.arguments
        options = ["--engines", ENGINES, "--compression", a.compression, "--order", a.order]
        with (
            contenders.Engines(self.build, *options) as engines,
            self.scaled_launchers[name](engines.urls, self.log(name)) as router,
        ):
            time.sleep(SETTLE_SECONDS)
            pids = {"router": router.pid, "engines": engines.process.pid}
            before = {each: contenders.cpu_seconds(pid) for each, pid in pids.items() if pid}
            own, began = time.process_time(), time.monotonic()
            answers = load_client.play(router.url, requests, a.compression)
            took = time.monotonic() - began
            used = {
                each: round((contenders.cpu_seconds(pids[each]) - seconds) / took, 3)
                for each, seconds in before.items()
            }
            used["client"] = round((time.process_time() - own) / took, 3)
        counted = answers[a.warm_up :]
        good = [each for each in counted if each.status == 200 and not each.error]
        failed = [each for each in answers if each not in good and each in counted]
        ttft = [(each.first - each.due) * a.compression for each in good]
        late = [(each.sent - each.due) * a.compression for each in good]
        prompts = sum(each.prompt_tokens for each in good)
        return {
            "contender": name,
            "mean": statistics.mean(ttft),
            "p50": percentile(ttft, 0.5),
            "p90": percentile(ttft, 0.9),
            "p99": percentile(ttft, 0.99),
            "hit_share": sum(each.cached_tokens for each in good) / prompts,
            "answered": len(good),
            "failed": len(failed),
            "first_failure": failed[0].error[:200] if failed else "",
            "sent_late_p99": percentile(late, 0.99),
            "cpu_share": used,
        }

    def ttft(self):
        a = self.arguments
        requests = trace.read(a.trace, a.requests, a.load, ENGINES)
        runs = []
        for number in range(a.rounds):
            # No contender is always the first one.
            turn = (self.first_round + number) % len(self.chosen)
            for name in self.chosen[turn:] + self.chosen[:turn]:
                runs.append({"round": self.first_round + number, **self.play(name, requests)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        return runs

    def added(self):
        """Microseconds to the first event of each contender, in each round."""
        a = self.arguments
        names = ["direct", "cairn", "smg", "vllm_router"]
        with contenders.Engines(self.build, "--engines", 2, "--answers", "at_once") as engines:
            started = [self.launchers[name](engines.urls, self.log(name)) for name in names]
            rounds = []
            routers = {}
            try:
                for name, each in zip(names, started):
                    routers[name] = each.__enter__()
                time.sleep(SETTLE_SECONDS)
                for name in names:
                    added_time.first_event_seconds(routers[name].url, 200, 0)  # Warm.
                for number in range(a.added_rounds):
                    turn = number % len(names)
                    rounds.append({})
                    for name in names[turn:] + names[:turn]:
                        seconds = added_time.first_event_seconds(
                            routers[name].url, a.added_requests, 1000 * (number + 1)
                        )
                        rounds[-1][name] = {
                            "p50": 1e6 * percentile(seconds, 0.5),
                            "p99": 1e6 * percentile(seconds, 0.99),
                        }
                    print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
            finally:
                for each in started:
                    each.__exit__(None, None, None)
        return rounds

    def streams(self):
        """MiB of each router with STREAMS open streams, and before, in each round."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
        memory = []
        for number in range(self.arguments.rounds):
            for name in ("cairn", "smg", "vllm_router"):
                with (
                    contenders.Engines(
                        self.build, "--engines", ENGINES, "--answers", "held"
                    ) as engines,
                    self.launchers[name](engines.urls, self.log(name)) as router,
                ):
                    time.sleep(SETTLE_SECONDS)
                    before = contenders.resident_mib(router.pid)
                    connections = added_time.open_streams(router.url, STREAMS)
                    resident = contenders.resident_mib(router.pid)
                    for connection in connections:
                        connection.close()
                memory.append(
                    {
                        "round": self.first_round + number,
                        "contender": name,
                        "before": before,
                        "open": resident,
                    }
                )
                print(json.dumps(memory[-1]), file=sys.stderr, flush=True)
        return memory


def ttft_rows(runs):
    means = {}
    for each in runs:
        means.setdefault(each["contender"], []).append(each["mean"])
    own = means.get("cairn")
    if own is None:
        return []
    rows = []
    for other, samples in means.items():
        if other == "cairn":
            continue
        # Medians of both, as they ran in turns.
        middle = statistics.median(samples)
        floor, goal = (None, None) if other in NOT_JUDGED else (1.5, 2.5)
        rows.append(
            row(
                f"routers_mean_ttft_{other}",
                own,
                "s",
                f"{other.replace('_', ' ')} {middle:.2f} s",
                middle / statistics.median(own),
                floor,
                goal,
            )
        )
    return rows


def added_rows(rounds):
    rows = []
    for name, floor, goal in (("p50", 1 / 0.8, 1 / 0.5), ("p99", 1.0, None)):
        # Within each round, so that a slow time of the machine slows all of them.
        added = {
            each: [one[each][name] - one["direct"][name] for one in rounds]
            for each in ("cairn", "smg", "vllm_router")
        }
        for other in ("smg", "vllm_router"):
            judged = other == "smg"
            middle = statistics.median(added[other])
            rows.append(
                row(
                    f"routers_added_{name}_{other}",
                    added["cairn"],
                    "us",
                    f"{other.replace('_', ' ')} {middle:.0f} us",
                    middle / statistics.median(added["cairn"]),
                    floor if judged else None,
                    goal if judged else None,
                )
            )
    return rows


def stream_rows(memory):
    def of(name):
        return [each["open"] for each in memory if each["contender"] == name]

    others = ", ".join(
        f"{each.replace('_', ' ')} {statistics.median(of(each)):.0f}"
        for each in ("smg", "vllm_router")
    )
    middle = statistics.median(of("cairn"))
    shown = f"budget {STREAMS_MIB} MiB ({others})"
    return [
        row(
            f"routers_{STREAMS}_streams",
            of("cairn"),
            "MiB resident",
            shown,
            STREAMS_MIB / middle,
            1.0,
            None,
        )
    ]


# Each is a method of Comparison, too.
PARTS = {"ttft": ttft_rows, "added": added_rows, "streams": stream_rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build", type=pathlib.Path, help="build directory with the programs")
    parser.add_argument("--out", type=pathlib.Path, help="rows and raw results, as JSON")
    parser.add_argument("--only", default="ttft,added,streams")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", default="cairn,smg,smg_unprotected,vllm_router")
    parser.add_argument(
        "--trace",
        type=pathlib.Path,
        default=contenders.ROOT / "tests/data/traces/conversation_trace.jsonl",
    )
    parser.add_argument("--requests", type=int, default=0, help="0: all of the trace")
    parser.add_argument("--warm-up", type=int, default=1000, help="requests that do not count")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--compression", type=float, default=100)
    parser.add_argument("--order", default="fifo", choices=["fifo", "least-work"])
    parser.add_argument(
        "--cache-tokens",
        type=int,
        default=CACHE_TOKENS,
        help="what Cairn's router is told that an engine holds",
    )
    parser.add_argument("--added-rounds", type=int, default=10)
    parser.add_argument("--added-requests", type=int, default=200, help="in each round")
    parser.add_argument("--append", action="store_true", help="adds to the results in --out")
    arguments = parser.parse_args()
    if subprocess.run([HERE / "setup.sh", "--check"], check=False).returncode != 0:
        return 3
    report = {
        "machine": run.machine(),
        "commit": run.commit(),
        "command": " ".join(sys.argv),
        "settings": {name: str(value) for name, value in vars(arguments).items()},
    }
    if arguments.append and arguments.out.exists():
        report = json.loads(arguments.out.read_text())
        report["command"] += "; " + " ".join(sys.argv)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        comparison = Comparison(arguments, pathlib.Path(work))
        for part in arguments.only.split(","):
            known = report.setdefault(part, [])
            comparison.first_round = 1 + max((each.get("round", -1) for each in known), default=-1)
            known += getattr(comparison, part)()
    for part, make_rows in PARTS.items():
        if report.get(part):
            rows += make_rows(report[part])
    report["rows"] = rows
    for one in rows:
        print(
            f"{one['name']:40} {one['median']:10.3f} {one['unit']:14} {one['yardstick']:40} "
            f"ratio {one['ratio']:.2f}"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
