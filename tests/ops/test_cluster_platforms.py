"""Engines of llm-d, production-stack and KServe with the client and the nodes of a release. None of
these ran: their keys are known, and the pods that they make run in the small cluster."""

import json
import subprocess

import kubernetes_validate
import pytest

from cairn_cluster import Authority, Release
from engine_platforms import PLATFORMS, load, pod, wrong
from engine_pods import CLIENT, make_images, programs_for, wait_loaded
from pod_security import violations
from small_cluster.cluster import SmallCluster

NAMES = sorted(PLATFORMS)
TLS = {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}}
# The end of what KServe's preset runs (config/llmisvcconfig/config-llm-template.yaml).
PRESET = "eval \"exec printf '%s\\n' --port 8000 ${VLLM_ADDITIONAL_ARGS} $@\""


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_are_those_that_the_platform_takes(name):
    accepted, _ = PLATFORMS[name]
    value = load(name)
    assert wrong(value, accepted) == []
    # A word that is spelt otherwise is found wherever it is.
    first = next(iter(value))
    assert wrong({**value, "nonsense": 1}, accepted) == [".nonsense"]
    assert wrong({**value, first: 1.5}, accepted) == [f".{first}: 1.5"]


@pytest.mark.parametrize("name", NAMES)
def test_their_pods_are_valid_and_restricted(name):
    spec = pod(name)
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    for version in ["1.30", "1.33", "1.36"]:
        kubernetes_validate.validate(made, version, strict=True)
    assert violations(spec) == []


@pytest.mark.parametrize("name", NAMES)
def test_their_pods_stage_the_client_and_read_the_connection(name):
    spec = pod(name)
    (client,) = spec["initContainers"]
    (engine,) = spec["containers"]
    assert (client["image"], client["command"]) == (CLIENT, ["stage-client", "/cairn-client"])
    assert client["volumeMounts"] == [{"name": "client", "mountPath": "/cairn-client"}]
    transfer = {"configMapKeyRef": {"name": "cairn-connection", "key": "vllm.json"}}
    assert {"name": "CAIRN_VLLM", "valueFrom": transfer} in engine["env"]
    assert {"name": "PYTHONPATH", "value": "/cairn-client/python"} in engine["env"]
    assert {m["mountPath"] for m in engine["volumeMounts"]} == {"/cairn-client", "/etc/cairn-tls"}
    assert {v["name"] for v in spec["volumes"]} == {m["name"] for m in engine["volumeMounts"]}


def test_the_json_passes_the_shell_of_kserves_preset():
    (engine,) = pod("kserve-llm.yaml")["containers"]
    (words,) = [e["value"] for e in engine["env"] if e["name"] == "VLLM_ADDITIONAL_ARGS"]
    transfer = json.dumps({"a": {"b": 'c d "e" $(f) `g` * \\'}, "h": [1, True]})
    # Kubernetes puts values in place of such names.
    environment = {"PATH": "/usr/bin:/bin"}
    environment["VLLM_ADDITIONAL_ARGS"] = words.replace("$(CAIRN_VLLM)", transfer)
    done = subprocess.run(
        ["bash", "-c", PRESET, "--"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["--port", "8000", "--kv-transfer-config", transfer]


def deployment(name):
    spec = pod(name)
    (engine,) = spec["containers"]
    if name == "kserve-llm.yaml":
        # As the preset does it; this image has no shell.
        engine["command"] = ["vllm", "serve", "MODEL", "--kv-transfer-config=$(CAIRN_VLLM)"]
    text = json.dumps(spec).replace("cairn-connection", "test-connection")
    labels = {"app": name.removesuffix(".yaml")}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": labels["app"]},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": json.loads(text.replace("cairn-engine-tls", "test-engine-tls")),
            },
        },
    }


def test_their_pods_use_the_nodes_of_a_release(networks, chart, programs, tmp_path):
    """Each stores and loads, with the certificate that the chart makes for engines."""
    tmp_path.chmod(0o755)
    (tmp_path / "images").mkdir()
    images = make_images(tmp_path / "images")
    made = programs_for(tmp_path / "programs", programs, images)
    with SmallCluster(tmp_path / "cluster", made, images=images.images) as cluster:
        release = Release(chart, cluster)
        release.authority = Authority(tmp_path / "tls")
        engines = [deployment(name) for name in NAMES]
        values = {**TLS, "cache": {"disk": {"enabled": False}}}
        values["connection"] = {"settings": {"lookup_timeout": 2}}
        release.apply(values, change=lambda docs: [*docs, *engines])
        cluster.wait_settled()
        pods = [p for p in cluster.pods() if p.owner[0] == "Deployment"]
        assert len(pods) == len(NAMES)
        for pod_of_a_platform in pods:
            wait_loaded(cluster, pod_of_a_platform, 1)
