"""Which objects the chart makes of values: groups of workers, certificates of pods, autoscalers,
objects of the Gateway API, and containers that the values add."""

import importlib.util
import re

import helm_python as helm
import pytest
import yaml

from conftest import ROOT
from rendered_chart import (
    TLS,
    VALUES,
    WORKER,
    container_of,
    documents,
    find,
    merged,
    pod_of,
    render,
)

_spec = importlib.util.spec_from_file_location("readme", ROOT / "tools/chart_readme.py")
chart_readme = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(chart_readme)


def names(docs, kind):
    return {d["metadata"]["name"] for d in docs if d["kind"] == kind}


def config_of(docs, name, role):
    return yaml.safe_load(find(docs, "ConfigMap", name)["data"][f"{role}.yaml"])


def test_the_readme_has_the_values():
    assert chart_readme.main(["--check"]) == 0


def test_groups_of_workers_have_values_of_their_own(chart):
    docs = render(chart, VALUES["groups"])
    assert names(docs, "StatefulSet") == {"test-cache", "test-prefill", "test-decode"}
    roles = {g: config_of(docs, f"test-{g}", "worker")["role"] for g in ("prefill", "decode")}
    assert roles == {"prefill": "prefill", "decode": "decode"}
    assert config_of(docs, "test-prefill", "worker")["threads"] == 8
    assert config_of(docs, "test-decode", "worker")["threads"] == 4
    # Each has its own budget and autoscaler.
    assert names(docs, "PodDisruptionBudget") == {"test-prefill", "test-decode"}
    assert names(docs, "HorizontalPodAutoscaler") == {"test-decode"}
    # Their pods are nobody else's, and the router finds all of them by one name.
    (workers,) = config_of(docs, "test-router", "router")["workers"]
    assert workers == "dns:_grpc._tcp.test-worker-pods.kv.svc"
    service = find(docs, "Service", "test-worker-pods")["spec"]["selector"]
    selectors = []
    for group in ("prefill", "decode"):
        spec = find(docs, "StatefulSet", f"test-{group}")["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["serviceName"] == "test-worker-pods" and service.items() <= labels.items()
        selectors.append((spec["selector"]["matchLabels"], labels))
    (one, labels_of_one), (other, labels_of_other) = selectors
    assert not one.items() <= labels_of_other.items()
    assert not other.items() <= labels_of_one.items()


def test_a_group_may_switch_something_off(chart):
    """Where the values of all workers have it on."""
    worker = {
        "spread": "required",
        "device": {"enabled": True, "kvMiB": 4096},
        "config": {"cache": {"overlap": True}, "queue": {"tenant_capacity": 5}},
        "groups": {
            "a": {
                "spread": "none",
                "announceSeconds": 0,
                "device": {"enabled": False},
                "config": {"cache": {"overlap": False}, "queue": {"tenant_capacity": 0}},
            },
            "b": {},
        },
    }
    docs = render(chart, merged(VALUES["groups"], {"worker": {**worker, "replicas": 2}}))
    a, b = (config_of(docs, f"test-{g}", "worker") for g in "ab")
    assert b["device"] == "cuda:0" and "device" not in a
    assert (a["cache"]["overlap"], b["cache"]["overlap"]) == (False, True)
    assert (a["queue"]["tenant_capacity"], b["queue"]["tenant_capacity"]) == (0, 5)
    pod = pod_of(docs, "StatefulSet", "test-a")
    assert "topologySpreadConstraints" not in pod
    assert "lifecycle" not in container_of(pod, "worker")
    assert find(docs, "StatefulSet", "test-a")["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    "values, named",
    [
        ({"worker": {"groups": {"worker": {}}}}, "worker"),
        ({"worker": {"groups": {"a-b": {}}}}, "a-b"),
        ({"worker": {"groups": {"prefill": {"model": {}}}}}, "/worker/groups/prefill"),
        ({"worker": {"groups": {"prefill": {"replicas": "2"}}}}, "replicas"),
        ({"worker": {"groups": {"prefill": {"config": {"rule": "x"}}}}}, "rule"),
        ({"worker": {"groups": {"prefill": {"config": {"listen": "x"}}}}}, "got listen"),
        ({"worker": {"besideNode": True}}, "worker.groups: expected none"),
        ({"router": {"enabled": False}}, "worker.groups: expected router.enabled=true"),
        (
            {"worker": {"groups": {"prefill": {"device": {"enabled": True, "gpus": 0}}}}},
            "worker.device.claimTemplate",
        ),
        (
            {"worker": {"groups": {"decode": {"autoscaling": {"minReplicas": 11}}}}},
            "worker.autoscaling.maxReplicas: got 10",
        ),
    ],
)
def test_wrong_groups_are_refused(chart, values, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render(merged(VALUES["groups"], values))
    assert named in str(error.value)


def test_each_pod_may_have_a_certificate(chart):
    docs = render(chart, VALUES["certificates-of-pods"])
    assert names(docs, "Certificate") == {"test-engine"}
    service = {}
    for kind, role in [
        ("StatefulSet", "cache"),
        ("StatefulSet", "worker"),
        ("Deployment", "router"),
    ]:
        (volume,) = [v for v in pod_of(docs, kind, f"test-{role}")["volumes"] if "csi" in v]
        assert volume["csi"]["driver"] == "csi.cert-manager.io" and volume["csi"]["readOnly"]
        attributes = volume["csi"]["volumeAttributes"]
        assert all(isinstance(value, str) for value in attributes.values())
        service[role] = attributes["csi.cert-manager.io/dns-names"].split(",")
        assert attributes["csi.cert-manager.io/issuer-kind"] == "ClusterIssuer"
        assert attributes["csi.cert-manager.io/fs-group"] == "10001"
        identity = attributes["csi.cert-manager.io/uri-sans"]
        assert identity == "spiffe://kv/cairn/${POD_NAME}"
        assert f"test-{role}.kv.svc" in service[role]
    assert "${POD_NAME}.test-cache-peers.kv.svc" in service["cache"]
    cluster = config_of(docs, "test-cache", "cache")["cluster"]
    assert cluster["peer_identities"] == ["spiffe://kv/cairn/{node_id}"]
    assert cluster["tls_server_name"] in service["cache"]
    # With certificates of roles, that would let nobody in.
    shared = merged(VALUES["certificates-of-pods"], {"tls": {"certManager": {"perPod": False}}})
    assert (
        "peer_identities" not in config_of(render(chart, shared), "test-cache", "cache")["cluster"]
    )


def test_keda_asks_prometheus(chart):
    docs = render(chart, VALUES["keda"])
    assert not names(docs, "HorizontalPodAutoscaler")
    worker, router = (find(docs, "ScaledObject", f"test-{r}")["spec"] for r in ("worker", "router"))
    assert worker["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "test-worker",
    }
    (trigger,) = worker["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus:9090",
        "query": 'sum(cairn_worker_prefill_backlog_seconds{namespace="kv",pod=~"test-worker-.*"})',
        "threshold": "10",
    }
    assert router["triggers"][0]["metadata"]["query"] == 'sum(x{a="b"})'
    # One after the other: each drains.
    for spec in (worker, router):
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["policies"] == [
            {"type": "Pods", "value": 1, "periodSeconds": 60}
        ]
    assert "replicas" not in find(docs, "StatefulSet", "test-worker")["spec"]
    metrics = {"worker": {"autoscaling": {"metrics": [{"type": "Pods"}]}}}
    with pytest.raises(helm.HelmError, match="worker.autoscaling.metrics: expected none"):
        chart.render(merged(VALUES["keda"], metrics))


def test_a_gateway_leads_to_the_router_or_to_its_pool(chart):
    docs = render(chart, VALUES["route"])
    route = find(docs, "HTTPRoute", "test-router")["spec"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"name": "test-router", "port": 8000}]
    service = find(docs, "Service", "test-router")
    assert service["spec"]["type"] == "LoadBalancer"
    assert 8000 in [port["port"] for port in service["spec"]["ports"]]
    assert service["metadata"]["annotations"] == {"example.org/zone": "a: b"}
    docs = render(chart, VALUES["pool"])
    (rule,) = find(docs, "HTTPRoute", "test-router")["spec"]["rules"]
    pool = find(docs, "InferencePool", "test-router")
    assert rule["backendRefs"] == [
        {
            "group": pool["apiVersion"].split("/")[0],
            "kind": "InferencePool",
            "name": "test-router",
        }
    ]
    picker = pool["spec"]["endpointPickerRef"]
    ports = {p["port"] for p in find(docs, "Service", picker["name"])["spec"]["ports"]}
    assert picker["port"]["number"] in ports
    assert pool["spec"]["selector"]["matchLabels"] == {"app": "vllm"}


@pytest.mark.parametrize(
    "values, named",
    [
        ({"router": {"picker": {"enabled": False}}}, "router.picker.pool.enabled: got true"),
        ({"router": {"picker": {"pool": {"port": 0}}}}, "/router/picker/pool/port"),
        ({"router": {"http": {"route": {"parentRefs": []}}}}, "router.http.route.parentRefs"),
        ({"router": {"http": {"route": {"hostnames": ["a b"]}}}}, "/hostnames/0"),
    ],
)
def test_wrong_objects_of_a_gateway_are_refused(chart, values, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render(merged(VALUES["pool"], values))
    assert named in str(error.value)


def test_containers_of_the_values_are_as_restricted_as_the_charts(chart):
    docs = render(chart, VALUES["containers"])
    node = pod_of(docs, "StatefulSet", "test-cache")
    assert [c["name"] for c in node["containers"]] == ["cache", "side"]
    worker = pod_of(docs, "StatefulSet", "test-worker")
    (fetch,) = worker["initContainers"]
    # What they say themselves stays.
    assert fetch["securityContext"]["readOnlyRootFilesystem"] is False
    assert fetch["securityContext"]["allowPrivilegeEscalation"] is False
    beside = merged({**TLS, **WORKER}, {"worker": {"besideNode": True}})
    extra = {"cache": {"extraInitContainers": [{"name": "first", "image": "x"}]}}
    node = pod_of(render(chart, merged(beside, extra)), "StatefulSet", "test-cache")
    assert [c["name"] for c in node["initContainers"]] == ["first", "cache"]


@pytest.mark.parametrize("name", VALUES)
def test_the_notes_name_what_there_is(chart, name):
    rendered = chart.render(VALUES[name], name="test", namespace="kv")
    notes, docs = rendered["cairn/templates/NOTES.txt"], documents(rendered)
    made = {f"{d['kind'].lower()}/{d['metadata']['name']}" for d in docs}
    certificates = {d["spec"]["secretName"] for d in docs if d["kind"] == "Certificate"}
    _, commands = notes.split("Next:\n")
    lines = commands.strip().splitlines()
    assert lines[0].endswith("get pods -l app.kubernetes.io/instance=test")
    assert all(line.startswith("  kubectl -n kv ") for line in lines[1:])
    assert set(re.findall(r"\b(?:statefulset|service)/\S+", commands)) <= made
    for pod, container in re.findall(r"exec (\S+)-0 -c (\S+)", commands):
        assert container_of(pod_of(docs, "StatefulSet", pod), container)
    # Addresses are Services, and what engines get is there.
    services = set(re.findall(r"([a-z-]+)[.]kv[.]svc", notes))
    assert {f"service/{service}" for service in services} <= made
    assert {f"configmap/{m}" for m in re.findall(r"ConfigMap ([a-z-]+)", notes)} <= made
    assert set(re.findall(r", Secret ([a-z-]+)", notes)) <= certificates
