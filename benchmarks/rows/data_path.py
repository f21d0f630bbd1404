"""Bytes and keys between a client and its node: through shared memory on the same machine, and over
gRPC. All bytes that are read are compared; rows named `unverified` leave out the checksums on the
way. Two calls at a time copy in shared memory: one core does not fill the memory bus; rows named
`one_call` are without that, and have no floor."""

from .bench import budget_row, run as bench, speed_row

MEMORY = "memref"

# name, workload, flags, floor, goal: over one thread of memcpy.
LOCAL = [
    ("local_get_1m", "get", {"size": "1MiB", "batch": 1, "depth": 2}, 0.8, 1.2),
    ("local_get_1m_one_call", "get", {"size": "1MiB", "batch": 1, "depth": 1}, None, None),
    ("local_get_64k_x16", "get", {"size": "64KiB", "batch": 16, "depth": 2}, 0.8, 1.2),
    ("local_get_64k_x16_one_call", "get", {"size": "64KiB", "batch": 16, "depth": 1}, None, None),
    (
        "local_get_1m_unverified",
        "get",
        {"size": "1MiB", "batch": 1, "depth": 2, "verify": False},
        1.2,
        1.8,
    ),
    (
        "local_get_64k_x16_unverified",
        "get",
        {"size": "64KiB", "batch": 16, "depth": 2, "verify": False},
        1.2,
        1.8,
    ),
    ("local_put_1m_x16", "put", {"size": "1MiB", "batch": 16, "depth": 2}, 0.7, 1.1),
    (
        "local_put_1m_x16_unverified",
        "put",
        {"size": "1MiB", "batch": 16, "depth": 2, "verify": False},
        0.9,
        1.9,
    ),
]
GRPC = [
    ("grpc_get_64k_x1", "get", {"size": "64KiB", "batch": 1, "depth": 1}, 0.03, 0.06),
    ("grpc_get_64k_x16", "get", {"size": "64KiB", "batch": 16, "depth": 4}, 0.20, 0.28),
    ("grpc_put_1m_x4", "put", {"size": "1MiB", "batch": 1, "depth": 4}, 0.22, 0.32),
]
KEYS = [
    ("exists_grpc", "exists", {"path": "grpc"}, 2e6, 1.0, 2.0),
    ("match_grpc", "match", {"path": "grpc", "lease": False}, 2e6, 1.0, 2.0),
    ("exists_local", "exists", {"path": "local", "depth": 1}, 20e6, None, 1.0),
    ("match_local", "match", {"path": "local", "depth": 1, "lease": False}, 20e6, None, 1.0),
]
PATH_BLOCKS = 64  # 4,096 tokens.

NAMES = (
    ["local_lease_p50"]
    + [name for name, *_ in LOCAL]
    + [
        "grpc_get_1m_x4",
        "grpc_get_1m_x4_over_tcp",
        "grpc_get_1m_stream",
        "grpc_get_1m_stream_over_tcp",
    ]
    + [name for name, *_ in GRPC]
    + [name for name, *_ in KEYS]
)


def run(build, _model, repeat, _work):
    rows = []
    # The floor is of sides that are awake: waking a sleeper costs what the kernel takes for it.
    lease = bench(build, repeat, "match", path="local", batch=PATH_BLOCKS, depth=1, spin="50us")
    rows.append(budget_row("local_lease_p50", lease, "answer p50", 5.0, 1.0, 5.0))
    for name, workload, flags, floor, goal in LOCAL:
        rows.append(
            speed_row(
                name, bench(build, repeat, workload, path="local", **flags), MEMORY, floor, goal
            )
        )
    unary = bench(build, repeat, "get", path="grpc", size="1MiB", batch=1, depth=4)
    rows.append(speed_row("grpc_get_1m_x4", unary, MEMORY, 0.25, 0.33))
    # The floor is of four in flight or streams, whichever is faster.
    rows.append(speed_row("grpc_get_1m_x4_over_tcp", unary, "tcp", None, 0.8))
    stream = bench(build, repeat, "get", path="grpc", size="1MiB", batch=16, depth=4)
    rows.append(speed_row("grpc_get_1m_stream", stream, MEMORY, 0.25, 0.33))
    rows.append(speed_row("grpc_get_1m_stream_over_tcp", stream, "tcp", 0.6, 0.8))
    for name, workload, flags, floor, goal in GRPC:
        rows.append(
            speed_row(
                name, bench(build, repeat, workload, path="grpc", **flags), MEMORY, floor, goal
            )
        )
    for name, workload, flags, budget, floor, goal in KEYS:
        rows.append(
            budget_row(name, bench(build, repeat, workload, **flags), "keys", budget, floor, goal)
        )
    return rows
