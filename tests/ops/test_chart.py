"""The chart, rendered and linted by Helm's own code, checked against Kubernetes' schemas and the
restricted pod profile."""

import copy
import re
import subprocess

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from conftest import ROOT
from pod_security import pod_specs, violations

MODEL = ROOT / "tests/data/gguf/kquant.gguf"
TLS = {"tls": {"existingSecret": "cairn-tls"}}
WORKER = {"worker": {"enabled": True, "model": {"existingClaim": "models"}}}
ROUTER = {"router": {"enabled": True}}
GATEWAY = [{"namespaceSelector": {"matchLabels": {"name": "gateway"}}}]
VALUES = {
    "tls": TLS,
    "plaintext": {"tls": {"acceptPlaintextOnTheNetwork": True}},
    "worker": {**TLS, **WORKER},
    "router": {**TLS, **WORKER, **ROUTER},
    "gateway": {
        "tls": {"acceptPlaintextOnTheNetwork": True},
        "cache": {"replicas": 3},
        "router": {
            "enabled": True,
            "replicas": 3,
            "workers": ["gpu-1:7500", "gpu-2:7500"],
            "model": {"existingClaim": "models", "path": "small/model.gguf"},
            "http": {"tenantHeader": "x-tenant"},
            "callers": GATEWAY,
        },
    },
    "engines": {
        **TLS,
        "router": {
            "enabled": True,
            "workers": ["http://vllm-0.vllm:8000", "https://vllm-1.vllm"],
            "engines": {
                "apiKeySecret": "engine-key",
                "blockTokens": 32,
                "events": ["http://vllm-0.vllm:8000=tcp://vllm-0.vllm:5557,tcp://vllm-0.vllm:5558"],
            },
        },
    },
    "picker": {
        "tls": {"acceptPlaintextOnTheNetwork": True},
        "router": {
            "enabled": True,
            "workers": ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
            "picker": {"enabled": True},
            "callers": GATEWAY,
        },
    },
    "no-disk": {**TLS, "cache": {"disk": {"enabled": False}}},
    "cluster": {**TLS, "cache": {"replicas": 3}},
    "device": {**TLS, "cache": {"device": {"enabled": True, "runtimeClassName": "nvidia"}}},
    "claim": {**TLS, "cache": {"device": {"enabled": True, "gpus": 0, "claimTemplate": "gpu"}}},
    "everything": {
        **TLS,
        **WORKER,
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
        "router": {
            "enabled": True,
            "replicas": 2,
            "clientCertificates": False,
            "http": {"apiKeysSecret": "api-keys"},
            "modelId": "small",
            "aliases": ["gpt"],
            "podAnnotations": {"a": "b"},
        },
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
        "cache": {
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"key": "cache", "operator": "Exists"}],
            "disk": {"storageClassName": "local"},
        },
        "dashboards": {"enabled": True},
    },
}
KUBERNETES = ["1.30", "1.33", "1.36"]


def has(values, component):
    return values.get(component, {}).get("enabled", False)


@pytest.fixture(scope="module")
def chart(root):
    return helm.Chart.load(str(root / "helm/cairn"))


def render(chart, values):
    """Every manifest of the chart as an object."""
    files = chart.render(values, name="test", namespace="kv")
    docs = []
    for path, text in files.items():
        if path.endswith(".yaml"):
            docs += [doc for doc in yaml.safe_load_all(text) if doc]
    return docs


def find(docs, kind, name):
    matching = [d for d in docs if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(matching) == 1, f"{kind}/{name}: {len(matching)} found"
    return matching[0]


@pytest.mark.parametrize("name", VALUES)
def test_lint_is_clean(root, name):
    result = helm.lint(str(root / "helm/cairn"), VALUES[name], strict=True)
    assert result["errors"] == []
    # Severity 1 is information ("icon is recommended").
    assert [m for m in result["messages"] if m["severity"] > 1] == []


# Before 1.31 a pod named its claims in another form.
@pytest.mark.parametrize(
    "name, version",
    [(n, v) for n in VALUES for v in KUBERNETES if (n, v) != ("claim", "1.30")],
)
def test_manifests_are_valid_kubernetes(chart, name, version):
    docs = render(chart, VALUES[name])
    assert docs
    for doc in docs:
        if doc["kind"] == "PrometheusRule":
            continue  # No kind of Kubernetes' own.
        kubernetes_validate.validate(doc, version, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_pods_meet_the_restricted_profile(chart, name):
    pods = [pod for doc in render(chart, VALUES[name]) for pod in pod_specs(doc)]
    assert len(pods) == 1 + has(VALUES[name], "worker") + has(VALUES[name], "router")
    for pod_name, spec in pods:
        assert violations(spec) == [], pod_name
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_profile_check_finds_planted_violations(chart):
    """The checker itself must be able to fail."""
    ((_, good),) = [pod for doc in render(chart, TLS) for pod in pod_specs(doc)]
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
        ({**TLS, "cahce": {}}, "cahce"),
        ({**TLS, "cache": {"host": {"capacityMiB": "1Gi"}}}, "capacityMiB"),
        ({**TLS, "cache": {"disk": {"flushAfter": "soon"}}}, "flushAfter"),
        ({**TLS, "cache": {"device": {"enabled": True, "gpus": 0}}}, "claimTemplate"),
        ({**TLS, "worker": {"enabled": True}}, "existingClaim"),
        ({**TLS, "worker": {"cacheAddress": "cache"}}, "cacheAddress"),
        ({**TLS, "image": {"digest": "sha256:1"}}, "digest"),
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


def test_workers_of_a_cluster_use_one_of_its_nodes(chart):
    cluster = {"replicas": 3, "cluster": {"zone": "z"}}
    docs = render(chart, {**TLS, **WORKER, "cache": cluster})
    config = yaml.safe_load(find(docs, "ConfigMap", "test-worker")["data"]["worker.yaml"])
    assert config["cache"] == {
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


def test_a_node_with_a_device_tier_gets_a_gpu_by_limit_or_by_claim(chart):
    def node(values):
        spec = find(render(chart, values), "StatefulSet", "test-cache")["spec"]["template"]["spec"]
        return spec, spec["containers"][0]["resources"]

    spec, resources = node(VALUES["tls"])
    assert "nvidia.com/gpu" not in resources["limits"] and "resourceClaims" not in spec
    without = resources["limits"]["memory"]
    spec, resources = node(VALUES["device"])
    assert resources["limits"]["nvidia.com/gpu"] == 1 and "claims" not in resources
    assert spec["runtimeClassName"] == "nvidia"
    assert int(resources["limits"]["memory"][:-2]) == int(without[:-2]) + 512
    spec, resources = node(VALUES["claim"])
    assert "nvidia.com/gpu" not in resources["limits"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    config = yaml.safe_load(
        find(render(chart, VALUES["device"]), "ConfigMap", "test-cache")["data"]["cache.yaml"]
    )
    assert config["device"] == {"capacity": "8192MiB"}


def test_values_never_change_what_a_statefulset_cannot_change(chart):
    """Kubernetes refuses an upgrade that changes these fields."""

    def frozen(values):
        spec = find(render(chart, values), "StatefulSet", "test-cache")["spec"]
        return spec["selector"], spec["serviceName"], spec["podManagementPolicy"]

    assert len({str(frozen(values)) for values in VALUES.values()}) == 1


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
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
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
    assert "env" not in container


def router_config(docs):
    return yaml.safe_load(find(docs, "ConfigMap", "test-router")["data"]["router.yaml"])


def router_spec(docs):
    return find(docs, "Deployment", "test-router")["spec"]["template"]["spec"]


def test_a_router_calls_each_worker_by_its_name(chart):
    values = {**TLS, **ROUTER, "worker": {**WORKER["worker"], "replicas": 2}}
    docs = render(chart, values)
    config = router_config(docs)
    assert config["workers"] == [
        f"test-worker-{number}.test-worker-pods.kv.svc:7500" for number in range(2)
    ]
    spec = find(docs, "StatefulSet", "test-worker")["spec"]
    assert spec["serviceName"] == "test-worker-pods" and spec["replicas"] == 2
    service = find(docs, "Service", "test-worker-pods")["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
    # Certificates have the names of the Services.
    assert config["workers_tls"]["server_name"] == "test-worker.kv.svc"
    assert config["cache_tls"]["server_name"] == config["cache"].removesuffix(":7400")
    worker = yaml.safe_load(find(docs, "ConfigMap", "test-worker")["data"]["worker.yaml"])
    assert config["model"] == worker["model"]


@pytest.mark.parametrize(
    "address, expected", [("", "test-cache.kv.svc:7400"), ("a:1,b:2", "a:1,b:2"), ("none", None)]
)
def test_a_router_follows_the_nodes_that_the_values_name(chart, address, expected):
    router = {"enabled": True, "cacheAddress": address}
    assert (
        router_config(render(chart, {**TLS, **WORKER, "router": router})).get("cache") == expected
    )


def test_a_router_before_engines_needs_no_model_and_no_nodes(chart):
    docs = render(chart, VALUES["engines"])
    config = router_config(docs)
    assert config["workers"] == VALUES["engines"]["router"]["workers"]
    assert "model" not in config and "cache" not in config
    assert config["engines"] == {
        "tokens": "auto",
        "block_tokens": 32,
        "cache_tokens": 1000000,
        "events": ["http://vllm-0.vllm:8000=tcp://vllm-0.vllm:5557,tcp://vllm-0.vllm:5558"],
        "api_key_file": "/etc/cairn-engines/key",
    }
    spec = router_spec(docs)
    names = {volume["name"] for volume in spec["volumes"]}
    assert "engine-key" in names and "model" not in names
    mounts = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert names >= mounts


def test_a_gateway_reaches_the_picker_only_where_it_is_enabled(chart):
    def picker(values):
        docs = render(chart, VALUES[values])
        ports = [port["name"] for port in router_spec(docs)["containers"][0]["ports"]]
        service = next(
            d for d in docs if d["kind"] == "Service" and d["metadata"]["name"].endswith("-router")
        )
        policy = next(
            d
            for d in docs
            if d["kind"] == "NetworkPolicy" and d["metadata"]["name"].endswith("-router")
        )
        return (
            router_config(docs).get("picker"),
            "picker" in ports,
            "picker" in [port["name"] for port in service["spec"]["ports"]],
            {"port": "picker"} in policy["spec"]["ingress"][1]["ports"],
        )

    assert picker("picker") == ({"listen": "0.0.0.0:9002"}, True, True, True)
    assert picker("gateway") == (None, False, False, False)


def test_a_router_of_a_cluster_knows_some_of_its_nodes(chart):
    docs = render(chart, {**TLS, **WORKER, **ROUTER, "cache": {"replicas": 20}})
    nodes = router_config(docs)["cache"].split(",")
    assert nodes == [f"test-cache-{n}.test-cache-peers.kv.svc:7400" for n in range(8)]


def test_a_router_that_waits_for_workers_is_not_restarted(chart):
    (container,) = router_spec(render(chart, VALUES["router"]))["containers"]
    # /startupz and /readyz answer 503 while it waits.
    assert "startupProbe" not in container
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}


def test_callers_without_certificates_do_not_reach_the_routers_grpc_port(chart):
    """They would name their tenant themselves."""
    docs = render(chart, VALUES["everything"])
    config = router_config(docs)
    assert "client_ca" not in config["tls"] and config["listen"].startswith("127.0.0.1:")
    ports = find(docs, "Service", "test-router")["spec"]["ports"]
    assert {port["name"] for port in ports} == {"http", "admin"}
    docs = render(chart, VALUES["router"])
    config = router_config(docs)
    assert "client_ca" in config["tls"] and config["listen"].startswith("0.0.0.0:")


def test_api_keys_are_mounted_so_that_they_can_change(chart):
    docs = render(chart, VALUES["everything"])
    spec = router_spec(docs)
    (volume,) = [v for v in spec["volumes"] if v["name"] == "keys"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "keys"]
    assert volume["secret"]["secretName"] == "api-keys"
    # Kubernetes never updates a file that is mounted by subPath.
    assert "subPath" not in mount
    (item,) = volume["secret"]["items"]
    assert router_config(docs)["http"]["api_keys"] == f"{mount['mountPath']}/{item['path']}"


def test_only_the_gateway_reaches_a_router_that_believes_its_header(chart):
    docs = render(chart, VALUES["gateway"])
    assert router_config(docs)["http"]["tenant_header"] == "x-tenant"
    policy = find(docs, "NetworkPolicy", "test-router")["spec"]
    labels = find(docs, "Deployment", "test-router")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    reached = {
        port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]
    }
    assert reached == {"http": GATEWAY, "grpc": GATEWAY, "admin": None}


def test_several_routers_have_a_disruption_budget(chart):
    docs = render(chart, VALUES["gateway"])
    budget = find(docs, "PodDisruptionBudget", "test-router")["spec"]
    assert budget["maxUnavailable"] == 1
    template = find(docs, "Deployment", "test-router")["spec"]["template"]
    assert budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    kinds = {doc["kind"] for doc in render(chart, VALUES["router"])}
    assert not kinds & {"PodDisruptionBudget", "NetworkPolicy"}


def test_the_routers_limit_covers_its_bounds(chart):
    router = {"enabled": True, "indexMiB": 1000, "tokenCacheMiB": 100, "overheadMiB": 600}
    docs = render(chart, {**TLS, **WORKER, "router": router})
    resources = router_spec(docs)["containers"][0]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "1700Mi"
    assert router_config(docs)["index"] == "1000MiB"


def test_alerts_are_those_of_the_files(chart, root):
    docs = render(chart, VALUES["everything"])
    rule = find(docs, "PrometheusRule", "test")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    groups = []
    for path in sorted((root / "helm/cairn/files/rules").glob("*.yaml")):
        groups += yaml.safe_load(path.read_text())["groups"]
    assert rule["spec"]["groups"] == groups
    assert not [d for d in render(chart, TLS) if d["kind"] == "PrometheusRule"]


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory):
    """What the Secret would hold: --check-config reads the files too, and a model's metadata."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=test",
            "-keyout",
            folder / "tls.key",
            "-out",
            folder / "tls.crt",
        ],
        check=True,
        capture_output=True,
    )
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
    return folder


def flags_of(docs, program):
    """The flags that a pod gives its program beside its file, as in the pod number 0."""
    for doc in docs:
        for _, spec in pod_specs(doc):
            command = spec["containers"][0]["command"]
            if command[0] == program:
                flags = [flag for flag in command[1:] if flag.startswith(("--cluster", "--node"))]
                names = {"$(POD_NAME)": "test-cache-0", "$(POD_NODE)": "machine"}
                for name, value in names.items():
                    flags = [flag.replace(name, value) for flag in flags]
                return flags
    raise AssertionError(f"no pod runs {program}")


@pytest.mark.parametrize("name", VALUES)
def test_the_programs_accept_the_rendered_configuration(
    chart, programs, tls_folder, tmp_path, name
):
    """The real programs read the ConfigMaps: a key that the chart misspells fails here."""
    docs = render(chart, VALUES[name])
    checked = 0
    for doc in docs:
        for file, text in (doc.get("data") or {}).items() if doc["kind"] == "ConfigMap" else ():
            if not file.endswith(".yaml"):
                continue
            path = tmp_path / file
            text = text.replace("/etc/cairn-tls", str(tls_folder))
            path.write_text(re.sub(r"/models/\S+", str(MODEL), text))
            program = programs / f"cairn-{file.removesuffix('.yaml')}"
            done = subprocess.run(
                [program, "--config", path, "--check-config", *flags_of(docs, program.name)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            checked += 1
    assert checked == 1 + has(VALUES[name], "worker") + has(VALUES[name], "router")


@pytest.mark.parametrize("mebibytes", [1024, 16384, 262144])
def test_the_pods_limit_covers_the_bounds_of_the_node(chart, programs, tmp_path, mebibytes):
    """A node that needs more than its pod may have refuses to start."""
    values = {
        "tls": {"acceptPlaintextOnTheNetwork": True},
        "cache": {"host": {"capacityMiB": mebibytes}},
    }
    docs = render(chart, values)
    config = tmp_path / "cache.yaml"
    config.write_text(find(docs, "ConfigMap", "test-cache")["data"]["cache.yaml"])
    spec = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]
    limit = spec["containers"][0]["resources"]["limits"]["memory"]
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
