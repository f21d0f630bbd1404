"""Time to first token of vLLM with SmolLM2: computed, from a node, from the engine's own cache. See
README.md."""

import argparse
import pathlib
import statistics
import tempfile

from common import ROOT, ForeignLoad, Server, node_command, report, row, wait_until
from engine import ALONE, Engine, numbers

import cairn

TOKENS, BLOCK = 4000, 128


def first_token(engine, prompt):
    [answer] = engine.ask(prompt, tokens=2)
    return answer["ttft"], answer["cached"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out")
    given = parser.parse_args()
    model = ROOT / "build/engines/models/smollm2"
    options = {"model": model, "max_model_len": given.tokens + 256, "dtype": given.dtype, **ALONE}
    cold, with_connector, warm, own, pairs = [], [], [], [], []
    hits = (given.tokens - 1) // BLOCK * BLOCK
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(
            node_command(given.build, "--host.capacity", "3GiB"), pathlib.Path(folder) / "node.log"
        ) as node,
    ):
        log = pathlib.Path(folder) / "engine.log"
        connector = {"address": node.grpc, "fetch": "measured"}
        with (
            Engine(log=log, **options, enable_prefix_caching=True) as plain,
            Engine(log=log, **options, connector=connector) as cached,
            cairn.Client(node.grpc) as client,
        ):
            load = ForeignLoad([node.pid, plain.pid, cached.pid])
            for engine in (plain, cached):
                engine.ask(numbers(5, 100, below=40000), tokens=2)
            for i in range(given.repeat):
                prompt = numbers(1000 + i, given.tokens, below=40000)
                found = {}
                for engine in (plain, cached) if i % 2 else (cached, plain):
                    found[engine], local = first_token(engine, prompt)
                    assert local == 0
                    # Storing goes on after the first token, and would slow the next one.
                    wait_until(
                        lambda: (
                            engine is plain
                            or client.stat(deadline=10).blocks == hits // BLOCK * (i + 1)
                        ),
                        60,
                        "the blocks",
                    )
                cold.append(found[plain])
                with_connector.append(found[cached])
                pairs.append(found[plain] / found[cached])
                # The engine with the connector has no cache of its own; the other one has nothing
                # else.
                for engine, samples in ((cached, warm), (plain, own)):
                    taken, reused = first_token(engine, prompt)
                    assert reused == hits, (reused, hits)
                    samples.append(taken)
            foreign = load.read()
    seconds = f"computed, {statistics.median(cold):.2f} s"
    rows = [
        row("vllm_cold", cold, "s", "", None, None, None),
        row(
            "vllm_cold_with_connector",
            with_connector,
            "s",
            seconds,
            statistics.median(pairs),
            None,
            0.98,
        ),
        row(
            "vllm_warm_from_node",
            warm,
            "s",
            seconds,
            statistics.median(c / w for c, w in zip(cold, warm)),
            None,
            40,
        ),
        row(
            "vllm_warm_own_cache",
            own,
            "s",
            seconds,
            statistics.median(c / w for c, w in zip(cold, own)),
            None,
            None,
        ),
        row(
            "vllm_warm_node_over_own",
            warm,
            "s",
            "the engine's own prefix cache",
            statistics.median(o / w for o, w in zip(own, warm)),
            None,
            1 / 1.3,
        ),
    ]
    report(rows, foreign, given.out)


if __name__ == "__main__":
    main()
