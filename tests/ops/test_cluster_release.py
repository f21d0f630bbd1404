"""A whole release as pods: nodes, workers and routers are updated, rolled back, scaled and killed
while requests come, and the Services follow their pods late. No request fails, and each prompt gets
the answer that it got before."""

import http.client
import json
import random
import signal
import ssl

import pytest

from cairn_cluster import PLAINTEXT, Authority, Load, metric, start
from small_cluster.name_server import Zone

LAG = 5.0  # Seconds by which a Service follows its pods late.
# Longer, because on a busy machine the Service of the small cluster follows later still.
ANNOUNCED = int(LAG) + 8
SOON = 10.0  # Seconds in which a router knows who came and who went.
PROMPTS = [f"{n}: " + " ".join(str(n * i) for i in range(60)) for n in range(1, 9)]
# The chart's own Certificates, of which an authority makes Secrets.
TLS = {
    "tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
    "router": {"clientCertificates": False},
}
VALUES = {
    "cache": {"replicas": 3},
    # The next worker ends when routers know the one before, which takes a busy machine long.
    "worker": {"enabled": True, "replicas": 2, "minReadySeconds": int(SOON)},
    "router": {
        "enabled": True,
        "replicas": 2,
        "announceSeconds": ANNOUNCED,
        "modelId": "m",
        "policy": "round_robin",
    },
}


@pytest.fixture
def release(networks, chart, programs, tmp_path):
    made = start(chart, tmp_path, programs, lag=LAG)
    made.authority = Authority(tmp_path / "tls")
    yield made
    made.cluster.close()


class Caller:
    """Calls the routers through their Service. Known prompts must get known answers."""

    def __init__(self, cluster, https, tokens=3):
        self._cluster, self._tokens = cluster, tokens
        self._address = cluster.service_address("test-router")
        self._known = {}
        self._context = ssl.create_default_context() if https else None
        if https:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    def __call__(self):
        self.ask(random.choice(PROMPTS))

    def ask(self, prompt):
        more = {"max_tokens": self._tokens, "temperature": 0}
        body = json.dumps({"model": "m", "prompt": prompt, **more})
        connection = self._connection()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status == 200, f"{answer.status} {text[:500]}"
        said = json.loads(text)["choices"][0]["text"]
        assert said == self._known.setdefault(prompt, said), "another answer than before"

    def _connection(self):
        if self._context is None:
            return http.client.HTTPConnection(self._address, 8000, timeout=30)
        return http.client.HTTPSConnection(self._address, 8000, timeout=30, context=self._context)

    def learn(self):
        """The answers, before anything happens."""

        def ask_all():
            for prompt in PROMPTS:
                self.ask(prompt)

        self._cluster.in_client(ask_all)


def under_load(release, transport):
    """Installs the release; the requests that it answers from then on."""
    release.upgrade(VALUES, transport)
    caller = Caller(release.cluster, transport is TLS)
    caller.learn()
    return Load(release.cluster, caller)


def pods_of(release, role):
    label = "app.kubernetes.io/component"
    return [p for p in release.cluster.pods() if p.labels.get(label) == role]


def completed(release, worker):
    return metric(release, worker, 7501, "cairn_worker_requests_total", 'result="completed"')


def test_update_and_rollback_of_everything(release):
    load = under_load(release, PLAINTEXT)
    before = {p.name: p.revision for p in release.cluster.pods()}
    # Another image, and other settings of each role.
    debug = {role: {"logLevel": "debug"} for role in ("cache", "worker", "router")}
    release.upgrade(VALUES, PLAINTEXT, debug, {"image": {"tag": "0.1.1"}})
    assert not {p.revision for p in release.cluster.pods()} & set(before.values())
    release.upgrade(VALUES, PLAINTEXT)
    assert {p.revision for p in release.cluster.pods()} == set(before.values())
    load.stop()
    assert not load.failures, "\n".join(load.failures)
    assert load.done > 200
    assert release.cluster.notes == []


def test_workers_are_scaled_without_a_restart_of_the_routers(release):
    load = under_load(release, TLS)
    cluster, routers = release.cluster, pods_of(release, "router")
    release.upgrade(VALUES, TLS, {"worker": {"replicas": 5}})
    workers = pods_of(release, "worker")
    assert len(workers) == 5
    cluster.wait(
        lambda: all(completed(release, w) > 0 for w in workers), "requests at all workers", SOON
    )
    release.upgrade(VALUES, TLS, {"worker": {"replicas": 1}})

    def known():
        return [metric(release, r, 7601, "cairn_router_workers") for r in routers]

    cluster.wait(lambda: known() == [1, 1], "routers that know one worker", SOON)
    tries = [metric(release, r, 7601, "cairn_router_tries_again_total") for r in routers]
    more_requests(release, load)
    # None of them went to a worker that is gone.
    assert tries == [metric(release, r, 7601, "cairn_router_tries_again_total") for r in routers]
    load.stop()
    assert load.failures == [], cluster.report()
    assert not [r for r in routers if r.ended.is_set() or r.container("router").restarts]


def more_requests(release, load, count=50):
    done = load.done
    release.cluster.wait(lambda: load.done > done + count, "more requests")


def test_no_request_fails_when_nodes_or_names_do(release):
    load = under_load(release, PLAINTEXT)
    cluster = release.cluster
    # A process is killed; one stands still; and one is gone with its machine and its volume.
    cluster.pod("test-cache-0").container("cache").kill()
    more_requests(release, load)
    standing = cluster.pod("test-cache-1").container("cache").process
    standing.send_signal(signal.SIGSTOP)
    more_requests(release, load)
    standing.send_signal(signal.SIGCONT)
    cluster.claims.lost = frozenset({"data-test-cache-2"})
    cluster.pod("test-cache-2").delete(grace=0)
    more_requests(release, load)
    assert cluster.pod("test-cache-2").phase == "Pending"
    cluster.claims.lost = frozenset()
    cluster.wait_settled()
    # DNS knows nothing for a while, or only one pod of each Service.
    for spoil in (lambda zone: Zone(), Zone.of_first):
        cluster.spoil_names = spoil
        more_requests(release, load, 150)
    cluster.spoil_names = None
    more_requests(release, load)
    load.stop()
    assert load.failures == [], cluster.report()
    routers = pods_of(release, "router")
    assert not [r for r in routers if r.ended.is_set() or r.container("router").restarts]
