"""Prefill and decode on two workers next to one worker, each worker on a core of its own: how much
later the first token of a prompt of about 1,900 tokens comes through a pair, and how much longer
the gaps between tokens of the decode worker become while prompts go through the pair.

Clients and router take the prefill worker's core, the node both: on machines of their own they
would disturb no decodes. Prompts that run next to watched tokens come from a router, as ids: a
worker that gets text makes tokens of it on its core. The client that watches tokens goes before all
other processes, if the system lets it: it is the clock."""

import contextlib
import json
import os
import random
import statistics
import subprocess
import threading
import time
import urllib.request

from . import row
from .processes import Server, node_command, router_command, wait_until, worker_command

NAMES = ["apart_ttft", "apart_token_gap_p99"]
PREFILL_CORE, DECODE_CORE = 0, 1
WORDS = (
    "the of and to in that is was for on are with as his they at be this from have "
    "light body glass water colour power angle prism wall paper sun eye moon ray line"
).split()
PROMPT_WORDS = 1900
WATCHED_TOKENS = 2000


class Client:
    """Requests through `cairn generate` to workers, whose prompts nobody has seen before."""

    def __init__(self, build):
        self._program = build / "bin/cairn"
        self._random = random.Random(7)
        self._on_core = ["taskset", "-c", str(PREFILL_CORE)]
        self._first = ["chrt", "-f", "1"] if _may_go_first() else []

    def prompt(self, words=PROMPT_WORDS):
        return " ".join(self._random.choice(WORDS) for _ in range(words))

    def first_token(self, workers):
        """Seconds until the first byte of the answer to a new prompt."""
        prompt = self.prompt()
        begin = time.monotonic()
        with self._generate(workers, prompt, 2, self._on_core) as process:
            os.read(process.stdout.fileno(), 1)
            took = time.monotonic() - begin
            process.stdout.read()
        if process.returncode != 0:
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
    """Prompts that a router gives to a pair, one after the other, until it is closed."""

    def __init__(self, client, router):
        self.count = 0
        self._client, self._router = client, router
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self):
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.is_set():
            body = {"prompt": self._client.prompt(), "max_tokens": 1, "temperature": 0}
            request = urllib.request.Request(
                f"http://{self._router.http}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
            self.count += 1


def missing():
    """The reason why the group cannot run; empty: it can."""
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
        command = router_command(
            build, model, "--workers", f"{prefill.grpc},{decode.grpc}", "--cache", node.grpc
        )
        router = stack.enter_context(Server(["taskset", "-c", PREFILL_CORE, *command], log))
        return [
            _ttft_row(client, pair, ["--worker", alone.grpc], max(repeat, 7)),
            _gap_row(client, router, decode.grpc, repeat),
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


def _gap_row(client, router, decode, trials):
    quiet, loaded, ratios, prompts = [], [], [], 0
    paired = router.metric("cairn_router_paired_total")
    for _ in range(trials):
        quiet.append(_p99(client.gaps(decode)))
        load = Prompts(client, router)
        try:
            loaded.append(_p99(client.gaps(decode, load.start)))
        finally:
            load.close()
        prompts += load.count
        ratios.append(quiet[-1] / loaded[-1])
    paired = router.metric("cairn_router_paired_total") - paired
    if prompts < 2 * trials or paired < 0.9 * prompts:
        raise RuntimeError(f"{paired} of {prompts} prompts went through the pair")
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
