"""Prefill and decode on two workers next to one worker, each worker on a core of its own: how much
later the first token of a prompt of about 1,900 tokens comes through a pair, and how much longer
the gaps between tokens of the decode worker become while prompts go through the pair.

Clients take the prefill worker's core, the node both: on machines of their own they would disturb
no decodes. The client that watches tokens goes before all other processes, if the system lets it:
it is the clock."""

import contextlib
import os
import random
import statistics
import subprocess
import threading
import time

from . import row
from .processes import Server, node_command, wait_until, worker_command

NAMES = ["apart_ttft", "apart_token_gap_p99"]
PREFILL_CORE, DECODE_CORE = 0, 1
WORDS = (
    "the of and to in that is was for on are with as his they at be this from have "
    "light body glass water colour power angle prism wall paper sun eye moon ray line"
).split()
PROMPT_WORDS = 1900
WATCHED_TOKENS = 2000


class Client:
    """Requests through `cairn generate`, whose prompts nobody has seen before."""

    def __init__(self, build):
        self._program = build / "bin/cairn"
        self._random = random.Random(7)
        self._on_core = ["taskset", "-c", str(PREFILL_CORE)]
        self._first = ["chrt", "-f", "1"] if _may_go_first() else []

    def prompt(self, words=PROMPT_WORDS):
        return " ".join(self._random.choice(WORDS) for _ in range(words))

    def first_token(self, workers, wait=True):
        """Seconds until the first byte of the answer to a new prompt. `wait`: until the worker is
        idle again."""
        prompt = self.prompt()
        begin = time.monotonic()
        with self._generate(workers, prompt, 2, self._on_core) as process:
            first = os.read(process.stdout.fileno(), 1)
            took = time.monotonic() - begin
            if wait:
                process.stdout.read()
            else:
                process.terminate()
        if not first or (wait and process.returncode != 0):
            raise RuntimeError(f"cairn generate ended with {process.returncode}")
        return took

    def gaps(self, worker, on_begin=lambda: None):
        """Seconds between the pieces of an answer. `on_begin`: called after the first."""
        command = self._first + self._on_core
        found = []
        with self._generate(
            ["--worker", worker], self.prompt(20), WATCHED_TOKENS, command
        ) as process:
            os.read(process.stdout.fileno(), 4096)
            on_begin()
            last = time.monotonic()
            while os.read(process.stdout.fileno(), 4096):
                now = time.monotonic()
                found.append(now - last)
                last = now
        if len(found) < WATCHED_TOKENS / 2:
            raise RuntimeError(f"{len(found)} pieces of an answer of {WATCHED_TOKENS} tokens")
        return found

    def _generate(self, workers, prompt, tokens, command):
        return subprocess.Popen(
            [*command, str(self._program), "generate", *workers, "--prompt", prompt]
            + ["--ignore-eos", "--temperature", "0", "--max-tokens", str(tokens)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


class Prompts:
    """Prompts of one client that go through a pair, one after the other, until it is closed."""

    def __init__(self, client, workers):
        self.count = 0
        self._client, self._workers = client, workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self):
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.is_set():
            # The worker is idle only when the answer that is watched has ended.
            self._client.first_token(self._workers, wait=False)
            self.count += 1


def missing():
    """What keeps the group from running; empty: nothing."""
    cores = os.sched_getaffinity(0)
    if {PREFILL_CORE, DECODE_CORE} <= cores:
        return ""
    return f"it needs the cores {PREFILL_CORE} and {DECODE_CORE}, and may use {sorted(cores)}"


def run(build, model, repeat, work):
    log = work / "apart.log"
    client = Client(build)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Server(node_command(build, "--host.capacity", "2GiB"), log))

        def worker(core, role):
            command = worker_command(
                build, model, "--threads", 1, "--role", role, "--cache", node.grpc
            )
            server = stack.enter_context(Server(["taskset", "-c", core, *command], log))
            wait_until(
                lambda: server.metric("cairn_worker_cache_connected") == 1, 20, "worker connects"
            )
            return server

        alone = worker(PREFILL_CORE, "both")
        prefill = worker(PREFILL_CORE, "prefill")
        decode = worker(DECODE_CORE, "decode")
        pair = ["--prefill-worker", prefill.grpc, "--worker", decode.grpc]
        return [
            _ttft_row(client, pair, ["--worker", alone.grpc], max(repeat, 7)),
            _gap_row(client, pair, decode.grpc, repeat),
        ]


def _ttft_row(client, pair, one, trials):
    for workers in (pair, one):  # The first request touches the model's pages.
        client.first_token(workers)
    apart, together = [], []
    for i in range(trials):
        for samples, workers in (
            ((apart, pair), (together, one)) if i % 2 else ((together, one), (apart, pair))
        ):
            samples.append(client.first_token(workers))
    ratio = statistics.median(a / b for a, b in zip(together, apart))
    shown = f"one worker {statistics.median(together):.3g} s"
    result = row("apart_ttft", apart, "s", shown, ratio, 1 / 1.2, 1 / 1.05)
    return result | {"samples": apart, "yardstick_samples": together}


def _gap_row(client, pair, decode, trials):
    quiet, loaded, ratios, prompts = [], [], [], 0
    for _ in range(trials):
        quiet.append(_p99(client.gaps(decode)))
        load = Prompts(client, pair)
        try:
            loaded.append(_p99(client.gaps(decode, load.start)))
        finally:
            load.close()
        prompts += load.count
        ratios.append(quiet[-1] / loaded[-1])
    if prompts < 2 * trials:
        raise RuntimeError(f"{prompts} prompts went through the pair, expected {2 * trials}")
    shown = f"without prompts {1e3 * statistics.median(quiet):.3g} ms ({prompts} prompts)"
    result = row(
        "apart_token_gap_p99",
        [1e3 * gap for gap in loaded],
        "ms",
        shown,
        statistics.median(ratios),
        1 / 1.3,
        1 / 1.1,
    )
    return result | {"samples": loaded, "yardstick_samples": quiet}


def _p99(values):
    return sorted(values)[int(len(values) * 0.99)]


def _may_go_first():
    return (
        subprocess.run(["chrt", "-f", "1", "true"], capture_output=True, check=False).returncode
        == 0
    )
