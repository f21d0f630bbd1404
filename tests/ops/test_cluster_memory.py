"""Node, worker and router in control groups of exactly their pods' limits, while calls push them to
their bounds: what is too much is refused, and nobody is killed.

CAIRN_BOUNDS_SECONDS keeps them there for so long.
"""

import collections
import http.client
import itertools
import json
import os
import time

import pytest

from cairn_cluster import PLAINTEXT, Load, metric
from rendered_chart import merged
from small_cluster import memory

SECONDS = float(os.environ.get("CAIRN_BOUNDS_SECONDS", "0"))
# Settings in MiB, as small as the programs take them, or nearly.
NODE = {
    "index.capacity": 1,
    "limits.lease_memory": 8,
    "limits.namespace_memory": 4,
    "limits.fetch_headers": 4,
    "limits.transfers": 8,
    "rpc.memory": 32,
    "watch.memory": 4,
    "limits.session_memory": 8,
}
WORKER = {"rpc.requests": 16, "cache.push_queue": 8, "parking": 8}
ROUTER = {"rpc.requests": 16, "http.all_bodies": 64, "http.all_unread": 16, "all_answers": 16}


def settings(sizes):
    made = {}
    for key, size in sizes.items():
        *levels, last = key.split(".")
        at = made
        for level in levels:
            at = at.setdefault(level, {})
        at[last] = f"{size}MiB"
    return made


# The least that the chart takes (docs/operate/operations.md, "Memory"), and 32 MiB for what a
# process has when it looks whether the rest fits.
VALUES = {
    **PLAINTEXT,
    "cache": {
        "host": {"capacityMiB": 64},
        "overheadMiB": sum(NODE.values()) + 100 + 96 + 32,
        "config": settings(NODE),
    },
    "worker": {
        "enabled": True,
        "kvPoolMiB": 64,
        # The process itself, and 16 MiB for the model's weights and activations.
        "memoryMiB": 64 + sum(WORKER.values()) + WORKER["rpc.requests"] + 160 + 32 + 16,
        "config": merged(
            settings(WORKER), {"batch": {"max_running": 128}, "queue": {"capacity": 128}}
        ),
    },
    "router": {
        "enabled": True,
        "modelId": "m",
        "indexMiB": 64,
        "tokenCacheMiB": 8,
        "config": merged(settings(ROUTER), {"http": {"max_connections": 512}}),
    },
}
# Blocks of 4 KiB: the index is full before the tiers are.
TRACE = """
import json
for i in range(1500):
    ids = list(range(8 * i, 8 * i + 8))
    print(json.dumps(dict(timestamp=i, input_length=4096, output_length=1, hash_ids=ids)))
"""


@pytest.fixture
def limits():
    group = memory.Group("probe", 64 << 20)
    if group.members is None:
        pytest.skip("no cgroup for memory can be written")
    group.close()


def body_of(prompt, tokens=1):
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens}).encode()


class Callers:
    """Completions at the router: long prompts, and bodies that are as long as they may be."""

    def __init__(self, cluster):
        self._address = cluster.service_address("test-router")
        self._count = itertools.count()
        self._huge = body_of("x" * (7 << 20))
        self.codes = collections.Counter()

    def ask(self, body):
        connection = http.client.HTTPConnection(self._address, 8000, timeout=60)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        self.codes[answer.status] += 1
        return answer.status

    def long(self):
        """No two prompts share blocks."""
        numbers = " ".join(str(i) for i in range(100, 330))
        assert self.ask(body_of(f"{next(self._count)} {numbers}", 32)) in (200, 429, 503)

    def huge(self):
        """More than the model takes: refused, or for want of memory."""
        assert self.ask(self._huge) in (400, 503)


def test_pods_at_their_bounds_are_not_killed(release, limits):
    release.upgrade(VALUES)
    cluster = release.cluster
    pods = {p.labels["app.kubernetes.io/component"]: p for p in cluster.pods() if p.owner}

    def share(role, port, name, item):
        """Of the item's bound that is used."""
        used, bound = (
            metric(release, pods[role], port, f"{name}_{what}_bytes", f'item="{item}"')
            for what in ("used", "bound")
        )
        return used / bound

    def refused():
        name = "cairn_router_memory_refusals_total"
        return metric(release, pods["router"], 7601, name, 'item="bodies"')

    def fill_node():
        code, said = release.run(
            "sh", "-c", f"python3 -c '{TRACE}' | cairn replay - --nodes=test-cache.kv.svc:7400"
        )
        assert code == 0, said

    callers = Callers(cluster)
    loads = [Load(cluster, callers.long, threads=80), Load(cluster, callers.huge, threads=10)]
    cluster.wait(lambda: refused() > 0, "bodies that find no room", 60)
    cluster.wait(
        lambda: share("worker", 7501, "cairn_worker_memory", "pool") > 0.9, "a full KV pool", 60
    )
    done = callers.codes[200]
    cluster.wait(lambda: callers.codes[200] > done + 20, "more answers", 60)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        fill_node()
    for load in loads:
        load.stop()
    assert [load.failures for load in loads] == [[], []], cluster.report()
    fill_node()
    for item in ("host", "index"):
        assert share("cache", 7401, "cairn_memory", item) > 0.9, item
    assert callers.codes[200] and callers.codes[503]
    assert cluster.in_client(lambda: callers.ask(body_of("x"))) == 200
    assert cluster.notes == []
    assert [c.restarts for p in pods.values() for c in p.containers] == [0, 0, 0]
