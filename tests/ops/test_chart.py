"""The chart, rendered and linted by Helm's own code, checked against Kubernetes' schemas and the
restricted pod profile."""

import copy
import re
import subprocess

import helm_python as helm
import jsonschema
import pytest
import yaml
from custom_resources import SPECS, validate
from pod_security import pod_specs, violations
from rendered_chart import (
    GATEWAY,
    IMAGE,
    ROUTER,
    TLS,
    VALUES,
    WORKER,
    container_of,
    containers_of,
    find,
    has,
    has_nodes,
    merged,
    pod_of,
    render,
    worker_groups,
    worker_pods,
)

KUBERNETES = ["1.30", "1.33", "1.36"]


@pytest.mark.parametrize("name", VALUES)
def test_lint_is_clean(root, name):
    result = helm.lint(str(root / "helm/cairn"), merged(IMAGE, VALUES[name]), strict=True)
    assert result["errors"] == []
    # Severity 1 is information ("icon is recommended").
    assert [m for m in result["messages"] if m["severity"] > 1] == []


# Before 1.31 a pod named its claims in another form.
@pytest.mark.parametrize(
    "name, version",
    [(n, v) for n in VALUES for v in KUBERNETES if not (n.endswith("claim") and v == "1.30")],
)
def test_manifests_are_valid_kubernetes(chart, name, version):
    docs = render(chart, VALUES[name])
    assert docs
    for doc in docs:
        validate(doc, version)


def test_custom_resources_are_looked_at_too(chart):
    """The check of them must be able to fail."""
    seen = set()
    for values in VALUES.values():
        for doc in render(chart, values):
            if (doc["apiVersion"], doc["kind"]) in SPECS:
                seen.add(doc["kind"])
                wrong = {**doc, "spec": {**doc["spec"], "misspelt": 1}}
                with pytest.raises(jsonschema.ValidationError):
                    validate(wrong, "1.33")
    assert seen == {kind for _, kind in SPECS}


@pytest.mark.parametrize("name", VALUES)
def test_pods_meet_the_restricted_profile(chart, name):
    pods = [pod for doc in render(chart, VALUES[name]) for pod in pod_specs(doc)]
    # Routers alone have no pod for `helm test`.
    tested = has_nodes(VALUES[name]) or has(VALUES[name], "worker")
    expected = has_nodes(VALUES[name]) + worker_pods(VALUES[name]) + has(VALUES[name], "router")
    assert len(pods) == expected + tested
    for pod_name, spec in pods:
        assert violations(spec) == [], pod_name
        assert spec["automountServiceAccountToken"] is False
        for container in containers_of(spec):
            wanted = container["name"] != "fetch"  # That of a value set which says so.
            assert container["securityContext"]["readOnlyRootFilesystem"] is wanted


def test_the_profile_check_finds_planted_violations(chart):
    """The checker itself must be able to fail."""
    good = find(render(chart, TLS), "StatefulSet", "test-cache")["spec"]["template"]["spec"]
    plants = [
        lambda s: s.update(hostNetwork=True),
        lambda s: s["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        lambda s: s["containers"][0]["securityContext"].update(privileged=True),
        lambda s: s["containers"][0]["securityContext"].update(capabilities={"drop": []}),
        lambda s: s["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
        lambda s: s["securityContext"].pop("seccompProfile"),
        lambda s: s["securityContext"].update(runAsUser=0),
        lambda s: s["containers"][0]["ports"][0].update(hostPort=80),
    ]
    for plant in plants:
        spec = copy.deepcopy(good)
        plant(spec)
        assert violations(spec) != []


@pytest.mark.parametrize(
    "values, named",
    [
        ({}, "tls.existingSecret"),
        ({"tls": {"existingSecret": "s", "acceptPlaintextOnTheNetwork": True}}, "contradict"),
        ({**TLS, "cache": {"replicas": 0}}, "/cache/replicas"),
        ({**TLS, "cache": {"cluster": {"name": "two words"}}}, "/cache/cluster/name"),
        (
            {
                **VALUES["plaintext"],
                "cache": {"replicas": 3, "cluster": {"peerIdentities": ["spiffe://a/b"]}},
            },
            'cache.cluster.peerIdentities: got ["spiffe://a/b"], expected none',
        ),
        ({**TLS, "cahce": {}}, "cahce"),
        # The programs' own bounds.
        ({**TLS, "cache": {"host": {"capacityMiB": 16777217}}}, "/cache/host/capacityMiB"),
        ({**TLS, "cache": {"device": {"capacityMiB": 1048577}}}, "/cache/device/capacityMiB"),
        ({**TLS, "worker": {"device": {"kvMiB": 1048577}}}, "/worker/device/kvMiB"),
        ({**TLS, "cache": {"host": {"capacityMiB": "1Gi"}}}, "capacityMiB"),
        ({**TLS, "cache": {"disk": {"flushAfter": "soon"}}}, "flushAfter"),
        ({**TLS, "worker": {"enabled": True}}, "existingClaim"),
        ({**TLS, "worker": {"cacheAddress": "cache"}}, "cacheAddress"),
        ({**TLS, "image": {"digest": "sha256:1"}}, "digest"),
        (
            {**TLS, "image": {"repository": ""}},
            'image.repository: got "", expected where you pushed the image, such as '
            "registry.example/cairn",
        ),
        (
            {**TLS, "image": {"repository": "", "digest": "sha256:" + "0" * 64}},
            'image.repository: got ""',
        ),
        (
            {**TLS, "image": {"repository": ""}, "global": {"imageRegistry": "registry.example"}},
            'image.repository: got ""',
        ),
        ({**TLS, "image": {"repository": "https://registry.example/cairn"}}, "/image/repository"),
        ({**TLS, **ROUTER}, "worker.enabled"),
        ({**TLS, "router": {"enabled": True, "workers": ["w:1"]}}, "router.model.existingClaim"),
        ({**TLS, "router": {"workers": ["w"]}}, "/router/workers/0"),
        ({**TLS, "router": {"workers": ["http://a/v1"]}}, "/router/workers/0"),
        (
            {**TLS, **WORKER, "router": {"enabled": True, "picker": {"enabled": True}}},
            "router.picker.enabled",
        ),
        ({**TLS, "router": {"policy": "best"}}, "/router/policy"),
        (
            {
                **TLS,
                **ROUTER,
                "worker": {**WORKER["worker"], "cacheAddress": "dns:nodes:7400"},
            },
            "router.cacheAddress",
        ),
        (
            {**TLS, **WORKER, "router": {"enabled": True, "http": {"tenantHeader": "x-tenant"}}},
            "router.callers",
        ),
        (
            {
                **TLS,
                **WORKER,
                "router": {
                    "enabled": True,
                    "callers": GATEWAY,
                    "http": {"tenantHeader": "x-tenant", "apiKeysSecret": "keys"},
                },
            },
            "contradict",
        ),
    ],
)
def test_bad_values_are_refused_and_named(chart, values, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render(values)
    assert named in str(error.value)


@pytest.mark.parametrize(
    "address, expected",
    [
        ("", "test-cache.kv.svc:7400"),
        ("a:7400,b:7400", "a:7400,b:7400"),
        ("dns:nodes.kv.svc:7400", "dns:nodes.kv.svc:7400"),
    ],
)
def test_workers_use_the_nodes_that_the_values_name(chart, address, expected):
    worker = {**WORKER["worker"], "cacheAddress": address}
    docs = render(chart, {**TLS, "worker": worker})
    config = find(docs, "ConfigMap", "test-worker")["data"]["worker.yaml"]
    assert yaml.safe_load(config)["cache"]["address"] == expected
    (container,) = find(docs, "Deployment", "test-worker")["spec"]["template"]["spec"]["containers"]
    (host,) = container["env"]
    assert host["name"] == "CAIRN_CACHE_HOST"
    assert host["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_workers_store_and_read_kv_as_the_values_say(chart):
    def config(**worker):
        docs = render(
            chart, {**VALUES["worker"], "worker": {**VALUES["worker"]["worker"], **worker}}
        )
        return yaml.safe_load(find(docs, "ConfigMap", "test-worker")["data"]["worker.yaml"])

    plain = config()
    assert plain["cache"]["recipe"] == "raw" and "read_policy" not in plain
    rows = config(recipe="int8", readPolicy="precision:rows=0.02", kvBudgetMiB=256)
    assert rows["cache"]["recipe"] == "int8"
    assert (rows["read_policy"], rows["kv_budget"]) == ("precision:rows=0.02", "256MiB")


def test_workers_of_a_cluster_use_one_of_its_nodes(chart):
    cluster = {"replicas": 3, "cluster": {"zone": "z"}}
    docs = render(chart, {**TLS, **WORKER, "cache": cluster})
    config = yaml.safe_load(find(docs, "ConfigMap", "test-worker")["data"]["worker.yaml"])
    assert config["cache"] == {
        "recipe": "raw",
        "address": "dns:test-cache-peers.kv.svc:7400",
        "server_name": "test-cache.kv.svc",
        "zone": "z",
    }


def test_memory_limit_covers_arena_and_overhead(chart):
    docs = render(chart, {**TLS, "cache": {"host": {"capacityMiB": 2048}, "overheadMiB": 1500}})
    resources = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]["containers"][
        0
    ]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "3548Mi"


def test_large_numbers_are_whole_numbers(chart):
    """To Helm they are floating-point numbers, and a template writes those as 1.6777216e+07."""
    largest = {"host": {"capacityMiB": 16777216}, "disk": {"capacityMiB": 67108864}}
    values = merged(VALUES["router"], {"cache": {**largest, "overheadMiB": 1048576}})
    uid = {"podSecurity": {"uid": 1000680000}}
    router = {"router": {"maxRequests": 1048576, "tokenCacheMiB": 2097152, "indexMiB": 1048576}}
    docs = render(chart, merged(merged(values, uid), router))
    config = yaml.safe_load(find(docs, "ConfigMap", "test-cache")["data"]["cache.yaml"])
    assert config["host"]["capacity"] == "16777216MiB"
    assert config["disk"]["capacity"] == "67108864MiB"
    config = yaml.safe_load(find(docs, "ConfigMap", "test-router")["data"]["router.yaml"])
    assert (config["index"], config["token_cache"]) == ("1048576MiB", "2097152MiB")
    assert str(config["max_requests"]) == "1048576"
    spec = pod_of(docs, "StatefulSet", "test-cache")
    assert str(spec["securityContext"]["runAsUser"]) == "1000680000"
    assert spec["containers"][0]["resources"]["limits"]["memory"] == f"{16777216 + 1048576}Mi"
    per_pod = pod_of(
        render(chart, merged(VALUES["certificates-of-pods"], uid)), "StatefulSet", "test-cache"
    )
    (volume,) = [v for v in per_pod["volumes"] if "csi" in v]
    assert volume["csi"]["volumeAttributes"]["csi.cert-manager.io/fs-group"] == "1000680000"


def test_the_overhead_follows_the_settings(chart):
    def limit(cache):
        spec = pod_of(render(chart, {**TLS, "cache": cache}), "StatefulSet", "test-cache")
        return spec["containers"][0]["resources"]["limits"]["memory"]

    # docs/operate/operations.md: 1348 MiB of bounds beside the arena, and 256 MiB that are freed
    # and kept.
    assert limit({}) == "2628Mi"
    assert limit({"config": {"index": {"capacity": "1GiB"}}}) == "3396Mi"
    # Batches of events, if they are published.
    assert limit({"config": {"events": {"memory": "1GiB"}}}) == "2628Mi"
    published = {"zmq": "tcp://127.0.0.1:5557"}
    assert limit({"config": {"events": published}}) == "2692Mi"
    assert limit({"config": {"events": {**published, "memory": "128MiB"}}}) == "2756Mi"
    with pytest.raises(helm.HelmError, match="cache.overheadMiB: got 1300, expected at least 1380"):
        limit({"overheadMiB": 1300})


def test_values_never_change_what_a_statefulset_cannot_change(chart):
    """Kubernetes refuses an upgrade that changes these fields."""

    def frozen(values):
        spec = find(render(chart, values), "StatefulSet", "test-cache")["spec"]
        return spec["selector"], spec["serviceName"], spec["podManagementPolicy"]

    assert len({str(frozen(v)) for v in VALUES.values() if has_nodes(v)}) == 1


def test_a_config_change_rolls_the_pods(chart):
    def checksum(values):
        template = find(render(chart, values), "StatefulSet", "test-cache")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/config"]

    assert checksum(TLS) == checksum(copy.deepcopy(TLS))
    assert checksum(TLS) != checksum({**TLS, "cache": {"logLevel": "debug"}})


def check_service(docs, kind, workload, service):
    template = find(docs, kind, workload)["spec"]["template"]
    spec = find(docs, "Service", service)["spec"]
    assert spec["selector"].items() <= template["metadata"]["labels"].items()
    ports = {
        port["name"] for container in containers_of(template["spec"]) for port in container["ports"]
    }
    assert {port["targetPort"] for port in spec["ports"]} <= ports


def test_services_select_the_pods_and_name_their_ports(chart):
    docs = render(chart, VALUES["worker"])
    for kind, workload, service in [
        ("StatefulSet", "test-cache", "test-cache"),
        ("StatefulSet", "test-cache", "test-cache-peers"),
        ("Deployment", "test-worker", "test-worker"),
    ]:
        check_service(docs, kind, workload, service)
    docs = render(chart, VALUES["router"])
    for kind, workload, service in [
        ("StatefulSet", "test-worker", "test-worker"),
        ("StatefulSet", "test-worker", "test-worker-pods"),
        ("Deployment", "test-router", "test-router"),
    ]:
        check_service(docs, kind, workload, service)


def test_a_node_can_make_its_sockets(chart):
    """Operators reach the node over one, and the root file system is read-only."""
    spec = find(render(chart, TLS), "StatefulSet", "test-cache")["spec"]["template"]["spec"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == "/tmp"]
    assert not mount.get("readOnly")
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    assert "emptyDir" in volume


def test_probes_ask_the_admin_port(chart):
    container = find(render(chart, TLS), "StatefulSet", "test-cache")["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}


def test_more_nodes_are_a_cluster(chart):
    docs = render(chart, VALUES["cluster"])
    config = yaml.safe_load(find(docs, "ConfigMap", "test-cache")["data"]["cache.yaml"])
    assert config["cluster"]["discovery"] == "dns"
    # Members are found by the port of the Service that also names pods which are not ready.
    (name,) = config["cluster"]["dns_names"]
    service = find(docs, "Service", "test-cache-peers")["spec"]
    assert name == "_grpc._tcp.test-cache-peers.kv.svc"
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
    assert "grpc" in {port["name"] for port in service["ports"]}
    spec = find(docs, "StatefulSet", "test-cache")["spec"]
    assert spec["serviceName"] == "test-cache-peers"
    assert spec["updateStrategy"]["type"] == "RollingUpdate"
    container = spec["template"]["spec"]["containers"][0]
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}
    assert fields == {"POD_NAME": "metadata.name", "POD_NODE": "spec.nodeName"}
    assert "--cluster.host=$(POD_NODE)" in container["command"]
    assert "--node.id=$(POD_NAME)" in container["command"]


def test_one_node_is_no_cluster(chart):
    docs = render(chart, TLS)
    config = yaml.safe_load(find(docs, "ConfigMap", "test-cache")["data"]["cache.yaml"])
    assert "cluster" not in config
    container = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]["containers"][0]
    assert not [word for word in container["command"] if "cluster" in word]
    # A cluster may grow from it: the name of its disk is already the pod's, or becomes it.
    assert "--node.id=$(POD_NAME)" in container["command"]
    assert config["disk"]["take_over"] is True


def test_alerts_are_those_of_the_files(chart, root):
    docs = render(chart, VALUES["everything"])
    rule = find(docs, "PrometheusRule", "test")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    groups = []
    for path in sorted((root / "helm/cairn/files/rules").glob("*.yaml")):
        groups += yaml.safe_load(path.read_text())["groups"]
    assert [g["name"] for g in rule["spec"]["groups"]] == [g["name"] for g in groups]
    for ours, files in zip(rule["spec"]["groups"], groups, strict=True):
        for rendered, rule_of_file in zip(ours["rules"], files["rules"], strict=True):
            assert {**rendered, "expr": ""} == {**rule_of_file, "expr": ""}
    assert not [d for d in render(chart, TLS) if d["kind"] == "PrometheusRule"]


@pytest.mark.parametrize("name", VALUES)
def test_the_programs_accept_the_rendered_configuration(chart, programs, mounted, name):
    """The real programs read the ConfigMaps: a key that the chart misspells fails here."""
    docs = render(chart, VALUES[name])
    answers = list(mounted.check(docs, programs))
    assert [said for _, code, said in answers if code != 0] == []
    others = has_nodes(VALUES[name]) + has(VALUES[name], "router")
    assert len(answers) == others + worker_groups(VALUES[name])
    # A router says how much memory its settings let it take.
    for said in [said for program, _, said in answers if program == "cairn-router"]:
        most = re.search(r"= (\d+) MiB$", said, re.MULTILINE).group(1)
        spec = find(docs, "Deployment", "test-router")["spec"]["template"]["spec"]
        limit = spec["containers"][0]["resources"]["limits"]["memory"]
        assert int(most) <= int(limit.removesuffix("Mi"))


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("mebibytes", [1024, 16384, 262144])
def test_the_pods_limit_covers_the_bounds_of_the_node(
    chart, programs, tmp_path, mebibytes, device, beside
):
    """A node that needs more than its pod may have refuses to start."""
    values = {
        "tls": {"acceptPlaintextOnTheNetwork": True},
        "cache": {"host": {"capacityMiB": mebibytes}, "device": {"enabled": device}},
        "worker": {**WORKER["worker"], "besideNode": beside, "enabled": beside},
    }
    docs = render(chart, values)
    config = tmp_path / "cache.yaml"
    config.write_text(find(docs, "ConfigMap", "test-cache")["data"]["cache.yaml"])
    spec = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]
    limit = container_of(spec, "cache")["resources"]["limits"]["memory"]
    done = subprocess.run(
        [programs / "cairn-cache", "--config", config, "--check-config"]
        + ["--memory.limit", f"{limit}B"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # This machine may be smaller than the pod, which is another error.
    assert "memory.limit" not in done.stderr, done.stderr
