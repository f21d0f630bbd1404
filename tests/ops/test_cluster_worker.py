"""Workers as pods: in their node's pod, and followed by a router."""

import http.client
import json
import re

import pytest

from cairn_cluster import PLAINTEXT, Load, start
from small_cluster.network import make_namespace

BESIDE = {**PLAINTEXT, "worker": {"enabled": True, "besideNode": True}}


@pytest.fixture(scope="module", autouse=True)
def may_make_networks():
    try:
        make_namespace()
    except OSError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture
def release(chart, programs, tmp_path):
    made = start(chart, tmp_path, programs)
    yield made
    made.cluster.close()


def when(container, event):
    """The time of the first line with this event."""
    for line in container.log.read_text(errors="replace").splitlines():
        if line.startswith("{") and json.loads(line)["event"] == event:
            return json.loads(line)["ts"]
    raise AssertionError(f"no {event} in {container.log}")


def answer(release):
    code, output = release.run(
        "sh",
        "-c",
        "seq -s' ' 1 250 | cairn generate --worker=test-worker.kv.svc:7500 --prompt-file=- --raw"
        " --max-tokens=1 --json",
    )
    assert code == 0, output
    return json.loads(output[output.index('{"prompt_tokens') :])


def test_a_node_outlives_the_worker_of_its_pod(release):
    release.upgrade(BESIDE)
    first = answer(release)
    assert first["fetched_tokens"] == 0
    again = answer(release)
    # Through the memory of both: the pod's containers share a folder, under restricted.
    assert again["fetched_tokens"] == 832 and again["fetch_path"] == "local"
    assert again["text"] == first["text"]
    pod = release.cluster.pod("test-cache-0")
    node, worker = pod.container("cache"), pod.container("worker")
    pod.delete()
    pod.ended.wait(60)
    assert (node.exit_code, worker.exit_code) == (0, 0)
    # The node takes the worker's last blocks: it hears of the end when the worker has ended.
    assert when(node, "draining") >= when(worker, "stopped")
    assert release.cluster.notes == []
    release.cluster.wait_settled()
    assert answer(release)["fetched_tokens"] == 832


def caller(cluster):
    address = cluster.service_address("test-router")

    def request():
        connection = http.client.HTTPConnection(address, 8000, timeout=60)
        body = json.dumps({"prompt": "hello", "max_tokens": 1})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, f"{answer.status} {text[:200]}"
        connection.close()

    return request


def test_an_update_of_everything_fails_no_request(release):
    release.cluster.lag = 3.0

    def values(level):
        return {
            **PLAINTEXT,
            "cache": {"replicas": 3, "logLevel": level},
            "worker": {"enabled": True, "replicas": 2, "logLevel": level},
            "router": {
                "enabled": True,
                "replicas": 2,
                "announceSeconds": 5,
                "logLevel": level,
            },
        }

    release.upgrade(values("info"))
    load = Load(release.cluster, caller(release.cluster))
    release.upgrade(values("warn"))
    release.upgrade(values("info"))  # A rollback is no more than this.
    load.stop()
    assert load.failures == [] and load.done > 50
    assert release.cluster.notes == []


def test_a_router_follows_the_workers_of_the_chart(release):
    def values(workers):
        return {
            **PLAINTEXT,
            "worker": {"enabled": True, "replicas": workers},
            "router": {"enabled": True, "policy": "round_robin"},
        }

    release.upgrade(values(2))
    cluster = release.cluster
    (router,) = [p for p in cluster.pods() if "router" in p.name]

    def workers():
        """How many the router knows, by their condition."""
        connection = http.client.HTTPConnection(router.address, 7601, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        found = re.findall(r'^cairn_router_workers\{condition="(\w+)"\} (\d+)', text, flags=re.M)
        return {condition: int(count) for condition, count in found if count != "0"}

    load = Load(cluster, caller(cluster))
    for count in [4, 1]:
        release.upgrade(values(count))
        cluster.wait(lambda n=count: cluster.in_client(workers) == {"ready": n}, f"{count} workers")
    load.stop()
    assert load.failures == [] and load.done > 20
    assert not router.ended.is_set() and router.container("router").restarts == 0
