"""Many clients at one node: what 64 of them do to the throughput, and what an idle one costs."""

import statistics

from . import row
from .bench import budget_row, run as bench
from .processes import Server, node_command

NAMES = [
    "clients_64_over_1",
    "clients_64_over_1_of_4_calls",
    "idle_session_grpc",
    "idle_session_local",
]
MANY = 64


def run(build, _model, repeat, work):
    few, one, many = [], [], []
    with Server(node_command(build, "--host.capacity", "1GiB"), work / "clients.log") as node:
        for _ in range(repeat):
            # The number of clients is all that differs between the last two: 64 MiB are under way
            # in both, more than the caches hold. The first one's 4 MiB stay in them.
            for samples, clients, depth in ((few, 1, 4), (one, 1, MANY), (many, MANY, 1)):
                report = bench(
                    build,
                    1,
                    "get",
                    cache=node.grpc,
                    path="grpc",
                    size="1MiB",
                    batch=1,
                    depth=depth,
                    clients=clients,
                )
                samples.append(report["metrics"]["throughput"]["median"])

    def over(name, yardstick, calls, floor, goal):
        ratio = statistics.median(b / a for a, b in zip(yardstick, many))
        return row(
            name,
            many,
            "GB/s",
            f"one client, {calls} calls, {statistics.median(yardstick):.2f} GB/s",
            ratio,
            floor,
            goal,
        )

    rows = [
        over("clients_64_over_1", one, MANY, 0.8, 0.95),
        over("clients_64_over_1_of_4_calls", few, 4, None, 0.95),
    ]
    for path in ("grpc", "local"):
        # Each trial opens a thousand sessions at a node of its own.
        sessions = bench(build, 3, "sessions", path=path)
        rows.append(budget_row(f"idle_session_{path}", sessions, "memory", 128, 1.0, 4.0))
    return rows
