"""The chart below a parent chart, and with all names of releases that Helm accepts.

Sources: helm/helm #10392; cert-manager/cert-manager #7334; yoda-digital/mcp-gitlab-server #97;
argoproj/argo-helm #3685; streamnative/charts #48; milvus-io/milvus #15570; microbean/microbean-helm
#211; helm/charts #6699; grafana/k6-operator #660.
"""

import re
import sys

import helm_python as helm
import pytest
import yaml
from programs import ROOT

sys.path.append(str(ROOT / "tests/ops"))
from pod_security import pod_specs

ALL = {
    "image": {"repository": "registry.example/kv/cairn"},
    "tls": {"existingSecret": "cairn-tls"},
    "cache": {"replicas": 3},
    "worker": {"enabled": True, "replicas": 2, "model": {"existingClaim": "models"}},
    "router": {"enabled": True, "replicas": 2},
    "dashboards": {"enabled": True},
    "alerts": {"enabled": True},
}
# A Service's name is a label that begins with a letter.
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
OTHERS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RELEASES = [
    "test",
    "a" * 53,
    "kv.prod",
    "1st",
    "2024-11",
    "123",
    "1e3",
    "null",
    "abcdefghij-abcdefghij-abcdefghij-abcdef-hijk",
    "a" * 39 + "-" + "b" * 13,
    "a" * 39 + ".b",
]


@pytest.fixture(scope="module")
def chart():
    return helm.Chart.load(str(ROOT / "helm/cairn"))


def render(chart, values, name):
    rendered = chart.render(values, name=name, namespace="kv")
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    return [doc for text in texts for doc in yaml.safe_load_all(text) if doc]


@pytest.mark.parametrize("more", [{"global": {"x": {}}}, {"enabled": True}, {"enabled": False}])
def test_values_that_a_parent_adds(chart, more):
    assert render(chart, {**ALL, **more}, "test") == render(chart, ALL, "test")


def test_a_parent_names_the_registry_and_its_secrets(chart):
    registry = {
        "imageRegistry": "mirror.example/hub",
        "imagePullSecrets": ["of-all", {"name": "x"}],
    }
    own = {"imagePullSecrets": [{"name": "x"}], "global": registry}
    docs = render(chart, {**ALL, **own}, "test")
    pods = [pod for doc in docs for pod in pod_specs(doc)]
    assert len(pods) == 4  # A node's, a worker's, a router's, and that of `helm test`.
    for name, spec in pods:
        assert spec["imagePullSecrets"] == [{"name": "of-all"}, {"name": "x"}], name
        for container in spec["containers"]:
            assert container["image"] == "mirror.example/hub/kv/cairn:0.1.0", name


@pytest.mark.parametrize("release", RELEASES)
def test_names_of_releases(chart, release):
    docs = render(chart, ALL, release)
    assert docs
    for doc in docs:
        name = doc["metadata"]["name"]
        rule = SERVICE if doc["kind"] == "Service" else OTHERS
        assert isinstance(name, str) and rule.fullmatch(name), (doc["kind"], name)
        # A StatefulSet's pods have its name as a label, with the hash of a revision behind it.
        assert len(name) <= (52 if doc["kind"] == "StatefulSet" else 63)
        for value in doc["metadata"]["labels"].values():
            assert isinstance(value, str) and len(value) <= 63


def test_names_that_were_right_stay(chart):
    """Other ones would replace the objects of releases that are installed."""
    for release in ("test", "kv", "a" * 40):
        names = {doc["metadata"]["name"] for doc in render(chart, ALL, release)}
        assert f"{release}-cache" in names


@pytest.mark.parametrize(
    "one, other",
    [("a" * 45 + "-blue", "a" * 45 + "-green"), ("kv.prod", "kv-prod"), ("1st", "cairn-1st")],
)
def test_two_releases_share_no_objects(chart, one, other):
    objects = [
        {(doc["kind"], doc["metadata"]["name"]) for doc in render(chart, ALL, name)}
        for name in (one, other)
    ]
    assert not objects[0] & objects[1]
