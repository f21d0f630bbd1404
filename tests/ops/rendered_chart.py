"""The chart's manifests for the values of tests."""

import yaml

TLS = {"tls": {"existingSecret": "cairn-tls"}}
WORKER = {"worker": {"enabled": True, "model": {"existingClaim": "models"}}}
ROUTER = {"router": {"enabled": True}}
GATEWAY = [{"namespaceSelector": {"matchLabels": {"name": "gateway"}}}]
VALUES = {
    "tls": TLS,
    "plaintext": {"tls": {"acceptPlaintextOnTheNetwork": True}},
    "worker": {**TLS, **WORKER},
    "worker-by-rows": {
        **TLS,
        "worker": {
            **WORKER["worker"],
            "recipe": "turbo:bits=4",
            "readPolicy": "precision:near=turbo3,rows=0.02",
            "kvBudgetMiB": 256,
        },
    },
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
    "nccl": {
        **TLS,
        "cache": {"replicas": 2, "device": {"enabled": True, "ncclOnTrustedNetwork": True}},
    },
    "worker-device": {
        **TLS,
        "worker": {**WORKER["worker"], "device": {"enabled": True, "kvMiB": 4096}},
    },
    "worker-claim": {
        **TLS,
        **ROUTER,
        "worker": {
            **WORKER["worker"],
            "device": {"enabled": True, "gpus": 0, "claimTemplate": "gpu"},
        },
    },
    "beside": {**TLS, "worker": {**WORKER["worker"], "besideNode": True}},
    "beside-claim": {
        **TLS,
        **ROUTER,
        "cache": {
            "replicas": 2,
            "device": {"enabled": True, "claimTemplate": "gpu", "runtimeClassName": "nvidia"},
        },
        "worker": {
            **WORKER["worker"],
            "besideNode": True,
            "device": {"enabled": True, "claimTemplate": "gpu", "runtimeClassName": "nvidia"},
        },
    },
    "no-nodes": {
        **TLS,
        "cache": {"enabled": False},
        "router": {"enabled": True, "workers": ["http://vllm:8000"]},
    },
    "worker-without-nodes": {**TLS, **WORKER, "cache": {"enabled": False}},
    "certificates": {
        "tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
        **WORKER,
        **ROUTER,
        "cache": {"replicas": 3},
    },
    "secrets-of-roles": {
        "tls": {"existingSecret": "cairn-tls", "secrets": {"worker": "worker-tls"}},
        **WORKER,
    },
    "openshift": {**TLS, "podSecurity": {"uid": 0}},
    "settings": {
        **TLS,
        **ROUTER,
        "networkPolicies": {"enabled": True, "cacheClients": GATEWAY},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "cache": {
            "replicas": 3,
            "spread": "required",
            "priorityClassName": "high",
            "serviceAccountName": "cairn",
            "secrets": ["etcd"],
            "extraEnv": [{"name": "X", "value": "y"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "config": {
                "cluster": {
                    "discovery": "etcd",
                    "etcd_endpoints": ["etcd:2379"],
                    "etcd_user": "cairn",
                    "etcd_password_file": "/etc/cairn-secrets/etcd/password",
                },
                "drain": {"flush_timeout": "2m"},
                "eviction": {"policy": "s3fifo"},
                "limits": {"sessions": 2048},
            },
        },
        "worker": {
            **WORKER["worker"],
            "replicas": 2,
            "secrets": ["salt"],
            "config": {
                "role": "prefill",
                "tenant": "a",
                "tenant_salt_file": "/etc/cairn-secrets/salt/salt",
            },
        },
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "mine"},
                "data": {"a": "b"},
            }
        ],
    },
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


def has(values, component):
    return values.get(component, {}).get("enabled", False)


def has_nodes(values):
    return values.get("cache", {}).get("enabled", True)


def worker_pods(values):
    """Whether workers have pods of their own."""
    return has(values, "worker") and not values["worker"].get("besideNode", False)


def merged(one, other):
    """`one`, and over it `other`, as Helm merges values."""
    result = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def render(chart, values):
    """Every manifest of the chart as an object."""
    files = chart.render(values, name="test", namespace="kv")
    docs = []
    for path, text in files.items():
        if path.endswith(".yaml"):
            docs += [doc for doc in yaml.safe_load_all(text) if doc]
    return docs


def pod_of(docs, kind, name):
    return find(docs, kind, name)["spec"]["template"]["spec"]


def containers_of(spec):
    """All of a pod, sidecars first."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def container_of(spec, name):
    (container,) = [c for c in containers_of(spec) if c["name"] == name]
    return container


def find(docs, kind, name):
    matching = [d for d in docs if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(matching) == 1, f"{kind}/{name}: {len(matching)} found"
    return matching[0]
