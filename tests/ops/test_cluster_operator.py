"""An operator's commands, as docs/operate/kubernetes.md has them, on pods that run."""

import pytest

from cairn_cluster import SMALL, Authority, make_programs
from operator_page import Operator, block
from pod_security import CONTAINER_CONTEXT, POD_CONTEXT
from small_cluster.cluster import SmallCluster

RELEASE = "cairn"
LABELS = {"app": "agent"}
CONTAINER = {
    "name": "agent",
    "image": "none",
    "command": ["sleep", "1000"],
    "securityContext": CONTAINER_CONTEXT,
}
# As most machines have one, of somebody else.
AGENT = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "agent"},
    "spec": {
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "securityContext": POD_CONTEXT,
                "terminationGracePeriodSeconds": 1,
                "containers": [CONTAINER],
            },
        },
    },
}
NAMES = [f"{RELEASE}-{role}.kv.svc" for role in ("cache", "worker", "router")]


@pytest.fixture
def operator(networks, programs, tmp_path):
    tmp_path.chmod(0o755)
    made = make_programs(tmp_path / "programs", programs)
    with SmallCluster(tmp_path / "cluster", made) as cluster:
        folder = tmp_path / "operator"
        yield Operator(cluster, folder, SMALL)


def install(operator, folder):
    """With a Secret, as the page says."""
    Authority(folder).make(NAMES)
    operator.run(block("Install", "create secret"))
    operator.cluster.wait_settled()


def nodes(operator):
    owner = ("StatefulSet", "cairn-cache")
    return sorted((p for p in operator.cluster.pods() if p.owner == owner), key=lambda p: p.name)


def claim(operator, number):
    return operator.cluster.objects.find("PersistentVolumeClaim", f"data-cairn-cache-{number}")


def storage(obj):
    return obj["spec"]["resources"]["requests"]["storage"]


def test_install_scale_and_grow(operator, tmp_path):
    install(operator, tmp_path / "operator")
    operator.run(block("Install", "helm test"))
    assert "cairn-cache-0" in operator.run(block("Install", "kubectl -n kv exec"))
    operator.run(block("Watching", "podMonitor.enabled"))
    assert operator.cluster.objects.find("PodMonitor", "cairn")
    operator.run(["helm upgrade cairn helm/cairn --reuse-values --set cache.replicas=3"])
    # As the notes of the installation say.
    operator.run(["kubectl -n kv rollout status statefulset/cairn-cache --timeout=120s"])
    operator.cluster.wait_settled()
    running = {p.name: p for p in nodes(operator)}
    assert len(running) == 3
    # The page's numbers are for a disk of 64 GiB.
    grow = block("Growing a disk", "patch pvc")
    stopped = grow.index(next(line for line in grow if line.startswith("helm ")))
    operator.run(grow[:stopped])
    assert operator.cluster.objects.find("StatefulSet", "cairn-cache") is None
    assert {p.name: p for p in nodes(operator)} == {}  # Nobody owns them,
    assert not any(p.deleted.is_set() for p in running.values())  # and they go on.
    operator.run(grow[stopped:], **{"capacityMiB=65536": "capacityMiB=128"})
    operator.cluster.wait_settled()
    assert [storage(claim(operator, n)) for n in range(3)] == ["91Gi"] * 3
    # The same pods until the update replaced them, one after the other.
    assert all(p.ended.is_set() for p in running.values())
    assert operator.cluster.notes == []


def test_a_machine_is_drained_and_a_volume_replaced(operator, tmp_path):
    folder = tmp_path / "operator"
    install(operator, folder)
    operator.cluster.add(AGENT)
    operator.run(["helm upgrade cairn helm/cairn --reuse-values --set cache.replicas=3"])
    operator.cluster.wait_settled()
    machines = {p.name: p.machine for p in nodes(operator)}
    assert len(set(machines.values())) == 3
    # While one node is away, no other one may go.
    operator.cluster.pod("cairn-cache-2").delete()
    drain = block("Replacing a machine, taking a node out", "kubectl drain")
    with pytest.raises(AssertionError, match="disruption budget"):
        operator.run([f"{drain[0]} --timeout=2s"], MACHINE=machines["cairn-cache-0"])
    operator.run([f"kubectl uncordon {machines['cairn-cache-0']}"])
    operator.cluster.wait_settled()
    gone = operator.cluster.pod("cairn-cache-1").machine
    operator.run(drain, MACHINE=gone)
    operator.cluster.wait_settled()
    assert gone not in {p.machine for p in nodes(operator)}
    assert gone in {p.machine for p in operator.cluster.pods() if p.labels == LABELS}
    operator.run([f"kubectl uncordon {gone}"])
    before = claim(operator, 1)["metadata"]["uid"]
    operator.run(block("Replacing a machine, taking a node out", "delete pvc"))
    operator.cluster.wait_settled()
    assert claim(operator, 1)["metadata"]["uid"] != before
    operator.run(block("Upgrading, and back", "helm rollback"))
    operator.cluster.wait_settled()
    assert [p.name for p in nodes(operator)] == ["cairn-cache-0"]
    assert operator.cluster.notes == []
