"""Routers as pods, before engines: what callers see while pods are replaced and Services lag.

The engines are small scripts. Calls come as those of most clients do, each with a connection of its
own."""

import http.client
import json
import threading

import pytest

from cairn_cluster import PLAINTEXT, Load, engine_script, metric, start
from pod_security import CONTAINER_CONTEXT, POD_CONTEXT
from rendered_chart import merged

LAG = 3.0  # Seconds by which a Service follows its pods late.
# Longer, because on a busy machine the Service of the small cluster follows later still.
ANNOUNCED = int(LAG) + 8
SOON = 10.0  # Seconds in which a router knows who came and who went.
ENGINE = engine_script('os.environ["HOSTNAME"]')
LABELS = {"app": "engine"}
CONTAINER = {
    "name": "engine",
    "image": "none",
    "command": ["engine"],
    "ports": [{"name": "http", "containerPort": 8000}],
    "securityContext": CONTAINER_CONTEXT,
}
POD = {
    "securityContext": POD_CONTEXT,
    "terminationGracePeriodSeconds": 1,
    "containers": [CONTAINER],
}
ENGINES = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "engine"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": POD},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "engine"},
        "spec": {
            "clusterIP": "None",
            "selector": LABELS,
            "ports": [{"name": "http", "port": 8000, "targetPort": "http"}],
        },
    },
]
VALUES = {
    **PLAINTEXT,
    "cache": {"enabled": False},
    "router": {"enabled": True, "replicas": 2, "workers": ["dns:http://engine.kv.svc:8000"]},
    "extraObjects": ENGINES,
}


@pytest.fixture
def release(networks, chart, programs, tmp_path):
    made = start(chart, tmp_path, programs, {"engine": ENGINE}, lag=LAG)
    yield made
    made.cluster.close()


def caller(cluster, answered, service="test-router"):
    """`answered` gets the names of the engines' pods."""
    address = cluster.service_address(service)

    def request():
        # Another prompt each time: one that is known goes where it went before.
        prompt = f"{len(answered)} {threading.get_ident()} " + "hello " * 100
        body = json.dumps({"model": "m", "prompt": prompt})
        connection = http.client.HTTPConnection(address, 8000, timeout=10)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, f"{answer.status} {text[:200]}"
        connection.close()
        answered.append(json.loads(text)["choices"][0]["text"])

    return request


def router(**values):
    return merged(VALUES, {"router": values})


def test_routers_are_replaced_without_a_failed_request(release):
    quick = {"announceSeconds": ANNOUNCED}
    release.upgrade(router(**quick))
    load = Load(release.cluster, caller(release.cluster, []))
    release.upgrade(router(**quick, logLevel="debug"))
    pods = [p for p in release.cluster.pods() if p.labels.get("app.kubernetes.io/name") == "cairn"]
    assert release.cluster.evict(pods[0].name)
    assert not release.cluster.evict(pods[1].name)  # One at a time.
    pods[0].ended.wait(60)
    release.cluster.wait_settled()
    load.stop()
    assert load.failures == [] and load.done > 100
    assert release.cluster.notes == []


def test_without_a_time_to_announce_it_requests_fail(release):
    """That the test above can fail: a Service still leads to the routers that have ended."""
    release.upgrade(router(announceSeconds=0))
    load = Load(release.cluster, caller(release.cluster, []))
    release.upgrade(router(announceSeconds=0, logLevel="debug"))
    load.stop()
    assert load.failures != []


def engines(count, version="1", more=()):
    """Another version is another template: a new pod for each, at another address. `more`:
    containers in each pod."""
    deployment, service = ENGINES
    # An old engine ends when the router knows the new one, as the page says.
    spec = merged(deployment["spec"], {"replicas": count, "minReadySeconds": int(SOON)})
    container = {**CONTAINER, "env": [{"name": "VERSION", "value": version}]}
    containers = [container, *more]
    spec["template"] = merged(spec["template"], {"spec": {**POD, "containers": containers}})
    return {"extraObjects": [{**deployment, "spec": spec}, service]}


def test_a_router_follows_engines_as_they_come_and_go(release):
    values = router(replicas=1, policy="round_robin")
    release.upgrade(values)
    (pod,) = [p for p in release.cluster.pods() if "router" in p.name]
    answered, before = [], {}
    load = Load(release.cluster, caller(release.cluster, answered))
    for count, version in [(3, "1"), (5, "1"), (2, "1"), (2, "2")]:
        release.upgrade(values, engines(count, version))
        found = {p.name: p.address for p in release.cluster.pods() if p.labels == LABELS}
        assert len(found) == count
        if version != before.get("version", version):
            assert not set(found.values()) & set(before["addresses"])
        before = {"version": version, "addresses": found.values()}
        # Each one that is new gets requests, and none goes to one that has gone.
        release.cluster.wait(
            lambda n=set(found): n <= set(answered[-50:]) and set(answered[-20:]) <= n,
            "all engines are used, and no others",
            SOON,
        )
    load.stop()
    assert load.failures == [], f"{load.failures}\n{release.cluster.report()}"
    assert not pod.ended.is_set() and pod.container("router").restarts == 0


# A real publisher of events in the engines' form: a cache node.
PUBLISHER = {
    "name": "events",
    "image": "none",
    "command": [
        "cairn-cache",
        *("--listen", "127.0.0.1:7400", "--admin.listen", "127.0.0.1:7401"),
        *("--admin.socket", "off", "--local.socket", "off", "--host.capacity", "16MiB"),
        *("--events.zmq", "tcp://0.0.0.0:5557", "--events.zmq_replay", "tcp://0.0.0.0:5558"),
        *("--events.trusted_network", "true"),
    ],
    "securityContext": CONTAINER_CONTEXT,
}


def test_a_router_follows_the_events_of_engines_as_they_come_and_go(release):
    (name,) = VALUES["router"]["workers"]
    values = router(
        replicas=1,
        engines={"events": [f"{name}=tcp://{{host}}:5557,tcp://{{host}}:5558"]},
        config={"engines": {"event_engines": 3}},
    )
    # The last ones are more than the router follows.
    for count, followed in [(1, 1), (3, 3), (2, 2), (4, 3)]:
        release.upgrade(values, engines(count, more=[PUBLISHER]))
        (pod,) = [p for p in release.cluster.pods() if "router" in p.name]
        streams = "cairn_router_engine_event_streams"

        def are_followed(pod=pod, followed=followed):
            connected, lost = (
                metric(release, pod, 7601, streams, f'condition="{condition}"')
                for condition in ["connected", "lost"]
            )
            return (connected, lost) == (followed, 0)

        release.cluster.wait(are_followed, f"events of {followed} engines", patience=60)
    assert not pod.ended.is_set() and pod.container("router").restarts == 0
