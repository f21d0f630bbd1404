"""Who reaches whom when the chart's NetworkPolicies are in force, tried from each pod's network."""

import socket

from cairn_cluster import PLAINTEXT
from rendered_chart import merged
from test_cluster_router import ENGINES

RELEASE = {"cache", "worker", "router"}
ALL = RELEASE | {"engine", "gateway", "stranger"}
# Port: who may connect.
TABLE = {
    ("cache", 7400): RELEASE | {"engine"},
    ("cache", 7401): ALL,
    ("worker", 7500): RELEASE,
    ("worker", 7501): ALL,
    ("router", 8000): RELEASE | {"gateway"},
    ("router", 7600): RELEASE | {"gateway"},
    ("router", 7601): ALL,
}


def pod(name):
    """A Deployment of one pod that does nothing, with the label app=NAME."""
    changed = merged(ENGINES[0], {"metadata": {"name": name}})
    spec = changed["spec"]
    labels = {"metadata": {"labels": {"app": name}}}
    (container,) = spec["template"]["spec"]["containers"]
    template = merged(merged(spec["template"], labels), {"spec": {}})
    template["spec"]["containers"] = [{**container, "command": ["sleep", "1000"]}]
    selector = {"matchLabels": {"app": name}}
    return {**changed, "spec": {**spec, "template": template, "selector": selector}}


def client(name):
    return [{"podSelector": {"matchLabels": {"app": name}}}]


VALUES = {
    **PLAINTEXT,
    "networkPolicies": {"enabled": True, "cacheClients": client("engine")},
    "worker": {"enabled": True},
    "router": {"enabled": True, "callers": client("gateway")},
    "extraObjects": [pod("engine"), pod("gateway"), pod("stranger")],
}


def role(found):
    return found.labels.get("app.kubernetes.io/component") or found.labels["app"]


def connects(caller, address, port):
    def attempt():
        try:
            socket.create_connection((address, port), timeout=5).close()
        except ConnectionRefusedError:
            return False
        return True

    return caller.in_network(attempt)


def test_the_network_lets_in_whom_the_policies_name(release):
    release.upgrade(VALUES)
    pods = {role(p): p for p in release.cluster.pods() if p.owner}
    assert set(pods) == ALL
    for (target, port), expected in TABLE.items():
        service = release.cluster.service_address(f"test-{target}")
        for address in (pods[target].address, service):
            # A pod always reaches itself.
            found = {n for n, p in pods.items() if n != target and connects(p, address, port)}
            assert found == expected - {target}, f"{target}:{port} at {address}"


def test_without_callers_nobody_outside_reaches_a_router(release):
    release.upgrade(merged(VALUES, {"router": {"callers": []}}))
    pods = {role(p): p for p in release.cluster.pods() if p.owner}
    for port in (8000, 7600):
        found = {n for n in ALL - {"router"} if connects(pods[n], pods["router"].address, port)}
        assert found == RELEASE - {"router"}


def test_without_policies_everybody_gets_in(release):
    """That the test above can fail."""
    release.upgrade(merged(VALUES, {"networkPolicies": {"enabled": False}}))
    pods = {role(p): p for p in release.cluster.pods() if p.owner}
    assert connects(pods["stranger"], pods["cache"].address, 7400)
    assert not connects(pods["stranger"], pods["router"].address, 8000)
