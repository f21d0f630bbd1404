#!/usr/bin/env python3
"""The memory and time that strangers can make real programs take, next to what
docs/operate/security-model.md promises.

    python3 benchmarks/strangers.py router-memory --build build/release --out report.json
    python3 benchmarks/strangers.py long-texts --model MODEL.gguf
    python3 benchmarks/strangers.py rows --model MODEL.gguf --text TEXT
    python3 benchmarks/strangers.py spill

router-memory  200 requests of 8 MB before an engine that does not answer, and 240 next to 80 long
               prompts before a worker: the router's memory against its account.
long-texts     a small request alone, next to six texts of 8 MB each at another router, and next to
               six at its own.
rows           a context on a node's disk that decode steps read by rows: bytes that the device
               reads for the bytes of rows that are asked, and the speed next to resident KV.
spill          a prompt of 12,288 tokens that does not fit into a worker: spilt to a node's memory,
               and to its disk.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import shlex
import signal
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rows.processes import Server, cairn, node_command, wait_until, worker_command
from run import machine

MIB = 1 << 20
PATIENCE = 600
TENANT = "x-tenant"  # The header that names it, where a router trusts one.


# --- An engine that costs next to nothing, in a process of its own.


def serve_engine(listener, context, silent):
    """Answers at once, or never. `context`: its max_model_len, or None if it does not say."""
    model = {"id": "fake", "object": "model"}
    if context is not None:
        model["max_model_len"] = context
    models = json.dumps({"object": "list", "data": [model]})
    answer = json.dumps({"id": "x", "model": "fake", "choices": [{"index": 0, "text": " word"}]})

    def serve(connection):
        room = bytearray(MIB)
        with contextlib.suppress(OSError), connection:
            head = b""
            while True:
                while b"\r\n\r\n" not in head:
                    more = connection.recv(65536)
                    if not more:
                        return
                    head += more
                first, _, rest = head.partition(b"\r\n\r\n")
                lines = first.decode().lower().split("\r\n")
                length = next(
                    (int(line[15:]) for line in lines if line.startswith("content-length:")), 0
                )
                left = length - len(rest)
                head = rest[length:] if left < 0 else b""
                while left > 0:
                    got = connection.recv_into(room, min(left, len(room)))
                    if got == 0:
                        return
                    left -= got
                if silent and lines[0].startswith("post"):
                    connection.recv(1)  # The end of the connection.
                    return
                text = models if " /v1/models " in lines[0] else answer
                connection.sendall(
                    f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
                )

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        # Threads of one interpreter would wait for each other.
        if os.fork() == 0:
            listener.close()
            serve(connection)
            os._exit(0)
        connection.close()


@contextlib.contextmanager
def engine(context, silent=False):
    """The URL of one."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        process = multiprocessing.Process(
            target=serve_engine, args=(listener, context, silent), daemon=True
        )
        process.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.kill()
            process.join()


# --- The router and its callers.


def router_before(build, url, *settings):
    ports = ("--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0")
    return [
        *(build / "bin/cairn-router", "--workers", url, *ports),
        *("--http.listen", "127.0.0.1:0", *settings),
    ]


def ready(router):
    def is_ready():
        with contextlib.closing(http.client.HTTPConnection(router.admin)) as connection:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200

    wait_until(is_ready, 60, "the router sees its engine")


def memory_of(pid):
    """Bytes of memory now, and the most so far."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


def send(address, body, tenant=""):
    """One POST; its status, or None if the connection ended before an answer."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    with contextlib.closing(connection):
        try:
            connection.request(
                "POST",
                "/v1/completions",
                body,
                {"Content-Type": "application/json", TENANT: tenant},
            )
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return None


def collect(address, body, statuses):
    statuses.append(send(address, body))


def items(router, metric):
    with contextlib.closing(http.client.HTTPConnection(router.admin)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    prefix = f'cairn_router_memory_{metric}{{item="'
    return {
        line.removeprefix(prefix).split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(prefix)
    }


# Settings that make the account as small as the requests are large.
SMALL = (
    *("--index", "16MiB", "--token_cache", "8MiB", "--http.all_bodies", "64MiB"),
    *("--http.all_unread", "16MiB", "--rpc.requests", "16MiB", "--http.max_connections", "512"),
)


def router_memory(options):
    rows = []
    body = b'{"model":"fake","prompt":"hi","user":"' + b"A" * 8_000_000 + b'"}'
    for name, settings in (("defaults", ()), ("small settings", SMALL)):
        log = options.work / "router.log"
        with (
            engine(4096, silent=True) as url,
            Server(router_before(options.build, url, *settings), log) as router,
        ):
            ready(router)
            before, _ = memory_of(router.pid)
            statuses = []
            for _ in range(200):
                threading.Thread(
                    target=collect, args=(router.http, body, statuses), daemon=True
                ).start()

            def settled(router=router, statuses=statuses):
                return router.metric("cairn_router_active_requests") + len(statuses) >= 200

            wait_until(settled, PATIENCE, "all are accepted or refused")
            held, most = memory_of(router.pid)
            used, bounds = items(router, "used_bytes"), items(router, "bound_bytes")
            account = sum(bounds.values())
            rows.append(
                {
                    "settings": name,
                    "before": "an engine that does not answer",
                    "accepted": int(router.metric("cairn_router_active_requests")),
                    "refused": len(statuses),
                    "statuses": {str(s): statuses.count(s) for s in set(statuses)},
                    "resident_before_mib": before / MIB,
                    "resident_held_mib": held / MIB,
                    "resident_most_mib": most / MIB,
                    "account_mib": account / MIB,
                    "most_over_account": most / account,
                    # The items that these requests fill; JSON of bodies is read meanwhile.
                    "growth_over_bodies_and_reading": (most - before)
                    / (bounds["bodies"] + bounds["reading"]),
                    "used_mib": {item: value / MIB for item, value in used.items()},
                    "refusals": items(router, "refusals_total"),
                }
            )
    return [*rows, memory_before_a_worker(options, body)]


def memory_before_a_worker(options, body):
    """Long prompts keep the threads that tokenise busy, and large bodies come meanwhile."""
    letters = random.Random(8)
    prompts = [
        json.dumps({"prompt": "".join(letters.choices(string.ascii_lowercase, k=655_000))}).encode()
        for _ in range(80)
    ]
    body = body.replace(b'"model":"fake",', b'"max_tokens":1,')
    command = worker_command(options.build, options.model, "--threads", "1")
    with Server(command, options.work / "worker.log") as worker:
        settings = ("--model", options.model)
        command = router_before(options.build, worker.grpc, *settings)
        with Server(command, options.work / "router.log") as router:
            ready(router)
            before, _ = memory_of(router.pid)
            statuses = []
            senders = [
                threading.Thread(target=collect, args=(router.http, text, statuses), daemon=True)
                for text in [*prompts, *([body] * 240)]
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            _, most = memory_of(router.pid)
            account = sum(items(router, "bound_bytes").values())
            return {
                "settings": "defaults",
                "before": "a worker",
                "statuses": count(statuses),
                "resident_before_mib": before / MIB,
                "resident_most_mib": most / MIB,
                "account_mib": account / MIB,
                "most_over_account": most / account,
                "refusals": items(router, "refusals_total"),
            }


def long_texts(options):
    rows = []
    letters = random.Random(7)
    # One long word each: what costs most to make tokens of.
    texts = [
        json.dumps(
            {
                "model": "fake",
                "prompt": "".join(letters.choices(string.ascii_lowercase, k=8_000_000)),
                "max_tokens": 1,
            }
        ).encode()
        for _ in range(6)
    ]
    small = json.dumps({"model": "fake", "prompt": "hi", "max_tokens": 1}).encode()
    cases = {"engine of 16M tokens": 16_000_000, "engine that names no context": None}
    # Two tenants: whoever sends a lot waits for it.
    settings = ("--model", options.model, "--http.tenant_header", TENANT)
    for name, context in cases.items():
        with (
            engine(context) as url,
            Server(
                router_before(options.build, url, *settings), options.work / "router.log"
            ) as router,
            # The same work takes the same part of the machine there.
            engine(context) as other_url,
            Server(
                router_before(options.build, other_url, *settings), options.work / "other.log"
            ) as other,
        ):
            ready(router)
            ready(other)

            def ask(router=router):
                begin = time.monotonic()
                status = send(router.http, small, "small")
                return status, (time.monotonic() - begin) * 1000

            def ask_next_to(busy, ask=ask):
                asked, began = [], time.monotonic()
                with concurrent.futures.ProcessPoolExecutor(len(texts)) as senders:
                    waits = [senders.submit(send, busy.http, body, "long") for body in texts]
                    while not all(wait.done() for wait in waits):
                        asked.append(ask())
                        time.sleep(0.005)
                    return asked, [wait.result() for wait in waits], time.monotonic() - began

            for _ in range(20):
                ask()
            alone, elsewhere, here, ends, rounds = [], [], [], [], []
            # All three in each round, so that they meet the same load of the machine.
            for _ in range(options.rounds):
                alone_now = [ask() for _ in range(300)]
                elsewhere_now, _, _ = ask_next_to(other)
                here_now, ends_now, seconds = ask_next_to(router)
                rounds.append(
                    {
                        "p50_over_alone": median_ms(here_now) / median_ms(alone_now),
                        "p50_over_elsewhere": median_ms(here_now) / median_ms(elsewhere_now),
                        "six_long_ones_s": seconds,
                    }
                )
                alone += alone_now
                elsewhere += elsewhere_now
                here += here_now
                ends += ends_now
            rows.append(
                {
                    "case": name,
                    "alone_ms": summary(alone),
                    "texts_at_another_router_ms": summary(elsewhere),
                    "texts_at_this_router_ms": summary(here),
                    "p50_over_alone": statistics.median(r["p50_over_alone"] for r in rounds),
                    "p50_over_elsewhere": statistics.median(
                        r["p50_over_elsewhere"] for r in rounds
                    ),
                    "statuses": count(status for status, _ in alone + elsewhere + here),
                    "long_statuses": count(ends),
                    "rounds": rounds,
                }
            )
    return rows


def median_ms(asked):
    return statistics.median(ms for _, ms in asked)


def count(statuses):
    return {str(s): n for s, n in sorted(collections.Counter(statuses).items(), key=str)}


def summary(asked):
    ordered = sorted(ms for _, ms in asked)
    return {
        "n": len(ordered),
        "p50": round(statistics.median(ordered), 3),
        "p99": round(ordered[int(len(ordered) * 0.99)], 3),
        "most": round(ordered[-1], 3),
    }


# --- Rows, and prompts that are spilt.


def device_reads(pid):
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def stop(server):
    if (code := server.terminate()) != 0:
        raise RuntimeError(f"the server ended with {code}")


CAPACITIES = ("32MiB", "512MiB")
POLICIES = ("quest:rows=0.2", "infinigen:rows=0.2", "precision:near=turbo3,rows=0.02")


def rows_from_disk(options):
    disk = options.work / "disk"
    log = options.work / "node.log"

    def node(capacity):
        command = node_command(
            options.build, "--host.capacity", capacity, "--disk.path", disk, *options.node
        )
        return Server(command, log)

    def bench(server, *arguments):
        command = [
            *(options.build / "benchmarks/reading_bench", "--model", options.model),
            *("--text", options.text, "--tokens", options.tokens, "--threads", "1"),
            *("--node", server.grpc, *arguments),
        ]
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(map(str, command))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    with node("1GiB") as server:
        bench(server, "--trials", "1", "--steps", "1")
        stop(server)
    rows = []
    for capacity in options.capacity:
        for policy in options.policy:
            with node(capacity) as server:
                before = device_reads(server.pid)
                report = bench(
                    server,
                    *("--trials", str(options.rounds), "--steps", "12", "--policy", policy),
                )
                read = device_reads(server.pid) - before
                stop(server)
            resident, *_, measured = report["rows"]
            rows.append(
                {
                    "policy": policy,
                    "host_capacity": capacity,
                    "step_ms": measured["step_ms"],
                    "resident_step_ms": resident["step_ms"],
                    "speed_of_resident": resident["step_ms"] / measured["step_ms"],
                    "device_bytes": read,
                    "asked_bytes": measured["asked_bytes"],
                    "asked_4k_bytes": measured["asked_4k_bytes"],
                    "device_over_asked_4k": read / max(1, measured["asked_4k_bytes"]),
                    "bench": report,
                }
            )
    return rows


def spill(options):
    model, text = options.work / "seeded.gguf", options.work / "long.txt"
    seeded = options.build / "bin/cairn_seeded_model"
    subprocess.run([seeded, "long", model, text, "12288"], check=True, timeout=PATIENCE)
    rows = []
    for turn in range(options.rounds):
        for where, capacity in (("memory", "8GiB"), ("disk", "64MiB")):
            disk = options.work / f"spill-{turn}-{where}"
            command = node_command(
                options.build, "--host.capacity", capacity, "--disk.path", disk, *options.node
            )
            with Server(command, options.work / "node.log") as node:
                work = worker_command(
                    options.build,
                    model,
                    *("--cache", node.grpc, "--cache.path", "grpc"),
                    *("--kv_pool", "23040KiB", "--threads", "1"),
                )
                with Server(work, options.work / "worker.log") as worker:
                    wait_until(
                        lambda worker=worker: worker.metric("cairn_worker_cache_connected") == 1,
                        60,
                        "the worker connects",
                    )
                    begin = time.monotonic()
                    answer = cairn(
                        options.build,
                        *("generate", "--worker", worker.grpc, "--raw", "--prompt-file", text),
                        *("--max-tokens", "8", "--ignore-eos"),
                    )
                    seconds = time.monotonic() - begin
                    rows.append(
                        {
                            "spilt_to": where,
                            "host_capacity": capacity,
                            "prompt_tokens": answer["prompt_tokens"],
                            "seconds": seconds,
                            "waited_for_windows_s": worker.metric(
                                "cairn_worker_spilled_wait_seconds_total"
                            ),
                            "device_read_bytes": device_reads(node.pid),
                        }
                    )
    return rows


RECIPES = {
    "router-memory": router_memory,
    "long-texts": long_texts,
    "rows": rows_from_disk,
    "spill": spill,
}


def revision(build):
    done = subprocess.run(
        [build / "bin/cairn-cache", "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument(
        "--model",
        type=pathlib.Path,
        default=ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
    parser.add_argument("--text", type=pathlib.Path, help="of more than 8,200 tokens, for rows")
    parser.add_argument("--tokens", type=int, default=8064, help="of the context, for rows")
    parser.add_argument("--capacity", nargs="+", default=CAPACITIES, help="of the node, for rows")
    parser.add_argument("--policy", nargs="+", default=POLICIES, help="of decode steps, for rows")
    parser.add_argument("--node", nargs="*", default=[], help="more settings of the node")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="where the report goes; else stdout")
    options = parser.parse_args()
    if options.recipe == "rows" and options.text is None:
        parser.error("--text: got nothing, expected a file of more than 8,200 tokens")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="cairn-strangers-") as work:
        options.work = pathlib.Path(work)
        rows = RECIPES[options.recipe](options)
    command = ["benchmarks/strangers.py", options.recipe, "--rounds", str(options.rounds)]
    if options.recipe == "rows":
        command += ["--tokens", str(options.tokens), "--capacity", *options.capacity]
        command += ["--policy", *options.policy]
    report = {
        "machine": machine(),
        "commit": revision(options.build),
        "command": shlex.join(command),
        "rows": rows,
    }
    text = json.dumps(report, indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
