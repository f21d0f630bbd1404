"""The cost of pushing a prompt of about 4k tokens for the tokens that are decoded meanwhile."""

import statistics

from . import row
from .document import document
from .processes import Server, cairn, node_command, wait_until, worker_command

NAMES = ["decode_beside_push_4k"]
TOKENS = 64
PAIRS = 7


def run(build, model, repeat, work):
    log = work / "push.log"
    text = document()

    def decode(number, *extra):
        """Seconds from the first token to the last, behind a prompt never seen before."""
        prompt = work / f"push-{number}.txt"
        prompt.write_text(f"Version {number}.\n\n{text}\n\nSummary:")
        answer = cairn(
            build,
            "generate",
            "--worker",
            worker.grpc,
            "--raw",
            "--prompt-file",
            prompt,
            "--max-tokens",
            TOKENS,
            "--ignore-eos",
            "--temperature",
            0,
            *extra,
        )
        if answer["fetched_tokens"] != 0:
            raise RuntimeError(
                f"prompt {number}: {answer['fetched_tokens']} tokens fetched, "
                "expected a prompt never seen before"
            )
        return answer["total_s"] - answer["ttft_s"]

    off, on = [], []
    with (
        Server(node_command(build, "--host.capacity", "2GiB"), log) as node,
        Server(worker_command(build, model, "--cache", node.grpc), log) as worker,
    ):
        wait_until(
            lambda: worker.metric("cairn_worker_cache_connected") == 1, 20, "worker connects"
        )
        decode(
            0, "--no-cache"
        )  # The first request touches the model's pages and those of the KV pool.
        for i in range(1, max(repeat, PAIRS) + 1):
            for samples, extra in (
                ((off, ["--no-cache"]), (on, [])) if i % 2 else ((on, []), (off, ["--no-cache"]))
            ):
                samples.append(decode(i, *extra))
                wait_until(
                    lambda: worker.metric("cairn_worker_push_queue_blocks") == 0, 60, "pushes end"
                )
        pushed = cairn(build, "stat", "--cache", node.grpc)["pushed_bytes"]
    if pushed < len(on) * 50e6:
        raise RuntimeError(
            f"{pushed} bytes were pushed by {len(on)} prompts, expected some 90 MB each"
        )
    ratio = statistics.median(a / b for a, b in zip(off, on))
    return [
        row(
            "decode_beside_push_4k",
            [1e3 * s / (TOKENS - 1) for s in on],
            "ms/token",
            f"nothing pushed {1e3 * statistics.median(off) / (TOKENS - 1):.2f} ms",
            ratio,
            None,
            0.98,
        )
    ]
