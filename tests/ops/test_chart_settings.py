"""Every setting of the programs can be set through the chart, or the chart says why not."""

import importlib.util
import json
import re

import helm_python as helm
import pytest
import yaml

from conftest import ROOT
from pod_security import pod_specs
from rendered_chart import GATEWAY, TLS, VALUES, WORKER, containers_of, find, merged, render

_spec = importlib.util.spec_from_file_location("settings", ROOT / "tools/chart_settings.py")
chart_settings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(chart_settings)

OWNED = yaml.safe_load((ROOT / "helm/cairn/files/owned-settings.yaml").read_text())
ROLES = ["cache", "worker", "router"]
ALL = {
    **VALUES["router"],
    "cache": {"replicas": 3},
}


def value_for(expected):
    """One that the setting takes, and that the chart would not choose itself."""
    schema = chart_settings.schema_of(expected)
    if schema is chart_settings.TIME:
        return "77s"
    if schema is chart_settings.SIZE:
        return "77MiB"
    if "enum" in schema:
        return schema["enum"][-1]
    return {
        "boolean": True,
        "integer": schema.get("maximum"),
        "number": 0.77,
        "array": ["a", "b"],
        "string": "seventy-seven",
    }[schema["type"]]


def nested(key, value):
    for level in reversed(key.split(".")):
        value = {level: value}
    return value


def at(settings, key):
    for level in key.split("."):
        settings = settings[level]
    return settings


def config_of(chart, role, values):
    docs = render(chart, values)
    return yaml.safe_load(find(docs, "ConfigMap", f"test-{role}")["data"][f"{role}.yaml"])


def test_the_schema_has_the_settings_that_the_programs_print():
    assert chart_settings.main(["--check"]) == 0


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_reaches_its_program(chart, role):
    wanted = {
        key: value_for(expected)
        for key, expected in chart_settings.settings(role).items()
        # Of the drain only the sum matters here; a pod would need hours.
        if key not in OWNED[role]
    }
    config = {}
    for key, value in wanted.items():
        config = merged(config, nested(key, value))
    found = config_of(chart, role, merged(ALL, {role: {"config": config}}))
    assert {key: at(found, key) for key in wanted} == wanted


@pytest.mark.parametrize("role", ROLES)
def test_what_the_chart_owns_is_refused_with_a_reason(chart, role):
    settings = chart_settings.settings(role)
    for key, reason in OWNED[role].items():
        values = merged(ALL, {role: {"config": nested(key, value_for(settings[key]))}})
        with pytest.raises(helm.HelmError) as error:
            chart.render(values)
        assert f"{role}.config: got {key}, which the chart sets itself: {reason}" in str(
            error.value
        )


@pytest.mark.parametrize(
    "config, named",
    [
        ({"evicton": {}}, "evicton"),
        ({"limits": {"sessions": 0}}, "/cache/config/limits/sessions"),
        ({"limits": {"sessions": "many"}}, "/cache/config/limits/sessions"),
        ({"rpc": {"memory": "1 GB"}}, "/cache/config/rpc/memory"),
        ({"drain": {"grace": 5}}, "/cache/config/drain/grace"),
        ({"eviction": {"policy": "best"}}, "/cache/config/eviction/policy"),
    ],
)
def test_wrong_settings_are_refused_and_named(chart, config, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render({**TLS, "cache": {"config": config}})
    assert named in str(error.value)


def leaves(values, path=()):
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def test_no_value_may_be_null(chart):
    """A null takes a default away, and templates would render nothing in its place."""
    schema = json.loads((ROOT / "helm/cairn/values.schema.json").read_text())
    values = yaml.safe_load((ROOT / "helm/cairn/values.yaml").read_text())
    for path in leaves(values):
        at_parent = schema
        for key in path[:-1]:
            at_parent = at_parent.get("properties", {}).get(key, {})
        if "properties" in at_parent:
            assert path[-1] in at_parent["required"], path
    for null in [{"cache": {"cpu": None}}, {"worker": {"memoryMiB": None}}, {"podMonitor": None}]:
        with pytest.raises(helm.HelmError):
            chart.render({**TLS, **null})


def test_a_pods_time_to_end_covers_its_drain(chart):
    def grace(cache):
        spec = find(render(chart, {**TLS, "cache": cache}), "StatefulSet", "test-cache")["spec"]
        return spec["template"]["spec"]["terminationGracePeriodSeconds"]

    # announceSeconds, drain.grace, drain.timeout, drain.flush_timeout, and twice 15 s to stop.
    assert grace({}) == 5 + 1 + 10 + 60 + 30
    drain = {"grace": "500ms", "timeout": "20s", "flush_timeout": "2m"}
    assert grace({"announceSeconds": 0, "config": {"drain": drain}}) == 1 + 20 + 120 + 30
    assert grace({"terminationGracePeriodSeconds": 200}) == 200
    with pytest.raises(helm.HelmError, match="got 30, expected at least 106"):
        grace({"terminationGracePeriodSeconds": 30})


@pytest.mark.parametrize("mebibytes", [1024, 16384, 1048576])
def test_the_volume_holds_what_the_tier_may_take(chart, mebibytes):
    disk = {"capacityMiB": mebibytes}
    docs = render(chart, {**TLS, "cache": {"disk": disk}})
    (claim,) = find(docs, "StatefulSet", "test-cache")["spec"]["volumeClaimTemplates"]
    storage = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Mi"))
    # docs/operate/config.md: the directory stays below 1.3 times the capacity, and disk.min_free
    # is left.
    assert storage * 0.95 >= mebibytes * 1.3 + 256 - 2
    assert storage * 0.95 <= mebibytes * 1.3 + 256 + 3


def test_a_pod_that_ends_serves_until_its_services_leave_it_out(chart):
    docs = render(chart, VALUES["router"])
    for doc in docs:
        if doc["kind"] in ("Deployment", "StatefulSet"):
            (container,) = doc["spec"]["template"]["spec"]["containers"]
            assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    docs = render(chart, {**TLS, "cache": {"announceSeconds": 0}})
    (container,) = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]["containers"]
    assert "lifecycle" not in container


def test_a_roll_out_of_gpus_needs_no_gpu_more(chart):
    strategy = find(render(chart, VALUES["worker-device"]), "Deployment", "test-worker")["spec"]
    assert strategy["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    plain = find(render(chart, VALUES["worker"]), "Deployment", "test-worker")["spec"]
    assert "strategy" not in plain


def test_a_router_before_engines_may_come_without_nodes(chart):
    kinds = {doc["kind"] for doc in render(chart, VALUES["no-nodes"])}
    assert "StatefulSet" not in kinds and "Deployment" in kinds
    config = config_of(chart, "worker", VALUES["worker-without-nodes"])
    assert config["cache"]["address"] == ""
    for values, named in [
        ({"cache": {"enabled": False}}, "cache.enabled: got false"),
        (
            {"cache": {"enabled": False}, "worker": {**WORKER["worker"], "besideNode": True}},
            "worker.besideNode: got true",
        ),
    ]:
        with pytest.raises(helm.HelmError, match=named):
            chart.render({**TLS, **values})


def test_the_platform_may_choose_the_user(chart):
    spec = find(render(chart, VALUES["openshift"]), "StatefulSet", "test-cache")["spec"]
    context = spec["template"]["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("spread, how", [("required", "DoNotSchedule"), ("none", None)])
def test_pods_of_a_role_spread_over_machines(chart, spread, how):
    docs = render(chart, {**TLS, "cache": {"replicas": 3, "spread": spread}})
    template = find(docs, "StatefulSet", "test-cache")["spec"]["template"]
    found = {
        c["topologyKey"]: c["whenUnsatisfiable"]
        for c in template["spec"].get("topologySpreadConstraints", [])
    }
    assert found.get("kubernetes.io/hostname") == how
    for constraint in template["spec"].get("topologySpreadConstraints", []):
        labels = constraint["labelSelector"]["matchLabels"]
        assert labels.items() <= template["metadata"]["labels"].items()


def test_nodes_and_workers_leave_one_at_a_time(chart):
    docs = render(chart, VALUES["settings"])
    for name in ["test-cache", "test-worker"]:
        budget = find(docs, "PodDisruptionBudget", name)["spec"]
        template = find(docs, "StatefulSet", name)["spec"]["template"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert not [d for d in render(chart, TLS) if d["kind"] == "PodDisruptionBudget"]


def test_what_the_chart_needs_wins_over_labels_and_annotations(chart):
    cache = {
        "podLabels": {"app.kubernetes.io/name": "other", "team": "x"},
        "podAnnotations": {"checksum/config": "same", "a": "b"},
    }
    more = {"dashboards": {"enabled": True, "labels": {"app.kubernetes.io/name": "other"}}}
    docs = render(chart, {**TLS, **more, "cache": cache})
    meta = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["metadata"]
    assert meta["labels"]["app.kubernetes.io/name"] == "cairn" and meta["labels"]["team"] == "x"
    assert len(meta["annotations"]["checksum/config"]) == 64 and meta["annotations"]["a"] == "b"
    labels = find(docs, "ConfigMap", "test-dashboard-overview")["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "cairn"


def test_every_dashboard_has_a_config_map_of_its_own(chart):
    docs = render(chart, {**TLS, "dashboards": {"enabled": True}})
    folder = ROOT / "helm/cairn/files/dashboards"
    maps = {
        doc["metadata"]["name"]: doc
        for doc in docs
        if doc["metadata"]["labels"].get("grafana_dashboard") == "1"
    }
    assert len(maps) == 6
    for path in folder.glob("*.json"):
        one = maps[f"test-dashboard-{path.stem.removeprefix('cairn-')}"]
        assert one["data"].keys() == {path.name}
        assert json.loads(one["data"][path.name]) == json.loads(path.read_text())
        # kubectl apply keeps the object as JSON in an annotation of this size at most.
        assert len(json.dumps(one)) < 256 << 10


def test_prometheus_scrapes_each_pod_once(chart):
    docs = render(chart, VALUES["settings"])
    monitor = find(docs, "PodMonitor", "test")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    ports = {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]}
    selector = monitor["spec"]["selector"]["matchLabels"]
    for kind, name, port in [
        ("StatefulSet", "test-cache", "admin"),
        ("StatefulSet", "test-worker", "worker-admin"),
        ("Deployment", "test-router", "admin"),
    ]:
        template = find(docs, kind, name)["spec"]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        (container,) = template["spec"]["containers"]
        found = {p["name"] for p in container["ports"]} & ports
        assert found == {port}
    # A ServiceMonitor of somebody's own finds each pod once, too.
    admin = [
        d["metadata"]["name"]
        for d in docs
        if d["kind"] == "Service" and "admin" in {p["name"] for p in d["spec"]["ports"]}
    ]
    assert sorted(admin) == ["test-cache", "test-router", "test-worker"]


def test_alerts_look_at_the_pods_of_their_release_only(chart):
    def expressions(values):
        rule = find(render(chart, values), "PrometheusRule", "test")
        return [r["expr"] for g in rule["spec"]["groups"] for r in g["rules"]]

    alerts = {**TLS, "alerts": {"enabled": True}}
    for expression in expressions(alerts):
        assert 'namespace="kv"' in expression and "job=" not in expression
    scraped = {**alerts, "podMonitor": {"enabled": True}}
    for expression in expressions(scraped):
        assert expression.count('{namespace="kv",job="test"') == len(
            re.findall(r"\bup\b|cairn_", expression)
        )
    own = {**TLS, "alerts": {"enabled": True, "selector": 'cluster="a"'}}
    assert all('cluster="a"' in e and "namespace=" not in e for e in expressions(own))


@pytest.mark.parametrize("base", ["https://wiki.example/cairn", "https://wiki.example/cairn/"])
def test_alerts_lead_to_the_pages_that_operators_read(chart, base):
    docs = render(chart, {**TLS, "alerts": {"enabled": True, "runbookUrl": base}})
    for group in find(docs, "PrometheusRule", "test")["spec"]["groups"]:
        for rule in group["rules"]:
            address = f"https://wiki.example/cairn/{rule['alert']}.md"
            assert rule["annotations"]["runbook_url"] == address


def test_an_autoscaler_sets_the_number_of_pods(chart):
    docs = render(chart, VALUES["autoscaled"])
    for kind, name, least in [("StatefulSet", "test-worker", 1), ("Deployment", "test-router", 2)]:
        # Otherwise each upgrade would set the number again.
        assert "replicas" not in find(docs, kind, name)["spec"]
        scaler = find(docs, "HorizontalPodAutoscaler", name)["spec"]
        assert scaler["scaleTargetRef"]["kind"] == kind and scaler["minReplicas"] == least
    # There may be ten workers although one is enough: no two of them may go at a time.
    for name in ("test-worker", "test-router"):
        assert find(docs, "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1
    single = {"autoscaling": {"minReplicas": 1, "maxReplicas": 1}}
    alone = render(chart, merged(VALUES["autoscaled"], {"worker": single, "router": single}))
    assert not [d for d in alone if d["kind"] == "PodDisruptionBudget"]
    for values, named in [
        ({"besideNode": True}, "worker.autoscaling.enabled"),
        ({"autoscaling": {"minReplicas": 11}}, "worker.autoscaling.maxReplicas: got 10"),
    ]:
        with pytest.raises(helm.HelmError, match=named):
            chart.render(merged(VALUES["autoscaled"], {"worker": values}))


@pytest.mark.parametrize(
    "repository, registry, expected",
    [
        ("kv/cairn", "mirror.example", "mirror.example/kv/cairn"),
        ("kv/cairn", "", "kv/cairn"),
        ("registry.example/cairn", "mirror.example:5000/hub", "mirror.example:5000/hub/cairn"),
        ("registry:5000/kv/cairn", "mirror.example", "mirror.example/kv/cairn"),
        ("localhost/cairn", "mirror.example", "mirror.example/cairn"),
    ],
)
@pytest.mark.parametrize(
    "image, ending",
    [({"digest": "sha256:" + "0" * 64}, "@sha256:" + "0" * 64), ({"tag": "a"}, ":a")],
)
def test_the_registry_of_all_charts_replaces_the_images(
    chart, repository, registry, expected, image, ending
):
    values = {"image": {"repository": repository, **image}, "global": {"imageRegistry": registry}}
    docs = render(chart, merged(VALUES["router"], values))
    pods = [spec for doc in docs for _, spec in pod_specs(doc)]
    assert len(pods) == 4
    assert {c["image"] for spec in pods for c in containers_of(spec)} == {expected + ending}


@pytest.mark.parametrize(
    "more, named",
    [
        ({"imageRegistry": 5}, "/global/imageRegistry"),
        ({"imageRegistry": "https://mirror.example"}, "/global/imageRegistry"),
        ({"imagePullSecrets": [{}]}, "/global/imagePullSecrets/0"),
        ({"imagePullSecrets": "pull"}, "/global/imagePullSecrets"),
    ],
)
def test_wrong_values_of_all_charts_are_refused(chart, more, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render({**TLS, "global": more})
    assert named in str(error.value)


@pytest.mark.parametrize("beside", [False, True])
def test_only_the_release_and_its_clients_reach_nodes_and_workers(chart, beside):
    clients = [{"namespaceSelector": {"matchLabels": {"team": "x"}}}]
    values = merged(
        VALUES["router"],
        {
            "networkPolicies": {"enabled": True, "cacheClients": clients},
            "worker": {"besideNode": beside},
        },
    )
    docs = render(chart, values)
    policies = {d["metadata"]["name"]: d["spec"] for d in docs if d["kind"] == "NetworkPolicy"}
    assert set(policies) == {"test-cache", "test-router"} | (set() if beside else {"test-worker"})
    template = find(docs, "StatefulSet", "test-cache")["spec"]["template"]
    policy = policies["test-cache"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    probes, calls = policy["ingress"]
    ports = {c["name"]: {p["name"] for p in c["ports"]} for c in containers_of(template["spec"])}
    assert {p["port"] for p in [*probes["ports"], *calls["ports"]]} == set().union(*ports.values())
    # Without "from" everybody reaches a port.
    assert "from" not in probes
    release, client = calls["from"]
    assert client == clients[0]
    router = find(docs, "Deployment", "test-router")["spec"]["template"]["metadata"]["labels"]
    assert release["podSelector"]["matchLabels"].items() <= router.items()


@pytest.mark.parametrize("callers", [[], GATEWAY])
def test_only_the_release_and_its_callers_reach_routers(chart, callers):
    def policies(enabled):
        more = {"networkPolicies": {"enabled": enabled}, "router": {"callers": callers}}
        docs = render(chart, merged(VALUES["router"], more))
        return docs, [
            d["spec"]
            for d in docs
            if d["kind"] == "NetworkPolicy" and d["metadata"]["name"] == "test-router"
        ]

    docs, (policy,) = policies(True)
    template = find(docs, "Deployment", "test-router")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    probes, calls = policy["ingress"]
    assert probes == {"ports": [{"port": "admin"}]}
    release, *others = calls["from"]
    assert others == callers
    worker = find(docs, "StatefulSet", "test-worker")["spec"]["template"]["metadata"]["labels"]
    assert release == {
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "cairn",
                "app.kubernetes.io/instance": worker["app.kubernetes.io/instance"],
            }
        }
    }
    assert calls["ports"] == [{"port": "http"}, {"port": "grpc"}]
    # Callers are enough for a policy of routers.
    assert policies(False)[1] == ([policy] if callers else [])


def test_certificates_have_the_names_that_others_expect(chart):
    docs = render(chart, VALUES["certificates"])
    names = {
        d["metadata"]["name"]: d["spec"]["dnsNames"] for d in docs if d["kind"] == "Certificate"
    }
    # Engines show theirs, and no name is looked for in it.
    assert names.pop("test-engine") == ["test-engine"]
    assert set(names) == {"test-cache", "test-worker", "test-router"}
    for role in ROLES:
        assert f"test-{role}.kv.svc" in names[f"test-{role}"]
    configs = {
        role: yaml.safe_load(find(docs, "ConfigMap", f"test-{role}")["data"][f"{role}.yaml"])
        for role in ROLES
    }
    expected = {
        "cache": [
            configs["cache"]["cluster"]["tls_server_name"],
            configs["worker"]["cache"]["server_name"],
            configs["router"]["cache_tls"]["server_name"],
        ],
        "worker": [configs["router"]["workers_tls"]["server_name"]],
    }
    for role, wanted in expected.items():
        assert set(wanted) <= set(names[f"test-{role}"])
    for kind, role in [
        ("StatefulSet", "cache"),
        ("StatefulSet", "worker"),
        ("Deployment", "router"),
    ]:
        volumes = find(docs, kind, f"test-{role}")["spec"]["template"]["spec"]["volumes"]
        secrets = [v["secret"]["secretName"] for v in volumes if "secret" in v]
        assert secrets == [f"test-{role}-tls"]


def test_a_role_may_have_a_certificate_of_its_own(chart):
    docs = render(chart, VALUES["secrets-of-roles"])

    def secret(kind, name):
        volumes = find(docs, kind, name)["spec"]["template"]["spec"]["volumes"]
        return [v["secret"]["secretName"] for v in volumes if "secret" in v]

    assert secret("StatefulSet", "test-cache") == ["cairn-tls"]
    assert secret("Deployment", "test-worker") == ["worker-tls"]


@pytest.mark.parametrize(
    "values, named",
    [
        (
            {"tls": {"existingSecret": "s", "certManager": {"enabled": True}}},
            "/tls/certManager/issuerRef/name",
        ),
        ({"tls": {"secrets": {"worker": "w"}, "acceptPlaintextOnTheNetwork": True}}, "tls.secrets"),
        ({**TLS, "router": {"enabled": True, "workers": ["http://a:1", "b:1"]}}, "got b:1 beside"),
        (
            {
                **TLS,
                "router": {
                    "enabled": True,
                    "workers": ["http://vllm:8000"],
                    "picker": {"enabled": True},
                },
            },
            "expected http://IP:PORT",
        ),
        (
            {
                **TLS,
                "router": {
                    "enabled": True,
                    "workers": ["http://a:1"],
                    "engines": {"events": ["http://b:1=tcp://b:2"]},
                },
            },
            "router.engines.events: got http://b:1=tcp://b:2",
        ),
        ({**TLS, "cache": {"disk": {"flushAfter": "1ms"}}}, "flushAfter"),
        ({**TLS, "worker": {"model": {"path": "../../etc/x.gguf"}}}, "/worker/model/path"),
        ({**TLS, "cache": {"nodeSelector": {"a": 1}}}, "/cache/nodeSelector"),
        ({**TLS, "cache": {"affinity": {"nodeAfinity": {}}}}, "nodeAfinity"),
        ({"tls": {"existingSecret": "x, optional: true"}}, "/tls/existingSecret"),
    ],
)
def test_values_that_would_render_to_nothing_usable_are_refused(chart, values, named):
    with pytest.raises(helm.HelmError) as error:
        chart.render(values)
    assert named in str(error.value)
