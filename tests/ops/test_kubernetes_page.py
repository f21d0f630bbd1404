"""What docs/operate/kubernetes.md and engines-in-pods.md tell to type is what the chart takes."""

import pathlib
import re

import yaml

from conftest import ROOT
from operator_page import PAGE, blocks, values_of
from rendered_chart import ROUTER, TLS, WORKER, find, merged, render

ENGINES = (ROOT / "docs/operate/engines-in-pods.md").read_text(encoding="utf-8")


def code_of(page):
    return re.findall(r"```(sh|yaml)\n(.*?)```", page, flags=re.S)


CODE = code_of(PAGE)
# Commands of the page that no test runs in the small cluster, by words of theirs, and why. Those of
# Helm are rendered below.
NOT_RUN = {
    "tls.certManager.enabled=true": "no cert-manager is there; test_cluster_nodes.py issues what"
    " the chart asks it for",
    "worker.model.existingClaim=models": "test_cluster_release.py installs all three roles",
    "router.workers={dns:": "test_cluster_router.py has such engines",
    "helm upgrade ... --set cache.replicas=5": "it is no whole command; test_cluster_nodes.py"
    " grows to five nodes",
    "kubectl delete node": "machines of the small cluster do not go; a test drains one",
}


def commands(code=CODE):
    for kind, text in code:
        if kind != "sh":
            continue
        lines = re.sub(r"\\\n\s*", " ", re.sub(r"^ +", "", text, flags=re.M)).splitlines()
        yield from (line for line in lines if re.match(r"helm (install|upgrade) ", line))


def test_every_command_of_the_page_is_run_or_says_why_not():
    """Words between backquotes that are no whole command, such as `helm test`, are left out."""
    source = (ROOT / "tests/ops/test_cluster_operator.py").read_text(encoding="utf-8")
    run = re.findall(r'block\("([^"]+)", "([^"]+)"\)', source)
    assert len(run) >= 7
    left = dict(NOT_RUN)
    for section in re.findall(r"^## (.+)", PAGE, flags=re.M):
        for lines in blocks(section):
            text = "\n".join(lines)
            if len(text.split()) < 4 and text not in NOT_RUN:
                assert len(lines) == 1
                continue
            reasons = [words for words in NOT_RUN if words in text]
            runs = [words for where, words in run if where == section and words in text]
            assert bool(reasons) != bool(runs), f"{section}: {text}"
            for words in reasons:
                left.pop(words, None)
    assert left == {}, "no command of the page any more"


def test_the_page_has_commands():
    assert len(list(commands())) >= 5


def test_every_helm_command_of_the_page_renders(chart):
    for command in commands():
        values = values_of(command)
        if "--reuse-values" in command:
            values = merged(TLS, values)
        else:
            assert "repository" in values["image"], command
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


def test_the_page_on_engines_installs_what_its_files_refer_to(chart):
    (command,) = commands(code_of(ENGINES))
    docs = render(chart, values_of(command))
    files = re.findall(r"kubectl .*apply -f (\S+)", ENGINES)
    assert len(files) == 3
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in files}
    (shared,) = [text for path, text in texts.items() if path.endswith("engine-of-release.yaml")]
    # The release is named `cairn` there, and `test` here.
    assert "name: cairn-connection, key: vllm.json" in shared
    assert "vllm.json" in find(docs, "ConfigMap", "test-connection")["data"]
    assert "secretName: cairn-engine-tls" in shared
    assert find(docs, "Certificate", "test-engine")["spec"]["secretName"] == "test-engine-tls"


def test_commands_for_the_charts_nodes_work_in_engines_pods():
    """The runbooks have one container and one socket for all nodes."""
    index = (ROOT / "docs/operate/runbooks/README.md").read_text(encoding="utf-8")
    container = re.search(r'IN_POD=".* -c (\S+) --"', index)[1]
    socket = re.search(r"^CACHE=unix:(\S+)", index, flags=re.M)[1]
    for name, workload in (
        ("engine-with-node.yaml", "engine"),
        ("privileged-node-per-machine.yaml", "node-per-machine"),
    ):
        text = (ROOT / "deploy/kubernetes" / name).read_text(encoding="utf-8")
        docs = list(yaml.safe_load_all(text))
        (config,) = [d["data"]["cache.yaml"] for d in docs if d["kind"] == "ConfigMap"]
        assert yaml.safe_load(config)["admin"]["socket"] == socket
        (pods,) = [
            d["spec"]["template"]["spec"]
            for d in docs
            if d["kind"] in ("Deployment", "DaemonSet") and d["metadata"]["name"] == workload
        ]
        (node,) = [
            c
            for c in pods["containers"] + pods["initContainers"]
            if any("cairn-cache " in word for word in c["command"] + [" ".join(c["command"])])
        ]
        assert node["name"] == container
        assert str(pathlib.PurePosixPath(socket).parent) in {
            mount["mountPath"] for mount in node["volumeMounts"]
        }
    used = re.findall(
        r"exec POD -c (\S+) -- cairn stat --cache unix:(\S+?)`?$", ENGINES, flags=re.M
    )
    assert set(used) == {(container, socket)}


def test_the_page_on_engines_names_every_file():
    folder = ROOT / "deploy/kubernetes"
    named = set(re.findall(r"\]\(\.\./\.\./deploy/kubernetes/([\w.-]+)\)", ENGINES))
    assert named == {path.name for path in folder.iterdir()}
