"""Time to first token with a prefix of about 4k tokens in RAM, by recipe: on the node's machine,
and over a link of 1 Gbit/s.

One worker computes the prefix once and publishes it in all recipes. Readers take turns. Yardstick:
the recipe raw, the same way.
"""

import statistics

from . import row
from .document import document
from .processes import Server, cairn, node_command, wait_until, worker_command
from .throttle import Throttle

NAMES = ["ttft_int8_same_node_4k", "ttft_int8_1gbit_4k", "ttft_turbo4_1gbit_4k"]
GIGABIT = 1e9 / 8  # Bytes a second.
BLOCK = 64  # Tokens.
# Name: (recipe, over the link).
READERS = {
    "raw near": ("raw", False),
    "int8 near": ("int8", False),
    "raw far": ("raw", True),
    "int8 far": ("int8", True),
    "turbo4 far": ("turbo:bits=4", True),
}


def run(build, model, repeat, work):
    log = work / "ttft-recipes.log"
    prompt = work / "ttft-recipes-prompt.txt"
    text = document()
    with (
        Server(node_command(build, "--host.capacity", "1GiB"), log) as node,
        Throttle(node.grpc, GIGABIT) as link,
    ):
        publish = ("--cache.publish", "int8;turbo:bits=4")
        with Server(worker_command(build, model, "--cache", node.grpc, *publish), log) as writer:
            _connected(writer)
            tokens = _shorten(build, writer, text, prompt)
        samples = _samples(build, model, repeat, node, link, prompt, log)
    print(
        f"  {tokens} tokens of prompt: "
        + ", ".join(f"{name} {statistics.median(s):.3f} s" for name, s in samples.items()),
        flush=True,
    )

    def against(name, recipe, raw, floor):
        yardstick = statistics.median(samples[raw])
        return row(
            name,
            samples[recipe],
            "s",
            f"raw {yardstick:.3f} s",
            yardstick / statistics.median(samples[recipe]),
            floor,
            None,
        )

    return [
        against(NAMES[0], "int8 near", "raw near", 1.0),
        against(NAMES[1], "int8 far", "raw far", 1.0),
        against(NAMES[2], "turbo4 far", "raw far", 3.0),
    ]


def _shorten(build, writer, text, prompt):
    """Writes a prompt whose last, partial block is short: what is computed behind the fetched
    prefix costs every recipe the same. Its tokens."""
    while True:
        prompt.write_text(text + "\n\nSummary:")
        answer = _ask(build, writer, prompt)
        wait_until(lambda: writer.metric("cairn_worker_push_queue_blocks") == 0, 60, "pushes end")
        if 1 <= answer["prompt_tokens"] % BLOCK <= 8:
            return answer["prompt_tokens"]
        text = text.rsplit(None, 1)[0]


def _samples(build, model, repeat, node, link, prompt, log):
    """Seconds by reader. One worker a reader, all of them up at once and idle but for the one that
    is asked."""
    samples = {name: [] for name in READERS}
    workers = {}
    try:
        for name, (recipe, far) in READERS.items():
            flags = (
                ("--cache", link.address, "--cache.path", "grpc") if far else ("--cache", node.grpc)
            )
            workers[name] = Server(
                worker_command(
                    build, model, *flags, "--cache.recipe", recipe, "--cache.match_deadline", "2s"
                ),
                log,
            )
            _connected(workers[name])
            _ask(build, workers[name], prompt)  # Touches the model's and the KV pool's pages.
        names = list(READERS)
        for i in range(repeat):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                answer = _ask(build, workers[name], prompt)
                if answer["computed_tokens"] > 64:
                    raise RuntimeError(
                        f"{name}: {answer['computed_tokens']} tokens computed, "
                        f"miss reason {answer['miss_reason']}"
                    )
                samples[name].append(answer["ttft_s"])
    finally:
        for worker in workers.values():
            worker.kill()
    return samples


def _connected(worker):
    wait_until(lambda: worker.metric("cairn_worker_cache_connected") == 1, 60, "worker connects")


def _ask(build, worker, prompt):
    return cairn(
        build,
        "generate",
        "--worker",
        worker.grpc,
        "--raw",
        "--prompt-file",
        prompt,
        "--max-tokens",
        1,
    )
