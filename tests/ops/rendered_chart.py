"""The chart's manifests for the values of tests."""

import helm_python as helm
import yaml

# The quick one, where libyaml is there.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Without one the chart installs nothing; tests are about other things.
IMAGE = {"image": {"repository": "registry.example/cairn"}}
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
    "policy": {
        "tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
        **WORKER,
        "router": {**ROUTER["router"], "clientCertificates": True},
        "auth": {"rules": [{"identity": "cn:ops", "role": "admin", "tenants": ["*"]}]},
    },
    "secrets-of-roles": {
        "tls": {"existingSecret": "cairn-tls", "secrets": {"worker": "worker-tls"}},
        **WORKER,
    },
    "autoscaled": {
        **TLS,
        "worker": {**WORKER["worker"], "autoscaling": {"enabled": True}},
        "router": {
            "enabled": True,
            "autoscaling": {
                "enabled": True,
                "minReplicas": 2,
                "metrics": [
                    {
                        "type": "Pods",
                        "pods": {
                            "metric": {"name": "cairn_router_active_requests"},
                            "target": {"type": "AverageValue", "averageValue": "50"},
                        },
                    }
                ],
            },
        },
    },
    "groups": {
        **TLS,
        **ROUTER,
        "worker": {
            **WORKER["worker"],
            "groups": {
                "prefill": {"replicas": 2, "config": {"role": "prefill"}, "threads": 8},
                "decode": {"config": {"role": "decode"}, "autoscaling": {"enabled": True}},
            },
        },
    },
    "certificates-of-pods": {
        "tls": {
            "certManager": {
                "enabled": True,
                "perPod": True,
                "issuerRef": {"name": "ca", "kind": "ClusterIssuer"},
                "uriPrefix": "spiffe://kv/cairn",
            }
        },
        **WORKER,
        **ROUTER,
        "cache": {"replicas": 3},
    },
    "keda": {
        **TLS,
        "worker": {
            **WORKER["worker"],
            "autoscaling": {"enabled": True, "keda": {"prometheus": "http://prometheus:9090"}},
        },
        "router": {
            "enabled": True,
            "autoscaling": {
                "enabled": True,
                "keda": {"prometheus": "http://prometheus:9090", "query": 'sum(x{a="b"})'},
            },
        },
    },
    "route": {
        **TLS,
        **WORKER,
        "router": {
            "enabled": True,
            "http": {"route": {"enabled": True, "parentRefs": [{"name": "gateway"}]}},
            "service": {"type": "LoadBalancer", "annotations": {"example.org/zone": "a: b"}},
        },
    },
    "pool": {
        "tls": {"acceptPlaintextOnTheNetwork": True},
        "cache": {"enabled": False},
        "router": {
            "enabled": True,
            "workers": ["dns:http://vllm.kv.svc:8000"],
            "picker": {"enabled": True, "pool": {"enabled": True, "matchLabels": {"app": "vllm"}}},
            "http": {
                "route": {
                    "enabled": True,
                    "parentRefs": [{"name": "gateway", "namespace": "ingress"}],
                    "hostnames": ["llm.example"],
                }
            },
        },
    },
    "containers": {
        **TLS,
        "cache": {"extraContainers": [{"name": "side", "image": "x"}]},
        "worker": {
            **WORKER["worker"],
            "extraInitContainers": [
                {
                    "name": "fetch",
                    "image": "x",
                    "securityContext": {"readOnlyRootFilesystem": False},
                }
            ],
        },
        "router": {"enabled": True, "extraContainers": [{"name": "side", "image": "x"}]},
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


def worker_groups(values):
    """How many groups of workers there are; 1 for workers without a group."""
    return len(values["worker"].get("groups", {"": {}})) if has(values, "worker") else 0


def worker_pods(values):
    """How many workloads have pods that are workers only."""
    beside = values.get("worker", {}).get("besideNode", False)
    return 0 if beside else worker_groups(values)


def merged(one, other):
    """`one`, and over it `other`, as Helm merges values."""
    result = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


class Chart:
    """The chart of a folder, whose values name an image if they do not say otherwise."""

    def __init__(self, folder):
        self._chart = helm.Chart.load(str(folder))

    def render(self, values, **of_release):
        return self._chart.render(merged(IMAGE, values), **of_release)


def documents(rendered):
    """The objects of what Helm rendered, a text for each template."""
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    return [doc for text in texts for doc in yaml.load_all(text, Loader=LOADER) if doc]


def render(chart, values):
    """Every manifest of the chart as an object."""
    return documents(chart.render(values, name="test", namespace="kv"))


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
