"""Pods on machines whose clocks are an hour apart. They form a cluster, requests succeed, and what
one stores the others find. The clocks are those of tests/cases/clock_jump.c, which is preloaded:
the processes see another time of day, and nothing else does."""

import json
import os
import shutil
import struct
import subprocess
import time

import pytest

from cairn_cluster import PLAINTEXT, Authority, Load, metric, secret, start
from conftest import ROOT
from test_cluster_release import Caller

HOUR = 3600
LIBRARY, CLOCK = "clock_jump.so", "clock-"
CLOCKS = {
    "test-cache-0": -HOUR,
    "test-cache-1": 0,
    "test-cache-2": HOUR,
    "test-behind-0": -HOUR,
    "test-ahead-0": HOUR,
    "router": HOUR // 2,
}
NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
NAMES = [f"test-{role}.kv.svc" for role in ("cache", "worker", "router")]
TLS = {"tls": {"existingSecret": "cairn-tls"}}
POD_0, POD_2 = (f"test-cache-{n}.test-cache-peers.kv.svc:7400" for n in (0, 2))
PROMPT = 832  # Tokens of a prompt that are in full blocks.
BLOCK = 64  # Tokens.


def clock(name):
    """Environment of a container whose clock has the name."""
    return [
        {"name": "JUMP_FILE", "value": f"/usr/local/bin/{CLOCK}{name}"},
        {"name": "LD_PRELOAD", "value": f"/usr/local/bin/{LIBRARY}"},
    ]


# A small model computes faster than a node answers.
PATIENT = {"choose": False, "match_deadline": "10s", "stall_deadline": "30s"}
VALUES = {
    "cache": {
        "replicas": 3,
        # A node that comes back has nothing but its clock to count its starts by.
        "disk": {"enabled": False},
        "extraEnv": clock("$(POD_NAME)"),
        # Less than the clocks differ; and a busy machine takes its time.
        "config": {"blocks": {"life": "20m"}, "cluster": {"lookup_deadline": "5s"}},
    },
    "worker": {
        "enabled": True,
        "extraEnv": [NAME, *clock("$(POD_NAME)")],
        "groups": {
            "behind": {"config": {"cache": {"address": POD_0, **PATIENT}}},
            "ahead": {"config": {"cache": {"address": POD_2, **PATIENT}}},
        },
    },
    "router": {
        "enabled": True,
        "modelId": "m",
        "policy": "round_robin",
        "extraEnv": clock("router"),
    },
}


def set_clock(folder, name, seconds):
    """At once, also for processes that run: they have mapped the file."""
    path = folder / f"{CLOCK}{name}"
    path.touch()
    with open(path, "r+b") as file:
        file.write(struct.pack("q", seconds))


@pytest.fixture
def release(networks, chart, programs, tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    made = start(chart, tmp_path, programs)
    folder = made.cluster.programs
    subprocess.run(
        ["cc", "-O2", "-w", "-shared", "-fPIC", "-o", folder / LIBRARY]
        + [ROOT / "tests/cases/clock_jump.c", "-ldl", "-lpthread"],
        check=True,
    )
    for name, seconds in CLOCKS.items():
        set_clock(folder, name, seconds)
    yield made
    made.cluster.close()


def wrong_by(container):
    """Seconds by which the clock of the last line of the log is ahead."""
    lines = [x for x in container.log.read_text(errors="replace").splitlines() if x[:1] == "{"]
    return json.loads(lines[-1])["ts"] - time.time()


def ask(release, group, first):
    """(fetched tokens, text) of a prompt of 250 numbers from `first` on, at a group's worker. All
    nodes know afterwards where its blocks are."""
    worker = release.cluster.pod(f"test-{group}-0")
    nodes = [release.cluster.pod(f"test-cache-{n}") for n in range(3)]

    def stored():
        name = "cairn_worker_pushed_blocks_total"
        return metric(release, worker, 7501, name, 'result="stored"')

    before = stored()
    code, output = release.run(
        "sh",
        "-c",
        f"seq -s' ' {first} {first + 249} | cairn generate --prompt-file=- --raw --max-tokens=1"
        f" --json --worker=test-{group}-0.test-worker-pods.kv.svc:7500",
    )
    assert code == 0, output
    answer = json.loads(output[output.index('{"prompt_tokens') :])
    computed = answer["prompt_tokens"] - answer["fetched_tokens"]

    def known():
        untold = [metric(release, n, 7401, "cairn_cluster_announcing_members") for n in nodes]
        return stored() - before >= computed // BLOCK and untold == [0, 0, 0]

    release.cluster.wait(known, "blocks that all nodes know", 30)
    return answer["fetched_tokens"], answer["text"]


def share(release, one, other, numbers):
    """The number that a prompt begins with, and its text: `other` found what `one` had stored.

    One prompt in six has no waymark, so that no other node finds it. Which ones depends on the
    processor, since numerics are part of the keys.
    """
    for first in numbers:
        fetched, text = ask(release, one, first)
        assert fetched == 0
        fetched, again = ask(release, other, first)
        assert again == text
        if fetched > PROMPT / 2:
            return first, text
    pytest.fail(f"no prompt that {one} had stored was found by {other}")


def test_clocks_an_hour_apart(release):
    release.upgrade(PLAINTEXT, VALUES)
    cluster = release.cluster
    ahead = wrong_by(cluster.pod("test-cache-2").container("cache"))
    behind = wrong_by(cluster.pod("test-cache-0").container("cache"))
    assert ahead - behind > 1.5 * HOUR  # The library works.
    release.wait_whole(POD_0)
    # Each finds what the other one has stored.
    share(release, "behind", "ahead", range(1, 300, 30))
    first, text = share(release, "ahead", "behind", range(300, 600, 30))
    caller = Caller(cluster, https=False)
    caller.learn()
    load = Load(cluster, caller)
    # A node comes back on a machine whose clock is two hours behind the one before.
    set_clock(cluster.programs, "test-cache-2", -HOUR)
    pod = cluster.pod("test-cache-2")
    pod.delete()
    pod.ended.wait(60)
    cluster.wait_settled()
    release.wait_whole(POD_0)
    worker = cluster.pod("test-ahead-0")
    cluster.wait(
        lambda: (
            metric(release, worker, 7501, "cairn_worker_cache_connected") == 1
            and metric(release, worker, 7501, "cairn_worker_cache_breaker_open") == 0
        ),
        "the worker's new session",
        30,
    )
    fetched, again = ask(release, "ahead", first)
    assert fetched > PROMPT / 2 and again == text
    done = load.done
    cluster.wait(lambda: load.done > done + 20, "more requests", 60)
    load.stop()
    assert load.failures == [], cluster.report()
    assert cluster.notes == []


def test_certificates_that_are_older_than_the_difference(release, tmp_path):
    """A certificate begins when it is made. A machine whose clock is behind takes it later."""
    cluster, folder = release.cluster, release.cluster.programs
    cluster.add(secret("cairn-tls", Authority(tmp_path / "new").make(NAMES)))
    soon = {"tls": {"reload_interval": "1s"}}
    values = {"cache": {**VALUES["cache"], "replicas": 2, "config": soon}}
    release.apply(TLS, values)

    def refused():
        logs = [p.container("cache").log for p in cluster.pods() if p.name == "test-cache-0"]
        return any(log.exists() and "is not valid yet" in log.read_text() for log in logs)

    cluster.wait(refused, "a node that says why it does not start")
    set_clock(folder, "openssl", -2 * HOUR)
    env = {
        **os.environ,
        "JUMP_FILE": f"{folder}/{CLOCK}openssl",
        "LD_PRELOAD": f"{folder}/{LIBRARY}",
    }
    cluster.add(secret("cairn-tls", Authority(tmp_path / "old", env).make(NAMES)))
    cluster.wait_settled()
    release.wait_whole(POD_0)
    done, said = release.test()
    assert done, said
