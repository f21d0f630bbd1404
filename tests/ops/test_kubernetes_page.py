"""What docs/operate/kubernetes.md tells to type is what the chart takes."""

import re

import yaml

from operator_page import PAGE, values_of
from rendered_chart import ROUTER, TLS, WORKER, merged, render

CODE = re.findall(r"```(sh|yaml)\n(.*?)```", PAGE, flags=re.S)


def commands():
    for kind, text in CODE:
        if kind != "sh":
            continue
        lines = re.sub(r"\\\n\s*", " ", re.sub(r"^ +", "", text, flags=re.M)).splitlines()
        yield from (line for line in lines if re.match(r"helm (install|upgrade) ", line))


def test_the_page_has_commands():
    assert len(list(commands())) >= 5


def test_every_helm_command_of_the_page_renders(chart):
    for command in commands():
        values = values_of(command)
        if "--reuse-values" in command:
            values = merged(TLS, values)
        assert render(chart, values), command


def test_the_settings_of_the_page_render(chart):
    base = {**TLS, **WORKER, **ROUTER, "cache": {"replicas": 3}}
    groups, settings = [yaml.safe_load(text) for kind, text in CODE if kind == "yaml"]
    docs = render(chart, merged(base, groups))
    replicas = {d["metadata"]["name"]: d["spec"]["replicas"] for d in docs if "Set" in d["kind"]}
    assert replicas == {"test-cache": 3, "test-prefill": 2, "test-decode": 4}
    docs = render(chart, merged({**TLS, "cache": {"replicas": 3}}, settings))
    config = yaml.safe_load(docs[0]["data"]["cache.yaml"])
    assert config["cluster"]["discovery"] == "etcd"
    assert config["cluster"]["tls_server_name"] == "test-cache.kv.svc"
