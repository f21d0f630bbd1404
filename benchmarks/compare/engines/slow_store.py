"""Time to first token of vLLM with SmolLM2 next to a store that becomes slow: without a store, with
one that loads faster than the engine computes, with the same one slowed to a tenth, and when it is
fast again. See README.md."""

import argparse
import pathlib
import statistics
import tempfile
import time

from common import ROOT, ForeignLoad, Server, node_command, report, row, wait_until
from engine import ALONE, Engine, numbers
from rows.throttle import Throttle

import cairn

BLOCK = 128
# Requests in a row that do not ask: from then on the store counts as noticed. As many hits in a
# row: its speed is known.
NOTICED = 3


class Engines:
    """Three engines and a node behind a throttled wire."""

    def __init__(self, plain, measured, always, prompts):
        self.plain, self.measured, self.always = plain, measured, always
        self._prompts, self._next = prompts, 0

    def prompt(self):
        """Each in its turn: none of the engines has a cache of its own."""
        self._next += 1
        return self._prompts[self._next % len(self._prompts)]

    @staticmethod
    def first_token(engine, prompt):
        [answer] = engine.ask(prompt, tokens=2)
        return answer["ttft"], answer["cached"]

    def pair(self, engine, i):
        """The seconds without a store and with one, and the tokens that came from it. The order
        alternates."""
        prompt = self.prompt()
        found = {}
        for one in (self.plain, engine) if i % 2 else (engine, self.plain):
            found[one] = self.first_token(one, prompt)
        return found[self.plain][0], *found[engine]


def counts(engine):
    engine.send(counters=True)
    return engine.receive()


def unasked(engine):
    found = counts(engine)
    return found["unasked_requests"] + found["unasked_late_requests"]


def ratio_row(name, pairs, goal):
    """`pairs`: seconds without a store, and with it."""
    computed = statistics.median(plain for plain, _ in pairs)
    ratio = statistics.median(plain / stored for plain, stored in pairs)
    yardstick = f"without a store, {computed:.2f} s"
    made = row(name, [stored for _, stored in pairs], "s", yardstick, ratio, None, goal)
    return {**made, "pairs": pairs, "worst_pair": min(plain / stored for plain, stored in pairs)}


def notice(engines, wire_rate, wire):
    """Slows the store, and asks until it is noticed. The pairs of these requests."""
    wire.rate = wire_rate
    pairs, quiet = [], 0
    while quiet < NOTICED:
        before = unasked(engines.measured)
        plain, stored, _ = engines.pair(engines.measured, len(pairs))
        pairs.append((plain, stored))
        quiet = quiet + 1 if unasked(engines.measured) > before else 0
        assert len(pairs) < 50, "the slow store was not noticed"
    return pairs[:-NOTICED]


def settle(engines):
    """Asks until the speed of the store is known."""
    hits = count = 0
    while hits < NOTICED:
        count += 1
        assert count < 50, "the store is too slow to be of use: a smaller --share"
        _, cached = engines.first_token(engines.measured, engines.prompt())
        hits = hits + 1 if cached else 0


def recover(engines, wire):
    """The store is fast again. Requests and seconds until there is a hit."""
    wire.rate = 1e12
    begin, count = time.monotonic(), 0
    while True:
        count += 1
        _, cached = engines.first_token(engines.measured, engines.prompt())
        if cached:
            return count, time.monotonic() - begin
        assert time.monotonic() < begin + 300, "the fast store was not noticed"


def measure(engines, wire, given, bytes_loaded):
    """Rows, once all prompts are at the node and the engine has computed."""
    computed = [engines.first_token(engines.plain, engines.prompt())[0] for _ in range(3)]
    rate = bytes_loaded / (given.share * statistics.median(computed))
    wire.rate, fast, slow, always = rate, [], [], []
    settle(engines)
    for i in range(given.repeat):
        plain, stored, _ = engines.pair(engines.measured, i)
        fast.append((plain, stored))
    found_out = notice(engines, rate / 10, wire)
    probed = []  # The pairs in which a probe began.
    for i in range(2 * given.repeat):
        before = counts(engines.measured)["probes"]
        plain, stored, _ = engines.pair(engines.measured, i)
        slow.append((plain, stored))
        if counts(engines.measured)["probes"] > before:
            probed.append(i)
    for i in range(max(3, given.repeat // 2)):
        plain, stored, _ = engines.pair(engines.always, i)
        always.append((plain, stored))
    requests, seconds = recover(engines, wire)
    without = [plain for plain, _ in fast + found_out + slow + always]
    worst = max(stored for _, stored in slow) / max(plain for plain, _ in slow)
    return [
        row("vllm_without_store", without, "s", "", None, None, None),
        ratio_row("vllm_fast_store", fast, 1 / 1.05),
        ratio_row("vllm_slow_store_found_out", found_out, None),
        ratio_row("vllm_slow_store", slow, 1 / 1.05) | {"probed": probed},
        row(
            "vllm_slow_store_slowest",
            [stored for _, stored in slow],
            "s",
            "the slowest request without a store",
            1 / worst,
            None,
            1 / 1.05,
        ),
        ratio_row("vllm_slow_store_always", always, None),
        row("vllm_requests_until_hit", [requests], "", "", None, None, None),
        row("vllm_seconds_until_hit", [seconds], "s", "", None, None, None),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--share", type=float, default=0.2, help="load of the fast store over computing"
    )
    parser.add_argument("--out")
    given = parser.parse_args()
    model = ROOT / "build/engines/models/smollm2"
    options = {"model": model, "max_model_len": given.tokens + 256, "dtype": given.dtype, **ALONE}
    hit = (given.tokens - 1) // BLOCK * BLOCK
    prompts = [numbers(1000 + i, given.tokens, below=40000) for i in range(3)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(
            node_command(given.build, "--host.capacity", "2GiB"), pathlib.Path(folder) / "node.log"
        ) as node,
        Throttle(node.grpc) as wire,
        cairn.Client(node.grpc) as client,
    ):
        log = pathlib.Path(folder) / "engine.log"
        connector = {"address": wire.address, "path": "grpc"}
        with (
            Engine(log=log, **options) as plain,
            Engine(log=log, **options, connector={**connector, "fetch": "measured"}) as measured,
            Engine(log=log, **options, connector={**connector, "fetch": "always"}) as always,
        ):
            engines = Engines(plain, measured, always, prompts)
            for engine in (plain, measured, always):
                for seed in (5, 6):
                    engine.ask(numbers(seed, 300, below=40000), tokens=2)
            load = ForeignLoad([node.pid, plain.pid, measured.pid, always.pid])
            for i, prompt in enumerate(prompts):
                before = client.stat(deadline=10).blocks
                engines.first_token(measured, prompt)
                # Storing goes on after the first token.
                blocks = before + given.tokens // BLOCK
                wait_until(
                    lambda: client.stat(deadline=10).blocks >= blocks, 60, f"the blocks of {i}"
                )
            before = client.stat(deadline=10).fetched_bytes
            assert engines.first_token(always, prompts[0])[1] == hit
            loaded = client.stat(deadline=10).fetched_bytes - before
            rows = measure(engines, wire, given, loaded)
            foreign = load.read()
    report(rows, foreign, given.out)


if __name__ == "__main__":
    main()
