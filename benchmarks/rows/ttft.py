"""Time to first token with a prefix of about 4k tokens: computed, from RAM, from disk after kill
-9; and what an empty cache costs.

Samples of one row and of its yardstick are interleaved, so that a noisy neighbour hits both.
"""

import shutil
import statistics

from . import row
from .document import document
from .processes import Server, cairn, node_command, wait_until, worker_command

NAMES = ["ttft_ram_4k", "ttft_disk_4k", "cache_on_nothing_to_reuse_4k"]
OVERHEAD_PAIRS = 12


def run(build, model, repeat, work):
    disk = work / "ttft-disk"
    shutil.rmtree(disk, ignore_errors=True)
    log = work / "ttft.log"

    def start_node(address="127.0.0.1:0"):
        return Server(
            node_command(
                build, "--listen", address, "--host.capacity", "2GiB", "--disk.path", disk
            ),
            log,
        )

    node = start_node()
    try:
        with Server(worker_command(build, model, "--cache", node.grpc), log) as worker:
            bench = _Bench(build, node, worker, work)
            wait_until(
                lambda: worker.metric("cairn_worker_cache_connected") == 1, 20, "worker connects"
            )
            overhead = bench.overhead(repeat)
            cold, ram = bench.warm(repeat)
            from_disk = []
            for _ in range(repeat):
                wait_until(
                    lambda: cairn(build, "stat", "--cache", node.grpc)["unflushed_bytes"] == 0,
                    60,
                    "flush",
                )
                address = node.grpc
                node.kill()
                node = start_node(address)
                wait_until(
                    lambda: worker.metric("cairn_worker_cache_connected") == 1,
                    60,
                    "worker connects again",
                )
                from_disk.append(bench.ask(bench.prompt(0)))
    finally:
        node.kill()
        shutil.rmtree(disk, ignore_errors=True)

    cold_s = statistics.median(cold)
    yardstick = f"cold {cold_s:.2f} s"
    return [
        row("ttft_ram_4k", ram, "s", yardstick, cold_s / statistics.median(ram), 10.0, 20.0),
        row(
            "ttft_disk_4k",
            from_disk,
            "s",
            yardstick,
            cold_s / statistics.median(from_disk),
            8.0,
            20.0,
        ),
        row(
            "cache_on_nothing_to_reuse_4k",
            [on for _, on in overhead],
            "s",
            f"cache off {statistics.median(off for off, _ in overhead):.2f} s",
            statistics.median(off for off, _ in overhead)
            / statistics.median(on for _, on in overhead),
            1 / 1.03,
            None,
        ),
    ]


class _Bench:
    def __init__(self, build, node, worker, work):
        self._build, self._node, self._worker, self._work = build, node.grpc, worker, work
        self._text = document()

    def prompt(self, number):
        """A file with the document behind a head of its own: prompts with different numbers share
        no block."""
        path = self._work / f"prompt-{number}.txt"
        path.write_text(f"Copy {number} of {number + 1}.\n\n{self._text}\n\nSummary:")
        return path

    def ask(self, prompt, *extra):
        answer = cairn(
            self._build,
            "generate",
            "--worker",
            self._worker.grpc,
            "--raw",
            "--prompt-file",
            prompt,
            "--max-tokens",
            4,
            "--temperature",
            0,
            *extra,
        )
        if not extra and answer["fetched_tokens"] == 0:
            raise RuntimeError(
                f"{prompt}: nothing was fetched, miss reason {answer.get('miss_reason')}"
            )
        return answer["ttft_s"]

    def ask_unseen(self, prompt):
        answer = cairn(
            self._build,
            "generate",
            "--worker",
            self._worker.grpc,
            "--raw",
            "--prompt-file",
            prompt,
            "--max-tokens",
            4,
            "--temperature",
            0,
        )
        if answer["fetched_tokens"] != 0:
            raise RuntimeError(
                f"{prompt}: {answer['fetched_tokens']} tokens fetched, "
                "expected a prompt never seen before"
            )
        self._settle()
        return answer["ttft_s"]

    def _settle(self):
        """Blocks that one sample stored must not be written to disk during the next."""
        wait_until(
            lambda: self._worker.metric("cairn_worker_push_queue_blocks") == 0, 60, "pushes end"
        )
        wait_until(
            lambda: cairn(self._build, "stat", "--cache", self._node)["unflushed_bytes"] == 0,
            60,
            "flush",
        )

    def overhead(self, repeat):
        """Pairs (cache off, cache on) over prompts never seen before. Two samples of one pair
        differ by 10 % without any reason, so it takes many, and the ratio is that of the two
        medians."""
        # The first request touches the model's and the KV pool's pages: not what this row asks
        # about.
        self.ask(self.prompt(999), "--no-cache")
        pairs = []
        for i in range(max(2 * repeat, OVERHEAD_PAIRS)):
            prompt = self.prompt(1000 + i)
            if i % 2:
                off = self.ask(prompt, "--no-cache")
                on = self.ask_unseen(prompt)
            else:
                on = self.ask_unseen(prompt)
                off = self.ask(prompt, "--no-cache")
            pairs.append((off, on))
        return pairs

    def warm(self, repeat):
        """Samples of cold and of RAM, interleaved, over one prompt."""
        prompt = self.prompt(0)
        self.ask_unseen(prompt)
        cold, ram = [], []
        for _ in range(repeat):
            cold.append(self.ask(prompt, "--no-cache"))
            ram.append(self.ask(prompt))
        return cold, ram
