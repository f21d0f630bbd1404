"""Real Helm installs, upgrades and removes the chart through an API server that is small."""

import helm_python as helm
import pytest

from conftest import ROOT
from rendered_chart import IMAGE, TLS, merged
from small_cluster.api_server import serve
from small_cluster.objects import Objects

CHART = str(ROOT / "helm/cairn")
PAGE = "docs/operate/kubernetes.md"


class Cluster:
    def __init__(self):
        self.objects = Objects()
        self._config = helm.Config(
            kube_apiserver=serve(self.objects), namespace="kv", storage_driver="memory"
        )

    def install(self, values):
        self._config.install(CHART, "demo", merged({**TLS, **IMAGE}, values), namespace="kv")

    def upgrade(self, values):
        self._config.upgrade(CHART, "demo", merged({**TLS, **IMAGE}, values), namespace="kv")

    def rollback(self, version):
        self._config.rollback("demo", version=version)

    def uninstall(self):
        self._config.uninstall("demo")

    def node(self):
        return self.objects.find("StatefulSet", "demo-cache")

    def storage(self):
        (claim,) = self.node()["spec"]["volumeClaimTemplates"]
        return claim["spec"]["resources"]["requests"]["storage"]


@pytest.fixture
def cluster():
    return Cluster()


def disk(mebibytes):
    return {"cache": {"disk": {"capacityMiB": mebibytes}}}


def test_a_release_lives_from_install_to_uninstall(cluster):
    cluster.install({})
    cluster.upgrade({"cache": {"replicas": 3, "logLevel": "debug"}})
    assert cluster.node()["spec"]["replicas"] == 3
    assert cluster.objects.find("PodDisruptionBudget", "demo-cache")
    cluster.rollback(1)
    assert cluster.node()["spec"]["replicas"] == 1
    cluster.uninstall()
    assert cluster.objects.keys() == set()


def test_an_upgrade_that_kubernetes_would_refuse_changes_nothing(cluster):
    cluster.install(disk(1024))
    before = {key: cluster.objects.find(*key) for key in cluster.objects.keys()}
    for values, named in [
        (
            merged(disk(65536), {"cache": {"logLevel": "debug"}}),
            "cache.disk.capacityMiB: got 65536",
        ),
        ({"cache": {"disk": {"enabled": False}}}, "cache.disk.enabled: got false"),
        (
            merged(disk(1024), {"cache": {"disk": {"storageClassName": "fast"}}}),
            'cache.disk.storageClassName: got "fast"',
        ),
    ]:
        with pytest.raises(helm.HelmError) as error:
            cluster.upgrade(values)
        assert named in str(error.value) and PAGE in str(error.value)
        assert {key: cluster.objects.find(*key) for key in cluster.objects.keys()} == before
    # The release is as it was: the next upgrade works.
    cluster.upgrade(merged(disk(1024), {"cache": {"logLevel": "debug"}}))


def test_volumes_of_releases_before_keep_their_size(cluster):
    """They were a quarter larger than the capacity, which may be too little when the disk is full,
    but a StatefulSet's cannot change."""
    cluster.install(disk(1024))
    node = merged(cluster.node(), {})
    node["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = "1280Mi"
    cluster.objects.remove("StatefulSet", "demo-cache")
    cluster.objects.put(node)
    cluster.upgrade(merged(disk(1024), {"cache": {"logLevel": "debug"}}))
    assert cluster.storage() == "1280Mi"


def test_a_disk_grows_by_the_steps_of_the_page(cluster):
    cluster.install(disk(1024))
    small = cluster.storage()
    # kubectl delete statefulset demo-cache --cascade=orphan, after the claims were patched.
    cluster.objects.remove("StatefulSet", "demo-cache")
    cluster.upgrade(disk(4096))
    assert int(cluster.storage().removesuffix("Mi")) > 3 * int(small.removesuffix("Mi"))
