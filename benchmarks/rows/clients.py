"""Many clients at one node: what 64 of them do to the throughput, and what an idle one costs."""

import statistics

from . import row
from .bench import budget_row, run as bench
from .processes import Server, node_command

NAMES = ["clients_64_over_1", "idle_session_grpc", "idle_session_local"]
MANY = 64


def run(build, _model, repeat, work):
    one, many = [], []
    with Server(node_command(build, "--host.capacity", "1GiB"), work / "clients.log") as node:
        for _ in range(repeat):
            # The same number of bytes is asked for at a time by both: 4 MiB of one client, or what 64 ask for one by one.
            for samples, clients, depth in ((one, 1, 4), (many, MANY, 1)):
                report = bench(build, 1, "get", cache=node.grpc, path="grpc", size="1MiB", batch=1, depth=depth, clients=clients)
                samples.append(report["metrics"]["throughput"]["median"])
    ratio = statistics.median(b / a for a, b in zip(one, many))
    rows = [row("clients_64_over_1", many, "GB/s", f"one client {statistics.median(one):.2f} GB/s", ratio, 0.8, 0.95)]
    for path in ("grpc", "local"):
        # Each trial opens a thousand sessions at a node of its own.
        sessions = bench(build, 3, "sessions", path=path)
        rows.append(budget_row(f"idle_session_{path}", sessions, "memory", 128, 1.0, 4.0))
    return rows
