"""GPUs in the chart: by limit or by claim, and a worker in its node's pod that shares the claim and
the node's memory."""

import helm_python as helm
import pytest
import yaml

from rendered_chart import (
    TLS,
    VALUES,
    WORKER,
    container_of,
    containers_of,
    find,
    merged,
    pod_of,
    render,
)


def test_huge_pages_are_asked_for_and_are_no_memory(chart):
    def limits(**cache):
        docs = render(chart, {**TLS, "cache": cache})
        spec = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]
        return container_of(spec, "cache")["resources"]["limits"]

    plain = limits(host={"capacityMiB": 2047})
    huge = limits(host={"capacityMiB": 2047}, config={"host": {"huge_pages": "require"}})
    assert "hugepages-2Mi" not in plain
    assert huge["hugepages-2Mi"] == "2048Mi"  # Whole pages.
    memory = [int(found["memory"].removesuffix("Mi")) for found in (plain, huge)]
    assert memory[0] - memory[1] == 2047
    with pytest.raises(helm.HelmError, match="cache.config.host.huge_pages: got try"):
        limits(config={"host": {"huge_pages": "try"}})


def test_nccl_has_shared_memory_which_counts(chart):
    docs = render(chart, VALUES["nccl"])
    spec = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "shared-memory"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "shared-memory"]
    assert mount["mountPath"] == "/dev/shm"
    without = merged(VALUES["nccl"], {"cache": {"device": {"ncclOnTrustedNetwork": False}}})
    plain = find(render(chart, without), "StatefulSet", "test-cache")["spec"]["template"]["spec"]
    sizes = [
        int(container_of(s, "cache")["resources"]["limits"]["memory"].removesuffix("Mi"))
        for s in (spec, plain)
    ]
    assert sizes[0] - sizes[1] == 512


def config_of(docs, component):
    return yaml.safe_load(find(docs, "ConfigMap", f"test-{component}")["data"][f"{component}.yaml"])


def mebibytes(container):
    resources = container["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    return int(resources["limits"]["memory"].removesuffix("Mi"))


CASES = [
    ("StatefulSet", "cache", "device", "claim"),
    ("Deployment", "worker", "worker-device", "worker-claim"),
]


@pytest.mark.parametrize("kind, component, by_limit, by_claim", CASES)
def test_a_gpu_comes_by_limit_or_by_claim(chart, kind, component, by_limit, by_claim):
    def pod(values):
        docs = render(chart, values)
        # With a router, workers are a StatefulSet.
        kinds = {kind, "StatefulSet"}
        (found,) = [
            d["kind"]
            for d in docs
            if d["kind"] in kinds and d["metadata"]["name"] == f"test-{component}"
        ]
        spec = pod_of(docs, found, f"test-{component}")
        return spec, container_of(spec, component)

    spec, container = pod({**TLS, **WORKER})
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert "resourceClaims" not in spec and "runtimeClassName" not in spec
    without = mebibytes(container)
    spec, container = pod(VALUES[by_limit])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "claims" not in container["resources"] and "resourceClaims" not in spec
    # The driver needs memory, too.
    assert mebibytes(container) == without + 512
    spec, container = pod(VALUES[by_claim])
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert container["resources"]["claims"] == [{"name": "gpu"}]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]


@pytest.mark.parametrize("component, kind", [("cache", "StatefulSet"), ("worker", "Deployment")])
def test_the_runtime_class_is_the_pods(chart, component, kind):
    values = {**TLS, **WORKER}
    values[component] = {
        **values.get(component, {}),
        "device": {"enabled": True, "runtimeClassName": "nvidia"},
    }
    docs = render(chart, values)
    assert pod_of(docs, kind, f"test-{component}")["runtimeClassName"] == "nvidia"


def test_the_programs_are_told_of_their_gpu(chart):
    assert config_of(render(chart, VALUES["device"]), "cache")["device"] == {"capacity": "8192MiB"}
    worker = config_of(render(chart, VALUES["worker-device"]), "worker")
    assert worker["device"] == "cuda:0" and worker["device_kv"] == "4096MiB"
    assert "device" not in config_of(render(chart, VALUES["worker"]), "worker")


def test_nodes_use_nccl_only_where_the_values_call_the_network_trusted(chart):
    link = config_of(render(chart, VALUES["nccl"]), "cache")["link"]
    assert link == {"enabled": True, "trusted_network": True}
    assert "link" not in config_of(render(chart, VALUES["device"]), "cache")


def test_a_worker_beside_its_node_shares_its_claim_and_its_socket(chart):
    docs = render(chart, VALUES["beside-claim"])
    spec = pod_of(docs, "StatefulSet", "test-cache")
    node, worker = container_of(spec, "cache"), container_of(spec, "worker")
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    assert spec["runtimeClassName"] == "nvidia"
    for container in (node, worker):
        assert container["resources"]["claims"] == [{"name": "gpu"}]
        assert "nvidia.com/gpu" not in container["resources"]["limits"]

    def mount(container, path):
        (found,) = [m for m in container["volumeMounts"] if path.startswith(m["mountPath"])]
        return found

    socket = config_of(docs, "cache")["local"]["socket"]
    assert mount(node, socket)["name"] == mount(worker, socket)["name"]
    # The worker connects, which a read-only mount allows, and cannot take the socket's place.
    assert mount(worker, socket)["readOnly"] and not mount(node, socket).get("readOnly")
    # Whoever names no tenant may map any tenant's memory.
    assert config_of(docs, "cache")["local"]["require_tenant"] is True
    assert config_of(docs, "worker")["cache"] == {
        "recipe": "raw",
        "address": "127.0.0.1:7400",
        "server_name": "test-cache.kv.svc",
    }
    assert not [d for d in docs if d["metadata"]["name"] == "test-worker" and "Set" in d["kind"]]


def test_ports_of_a_pod_have_different_names_and_its_service_finds_the_worker(chart):
    docs = render(chart, VALUES["beside-claim"])
    template = find(docs, "StatefulSet", "test-cache")["spec"]["template"]
    names = [p["name"] for c in containers_of(template["spec"]) for p in c["ports"]]
    assert len(names) == len(set(names))
    service = find(docs, "Service", "test-worker")["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert {port["targetPort"] for port in service["ports"]} <= set(names)


def test_a_router_calls_the_workers_by_the_names_of_their_nodes(chart):
    docs = render(chart, VALUES["beside-claim"])
    service = find(docs, "StatefulSet", "test-cache")["spec"]["serviceName"]
    assert config_of(docs, "router")["workers"] == [f"dns:_worker._tcp.{service}.kv.svc"]
    ports = {p["name"]: p["targetPort"] for p in find(docs, "Service", service)["spec"]["ports"]}
    assert ports["worker"] == "worker-grpc"


def test_a_change_of_the_workers_configuration_rolls_the_nodes_pods(chart):
    def annotations(log_level):
        values = {
            **TLS,
            "worker": {**WORKER["worker"], "besideNode": True, "logLevel": log_level},
        }
        template = find(render(chart, values), "StatefulSet", "test-cache")["spec"]["template"]
        return template["metadata"]["annotations"]

    assert annotations("info") != annotations("debug")


def test_a_node_outlives_the_worker_of_its_pod(chart):
    """The worker's last blocks arrive after its SIGTERM: a sidecar ends last, and the pod has time
    for both."""
    spec = pod_of(render(chart, VALUES["beside"]), "StatefulSet", "test-cache")
    (node,) = spec["initContainers"]
    assert node["name"] == "cache" and node["restartPolicy"] == "Always"
    assert [c["name"] for c in spec["containers"]] == ["worker"]
    alone = pod_of(render(chart, TLS), "StatefulSet", "test-cache")
    more = spec["terminationGracePeriodSeconds"] - alone["terminationGracePeriodSeconds"]
    assert more >= 5 + 20  # worker.announceSeconds, and the setting drain.


def beside(cache, worker, **more):
    return {
        **TLS,
        "cache": {"device": {"enabled": True, **cache}},
        "worker": {
            **WORKER["worker"],
            "besideNode": True,
            "device": {"enabled": True, **worker},
            **more,
        },
    }


@pytest.mark.parametrize(
    "values, named",
    [
        ({**TLS, "cache": {"device": {"enabled": True, "gpus": 0}}}, "claimTemplate"),
        ({**TLS, "cache": {"device": {"gpus": 17}}}, "/cache/device/gpus"),
        ({**TLS, "cache": {"device": {"capacityMiB": "8Gi"}}}, "/cache/device/capacityMiB"),
        ({**TLS, "cache": {"device": {"capacity": 1024}}}, "capacity"),
        (
            {**TLS, "cache": {"replicas": 2, "device": {"ncclOnTrustedNetwork": True}}},
            "cache.device.enabled: expected true",
        ),
        (
            {**TLS, "cache": {"device": {"enabled": True, "ncclOnTrustedNetwork": True}}},
            "cache.replicas: got 1",
        ),
        ({**TLS, "worker": {"device": {"enabled": "yes"}}}, "/worker/device/enabled"),
        ({**TLS, "worker": {"device": {"kvMiB": 1}}}, "/worker/device/kvMiB"),
        ({**TLS, "worker": {"device": {"enabled": True, "gpus": 0}}}, "claimTemplate"),
        ({**TLS, "worker": {"device": {"claimTemplate": "Two words"}}}, "claimTemplate"),
        ({**TLS, "worker": {"device": {"runtimeClassName": "-"}}}, "runtimeClassName"),
        ({**TLS, "worker": {"besideNode": "yes"}}, "/worker/besideNode"),
        (
            {
                **TLS,
                "worker": {
                    **WORKER["worker"],
                    "arithmetic": "float32",
                    "device": {"enabled": True},
                },
            },
            "worker.arithmetic: got float32",
        ),
        (beside({}, {}), "cache.device.claimTemplate"),
        (
            beside({"claimTemplate": "a"}, {"claimTemplate": "b"}),
            'worker.device.claimTemplate: got "b"',
        ),
        (
            beside({"claimTemplate": "a"}, {"claimTemplate": "a", "runtimeClassName": "nvidia"}),
            "worker.device.runtimeClassName",
        ),
        (
            beside({"claimTemplate": "a"}, {"claimTemplate": "a"}, cacheAddress="node:7400"),
            "worker.cacheAddress: got node:7400",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused_and_named(chart, values, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render(values)
    assert named in str(error.value)
