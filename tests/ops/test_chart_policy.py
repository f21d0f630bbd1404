"""The chart's policies: what its own pods need, the values' rules, and no restart for a change."""

import json

import pytest
import yaml

from rendered_chart import ROUTER, TLS, VALUES, WORKER, find, merged, render

OPS = {"identity": "cn:ops", "role": "admin", "tenants": ["*"]}
RULES = {"auth": {"rules": [OPS]}}
LIMIT = {"tenants": ["team-*"], "memory": "4GiB", "guaranteed_disk": "1TiB", "sessions": 3}


def manager(**more):
    return {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}, **more}}}


def rules(docs, role):
    """{(identity, role): tenants} of a role's policy."""
    data = find(docs, "ConfigMap", f"test-{role}")["data"]
    settings = yaml.safe_load(data[f"{role}.yaml"])
    assert settings["auth"]["policy"] == "/etc/cairn/policy.yaml"
    policy = yaml.safe_load(data["policy.yaml"])
    assert list(policy) == ["rules"]
    return {(r["identity"], r["role"]): r["tenants"] for r in policy["rules"]}


def test_pods_get_what_they_need_of_each_other_and_no_more(chart):
    docs = render(chart, VALUES["policy"])
    service = "dns:test-{}.kv.svc".format
    assert rules(docs, "cache") == {
        (service("cache"), "peer"): ["*"],
        (service("cache"), "writer"): ["default"],
        (service("worker"), "writer"): ["default"],
        (service("router"), "reader"): ["*"],
        ("dns:test-engine", "writer"): ["default"],
        ("cn:ops", "admin"): ["*"],
    }
    assert rules(docs, "worker") == {
        (service("worker"), "writer"): ["default"],
        (service("router"), "writer"): ["*"],
        ("cn:ops", "admin"): ["*"],
    }
    assert rules(docs, "router") == {("cn:ops", "admin"): ["*"]}


@pytest.mark.parametrize("per_pod", [False, True])
def test_a_certificate_with_a_uri_has_no_other_name(chart, per_pod):
    tls = manager(uriPrefix="spiffe://kv/cairn", perPod=per_pod)
    found = rules(render(chart, {**tls, **WORKER, **ROUTER, **RULES}), "cache")
    assert {name for name, role in found if role != "admin"} == {
        f"uri:spiffe://kv/cairn/{name}"
        for name in (
            ["test-cache-*", "test-worker-*", "test-router-*", "engine"]
            if per_pod
            else ["cache", "worker", "router", "engine"]
        )
    }


def test_a_worker_beside_its_node_has_the_name_of_the_nodes_pod(chart):
    tls = manager(uriPrefix="spiffe://kv/cairn", perPod=True)
    beside = {"worker": {**WORKER["worker"], "besideNode": True}}
    policy = find(render(chart, {**tls, **beside, **RULES}), "ConfigMap", "test-cache")["data"]
    given = yaml.safe_load(policy["policy.yaml"])["rules"]
    roles = [r["role"] for r in given if r["identity"].endswith("/test-cache-*")]
    assert roles == ["peer", "writer", "writer"]


def test_workers_may_write_the_tenants_of_their_settings(chart):
    groups = {"a": {"config": {"tenant": "acme"}}, "b": {"config": {"tenant": "team"}}, "c": {}}
    worker = {"worker": {**WORKER["worker"], "groups": groups}}
    connection = {"connection": {"settings": {"tenant": "chat"}}}
    docs = render(chart, {**manager(), **worker, **ROUTER, **RULES, **connection})
    found = rules(docs, "cache")
    assert found["dns:test-worker.kv.svc", "writer"] == ["acme", "default", "team"]
    assert found["dns:test-engine", "writer"] == ["chat"]


def test_nodes_alone_have_the_limits_of_tenants(chart):
    docs = render(chart, merged(VALUES["policy"], {"auth": {"limits": [LIMIT]}}))
    for role in ("cache", "worker", "router"):
        policy = yaml.safe_load(find(docs, "ConfigMap", f"test-{role}")["data"]["policy.yaml"])
        assert policy.get("limits") == ([LIMIT] if role == "cache" else None)


def test_without_rules_there_is_no_policy(chart):
    for name, values in VALUES.items():
        if name != "policy":
            assert "policy.yaml" not in json.dumps(render(chart, values)), name


def test_a_router_without_certificates_of_its_clients_has_no_policy(chart):
    router = {"router": {**ROUTER["router"], "clientCertificates": False}}
    docs = render(chart, {**manager(), **WORKER, **router, **RULES})
    assert set(find(docs, "ConfigMap", "test-router")["data"]) == {"router.yaml"}


def test_a_change_of_the_rules_starts_no_pod_again(chart):
    values = VALUES["policy"]
    more = [OPS, {"identity": "uri:spiffe://x/*", "role": "writer", "tenants": ["a", "b-*"]}]
    before = render(chart, values)
    after = render(chart, merged(values, {"auth": {"rules": more}}))
    assert [d for d in before if d["kind"] != "ConfigMap"] == [
        d for d in after if d["kind"] != "ConfigMap"
    ]
    assert ("uri:spiffe://x/*", "writer") in rules(after, "router")


@pytest.mark.parametrize(
    "values, said",
    [
        ({"tls": {"acceptPlaintextOnTheNetwork": True}, **RULES}, "auth.rules"),
        (merged(TLS, {"tls": {"adminIdentities": ["ops"]}, **RULES}), "tls.adminIdentities"),
        ({**TLS, "auth": {"rules": [{**OPS, "identity": "ops"}]}}, "identity"),
        ({**TLS, "auth": {"rules": [{**OPS, "role": "peer"}]}}, "role"),
        ({**TLS, "auth": {"rules": [{**OPS, "tenants": []}]}}, "tenants"),
        ({**TLS, "auth": {"rules": [{**OPS, "tenants": ["a b"]}]}}, "tenants"),
        ({**TLS, **RULES, "cache": {"config": {"auth": {"policy": "/x"}}}}, "set auth.rules"),
        ({**TLS, "auth": {"limits": [LIMIT]}}, "auth.limits: got 1, expected auth.rules"),
        ({**TLS, "auth": {"rules": [OPS], "limits": [{"tenants": ["a"]}]}}, "limits"),
        ({**TLS, "auth": {"rules": [OPS], "limits": [{**LIMIT, "disk": "1GB"}]}}, "disk"),
        ({**TLS, "auth": {"rules": [OPS], "limits": [{**LIMIT, "ram": "1GiB"}]}}, "ram"),
    ],
)
def test_wrong_rules_are_refused_by_name(chart, values, said):
    with pytest.raises(Exception, match=said):
        render(chart, values)
