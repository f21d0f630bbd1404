"""The router in the chart: whom it calls, who may call it, what it needs."""

import re
import subprocess

import helm_python as helm
import pytest
import yaml
from conftest import ROOT
from rendered_chart import GATEWAY, ROUTER, TLS, VALUES, WORKER, find, merged, render


def router_config(docs):
    return yaml.safe_load(find(docs, "ConfigMap", "test-router")["data"]["router.yaml"])


def router_spec(docs):
    return find(docs, "Deployment", "test-router")["spec"]["template"]["spec"]


def test_a_router_follows_the_workers_by_their_names(chart):
    values = {**TLS, **ROUTER, "worker": {**WORKER["worker"], "replicas": 2}}
    docs = render(chart, values)
    config = router_config(docs)
    # The targets of SRV records are the pods' names: more workers change nothing here.
    assert config["workers"] == ["dns:_grpc._tcp.test-worker-pods.kv.svc"]
    spec = find(docs, "StatefulSet", "test-worker")["spec"]
    assert spec["serviceName"] == "test-worker-pods" and spec["replicas"] == 2
    service = find(docs, "Service", "test-worker-pods")["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
    assert [port["name"] for port in service["ports"]] == ["grpc"]
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
    def limit(values):
        resources = router_spec(render(chart, values))["containers"][0]["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]
        return int(resources["limits"]["memory"].removesuffix("Mi"))

    router = {"enabled": True, "indexMiB": 1000, "tokenCacheMiB": 100}
    values = {**TLS, **WORKER, "router": router}
    assert router_config(render(chart, values))["index"] == "1000MiB"
    # Answers, JSON of bodies that two threads read, connections with TLS, and the process.
    others = 128 + 2 * (4 * 8 + 56) + 8192 * (16 + 28 + 72) // 1024 + 160
    # http.all_bodies, http.all_unread, twice rpc.requests.
    assert limit(values) == 1000 + 100 + 256 + 64 + 2 * 256 + others
    more = {"http": {"all_bodies": "512MiB"}, "rpc": {"requests": "16MiB"}}
    assert limit(merged(values, {"router": {"config": more}})) == 1100 + 512 + 64 + 32 + others
    assert limit(merged(values, {"router": {"overheadMiB": 3000}})) == 4100
    # What engines say that they hold, and two threads that ask them for tokens.
    engines = limit(VALUES["engines"]) - limit(VALUES["no-nodes"])
    assert engines == -(-262144 * 190 // (1 << 20)) + 2 * (4 * 8 + 56)
    with pytest.raises(helm.HelmError, match="router.overheadMiB: got 600, expected at least 2224"):
        chart.render(merged(values, {"router": {"overheadMiB": 600}}))


# So small that the router's sum fits on any machine that runs tests: nothing gives way.
SMALL = {
    "indexMiB": 64,
    "tokenCacheMiB": 16,
    "config": {
        "all_answers": "40MiB",
        "rpc": {"requests": "3MiB"},
        "http": {
            "all_bodies": "20MiB",
            "all_unread": "1.5MiB",
            "max_body": "2MiB",
            "max_head": "20KiB",
            "max_connections": 700,
            "threads": 3,
        },
    },
}


@pytest.mark.parametrize("name", ["router", "gateway", "engines", "picker"])
def test_the_routers_limit_is_the_sum_of_the_program(chart, programs, tmp_path, name):
    docs = render(chart, merged(VALUES[name], {"router": SMALL}))
    config = router_config(docs)
    # Files and names that are not here, and change nothing.
    for key in ("tls", "workers_tls", "cache_tls", "cache"):
        config.pop(key, None)
    config.get("engines", {}).pop("api_key_file", None)
    config["listen"] = config["http"]["listen"] = "127.0.0.1:0"
    config["admin"]["listen"] = "127.0.0.1:0"
    if "picker" in config:
        config["picker"]["listen"] = "127.0.0.1:0"
    if "model" in config:
        config["model"] = str(ROOT / "tests/data/gguf/kquant.gguf")
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [programs / "cairn-router", "--config", path, "--check-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("memory: ")]
    program = int(re.search(r"= (\d+) MiB$", line).group(1))
    resources = router_spec(docs)["containers"][0]["resources"]
    pod = int(resources["limits"]["memory"].removesuffix("Mi"))
    # Without certificates the program leaves out what TLS takes for each connection.
    tls = 700 * 72 // 1024 if "existingSecret" in VALUES[name]["tls"] else 0
    # 32 MiB that the process has taken when it looks; and each item of the pod is rounded up.
    assert 32 <= pod - tls - program <= 32 + len(line.split("+")), line


def test_a_worker_that_would_not_fit_is_refused(chart):
    with pytest.raises(helm.HelmError, match="worker.memoryMiB: got 4096, expected at least 10"):
        chart.render(merged({**TLS, **WORKER}, {"worker": {"kvPoolMiB": 8192}}))
    smaller = {"kvPoolMiB": 64, "memoryMiB": 1024, "config": {"cache": {"push_queue": "16MiB"}}}
    render(chart, merged({**TLS, **WORKER}, {"worker": smaller}))
