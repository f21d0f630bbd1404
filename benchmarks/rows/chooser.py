"""Fetch, compute, or both: the worker's choice next to the two extremes, over a throttled way to
the node.

One prompt of a shared prefix and a few tokens of its own, over a proxy whose rate makes fetching
the prefix cost from a tenth to ten times what computing it costs. The three policies take turns at
each rate. A picture of the sweep goes to the work directory as chooser.svg.
"""

import pathlib
import statistics

from . import row
from .processes import Server, cairn, node_command, wait_until, worker_command
from .throttle import Throttle

NAMES = ["chooser_worst_of_sweep", "chooser_fetch_as_dear_as_compute"]
TEXTS = pathlib.Path(__file__).resolve().parents[2] / "examples/demo"
PREFIX_CHARACTERS = 6000
# Seconds that fetching costs, in those of computing.
COSTS = (0.1, 0.3, 0.6, 1.0, 1.7, 4.0)
POLICIES = ("fetch", "compute", "choose")


def run(build, model, repeat, work):
    log = work / "chooser.log"
    with (
        Server(node_command(build, "--host.capacity", "1GiB"), log) as node,
        Throttle(node.grpc) as wire,
    ):
        flags = ("--cache", wire.address, "--cache.path", "grpc", "--cache.match_deadline", "2s")
        with (
            Server(worker_command(build, model, *flags), log) as chooser,
            Server(worker_command(build, model, *flags, "--cache.choose", "false"), log) as fetcher,
        ):
            for worker in (chooser, fetcher):
                wait_until(
                    lambda w=worker: w.metric("cairn_worker_cache_connected") == 1,
                    20,
                    "worker connects",
                )
            bench = _Bench(build, chooser, fetcher, work)
            sweep = bench.sweep(wire, repeat)
    picture(sweep, work / "chooser.svg")

    def better(point):
        return min(statistics.median(point["fetch"]), statistics.median(point["compute"]))

    worst = min(sweep, key=lambda p: better(p) / statistics.median(p["choose"]))
    # Two samples of one policy differ by so much without any reason.
    noise = statistics.median(_spread(p[name]) for p in sweep for name in ("compute", "choose"))
    equal = next(p for p in sweep if p["cost"] == 1.0)
    # A fetch that takes as long as computing is given up shortly before its end, so "fetch all"
    # cannot be the yardstick here: what it would take follows from the rate.
    both = 2 * statistics.median(equal["compute"])
    return [
        row(
            "chooser_worst_of_sweep",
            worst["choose"],
            "s",
            f"better of fetch {statistics.median(worst['fetch']):.2f} s, "
            f"compute {statistics.median(worst['compute']):.2f} s, "
            f"noise {noise:.0%}",
            better(worst) / statistics.median(worst["choose"]),
            1 / (1.05 + noise),
            None,
        ),
        row(
            "chooser_fetch_as_dear_as_compute",
            equal["choose"],
            "s",
            f"fetch + compute {both:.2f} s",
            both / statistics.median(equal["choose"]),
            1 / 0.65,
            2.0,
        ),
    ]


def _spread(samples):
    return (max(samples) - min(samples)) / statistics.median(samples)


class _Bench:
    def __init__(self, build, chooser, fetcher, work):
        self._build, self._chooser, self._fetcher, self._work = build, chooser, fetcher, work
        text = (TEXTS / "opticks-definitions.txt").read_text(encoding="utf-8")
        self._prefix = text[:PREFIX_CHARACTERS]
        self._asked = 0

    def _prompt(self):
        """The prefix, and an end that no other prompt has: less than a block."""
        self._asked += 1
        path = self._work / "chooser-prompt.txt"
        path.write_text(f"{self._prefix}\n\nQuestion number {self._asked}: what is light?")
        return path

    def _ask(self, worker, *extra):
        return cairn(
            self._build,
            "generate",
            "--worker",
            worker.grpc,
            "--raw",
            "--prompt-file",
            self._prompt(),
            "--max-tokens",
            1,
            *extra,
        )

    def ask(self, policy):
        if policy == "compute":
            return self._ask(self._chooser, "--no-cache")
        return self._ask(self._fetcher if policy == "fetch" else self._chooser)

    def sweep(self, wire, repeat):
        for worker in (self._chooser, self._fetcher):
            for _ in range(2):
                self._ask(worker, "--no-cache")  # It learns its own speed.
        self._ask(self._chooser)  # The prefix is pushed.
        wait_until(
            lambda: self._chooser.metric("cairn_worker_push_queue_blocks") == 0, 60, "pushes end"
        )
        size = sum(self._ask(self._fetcher)["fetched_bytes"].values())
        compute = statistics.median(self.ask("compute")["ttft_s"] for _ in range(3))
        points = []
        for cost in COSTS:
            wire.rate = size / (cost * compute)
            for _ in range(3):
                self.ask("choose")  # It learns the new rate.
            point = {
                "cost": cost,
                "rate": wire.rate,
                "computed": [],
                **{policy: [] for policy in POLICIES},
            }
            for i in range(repeat):
                for policy in POLICIES[i % 3 :] + POLICIES[: i % 3]:
                    answer = self.ask(policy)
                    point[policy].append(answer["ttft_s"])
                    if policy == "choose":
                        point["computed"].append(answer["chosen_tokens"])
            points.append(point)
            print(
                f"  fetch costs {cost:4.1f} x compute ({wire.rate / 1e6:7.1f} MB/s): "
                + ", ".join(f"{p} {statistics.median(point[p]):.3f} s" for p in POLICIES)
                + f", chose to compute {statistics.median(point['computed']):.0f} tokens "
                "of the prefix",
                flush=True,
            )
        return points


def picture(sweep, path):
    """Time to first token over the cost of fetching, one line a policy."""
    left, top, width, height = 60, 20, 560, 260
    most = 1.6 * max(statistics.median(p["compute"]) for p in sweep)
    colors = {"fetch": "#e0a030", "compute": "#3a8a5a", "choose": "#3050c0"}
    names = {"fetch": "fetch all", "compute": "compute all", "choose": "both ends"}

    def x(index):
        return left + width * index / (len(sweep) - 1)

    def y(seconds):
        return top + height * (1 - min(seconds, most) / most)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 130}" '
        f'height="{top + height + 50}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for tick in range(5):
        seconds = most * tick / 4
        out.append(
            f'<line x1="{left}" y1="{y(seconds):.1f}" '
            f'x2="{left + width}" y2="{y(seconds):.1f}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y(seconds) + 4:.1f}" '
            f'text-anchor="end">{seconds:.2f} s</text>'
        )
    for i, point in enumerate(sweep):
        out.append(
            f'<text x="{x(i):.1f}" y="{top + height + 18}" '
            f'text-anchor="middle">{point["cost"]:g}</text>'
        )
    out.append(
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">'
        "cost of fetching the prefix, in costs of computing it</text>"
    )
    for line, policy in enumerate(POLICIES):
        medians = [statistics.median(p[policy]) for p in sweep]
        points = " ".join(f"{x(i):.1f},{y(m):.1f}" for i, m in enumerate(medians))
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colors[policy]}" stroke-width="2"/>'
        )
        for i, point in enumerate(sweep):
            out += [
                f'<circle cx="{x(i):.1f}" cy="{y(s):.1f}" r="2" fill="{colors[policy]}"/>'
                for s in point[policy]
            ]
        out.append(
            f'<text x="{left + width + 10}" y="{top + 16 + 18 * line}" '
            f'fill="{colors[policy]}">{names[policy]}</text>'
        )
    path.write_text("\n".join(out) + "\n</svg>\n")
