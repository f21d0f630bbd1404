#!/usr/bin/env python3
"""The cost of being watched: traces of requests, and scrapes of metrics.

    python3 benchmarks/watching.py --build build/release --out report.json

traces   the time of a request whose prompt lies at the node, through router and worker, to the end
         of its only token. Three stacks take turns: without traces, with a collector that takes
         all spans, and with one that never answers.
scrapes  time, bytes and series of /metrics of a node, a worker and a router, after requests of 64
         tenants.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import shlex
import socket
import statistics
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rows.processes import Server, node_command, router_command, wait_until, worker_command
from run import commit, machine

PATIENCE = 600
TENANT = "x-tenant"
TENANTS = 64


class TakesAll(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    spans = 0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for group in body["resourceSpans"]:
            TakesAll.spans += sum(len(scope["spans"]) for scope in group["scopeSpans"])
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def ask(address, method, path, body=None, headers=None):
    """(seconds to the end of the answer, status, text), over a connection of its own."""
    host, port = address.split(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE)) as line:
        begin = time.perf_counter()
        line.request(method, path, body, headers or {})
        answer = line.getresponse()
        text = answer.read()
        return time.perf_counter() - begin, answer.status, text


class Stack:
    """A router before a worker before a node."""

    def __init__(self, options, programs, folder, *settings):
        log = folder / "services.log"

        def start(command):
            return programs.enter_context(Server(command, log, PATIENCE))

        self.node = start(node_command(options.build, "--host.capacity", "512MiB", *settings))
        self.worker = start(
            worker_command(
                options.build,
                options.model,
                *("--cache", self.node.grpc, "--cache.path", "grpc"),
                *("--cache.match_deadline", "2s", "--cache.stall_deadline", "2s"),
                *settings,
            )
        )
        self.router = start(
            router_command(
                options.build,
                options.model,
                *("--workers", self.worker.grpc, "--http.tenant_header", TENANT),
                *settings,
            )
        )
        wait_until(self._is_ready, PATIENCE, "the router sees its worker")

    def _is_ready(self):
        return ask(self.router.http, "GET", "/health")[1] == 200

    def complete(self, prompt, tenant="bench"):
        """Seconds to the end of an answer of one token."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True})
        headers = {"Content-Type": "application/json", TENANT: tenant}
        took, status, text = ask(self.router.http, "POST", "/v1/completions", body, headers)
        if status != 200:
            raise RuntimeError(f"the router answered {status}: {text.decode()}")
        return took

    def warm(self, prompt):
        """The prompt's blocks are at the node."""
        self.complete(prompt)
        wait_until(
            lambda: self.worker.metric("cairn_worker_push_queue_blocks") == 0,
            PATIENCE,
            "blocks are pushed",
        )


def spread(values):
    """Quartiles in milliseconds."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"quartiles_ms": [round(1000 * x, 3) for x in (low, middle, high)], "n": len(values)}


def measure_traces(options, folder):
    text = options.text.read_text(encoding="utf-8")
    prompt = (text * (options.characters // len(text) + 1))[: options.characters]
    collector = ThreadingHTTPServer(("127.0.0.1", 0), TakesAll)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    # Connections are made, by the kernel, and nothing is ever read from them.
    silent = socket.create_server(("127.0.0.1", 0), backlog=64)
    endpoints = {
        "off": (),
        "taken": ("--tracing.endpoint", f"http://127.0.0.1:{collector.server_port}"),
        "silent": ("--tracing.endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}"),
    }
    with contextlib.ExitStack() as programs:
        stacks = {
            name: Stack(options, programs, folder, *settings)
            for name, settings in endpoints.items()
        }
        for stack in stacks.values():
            stack.warm(prompt)
        times = {name: [] for name in stacks}
        names = list(stacks)
        for turn in range(options.turns):
            # Each is the first of a turn as often as the others.
            for i in range(len(names)):
                name = names[(turn + i) % len(names)]
                times[name].append(stacks[name].complete(prompt))
        fetched = stacks["taken"].worker.metric('cairn_worker_tokens_total{kind="fetched"}')
    report = {name: spread(values) for name, values in times.items()}
    for name in ("taken", "silent"):
        # Pairs of a turn: what else the machine does changes slowly.
        ratios = [a / b for a, b in zip(times[name], times["off"], strict=True)]
        report[name]["ratio_to_off"] = round(statistics.median(ratios), 4)
    report["fetched_tokens_a_request"] = fetched / options.turns
    report["spans_taken"] = TakesAll.spans
    return report


def measure_scrapes(options, folder):
    with contextlib.ExitStack() as programs:
        stack = Stack(options, programs, folder)
        for i in range(TENANTS):
            stack.complete("A short prompt of one tenant. " * 20, f"tenant-{i}")
        report = {}
        for role in ("node", "worker", "router"):
            admin = getattr(stack, role).admin
            times = []
            for _ in range(options.turns):
                took, _, text = ask(admin, "GET", "/metrics")
                times.append(took)
            series = sum(not line.startswith(b"#") for line in text.splitlines())
            report[role] = {**spread(times), "bytes": len(text), "series": series}
    return report


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument(
        "--model",
        type=pathlib.Path,
        default=ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
    parser.add_argument(
        "--text", type=pathlib.Path, default=ROOT / "examples/demo/opticks-queries.txt"
    )
    parser.add_argument("--characters", type=int, default=6000, help="length of the prompt")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path, help="file for the report")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = {
            "machine": machine(),
            "commit": commit(),
            "command": "python3 " + shlex.join(["benchmarks/watching.py", *sys.argv[1:]]),
            "traces": measure_traces(options, pathlib.Path(folder)),
            "scrapes": measure_scrapes(options, pathlib.Path(folder)),
        }
    text = json.dumps(report, indent=1) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
