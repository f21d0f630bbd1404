"""deploy/compose: Compose accepts the file, each program takes its settings within the memory that
it is given, and Prometheus and Grafana find what they look for."""

import copy
import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from compose_file import FOLDER, Missing, address_of, load, mistakes, mounts
from conftest import ROOT
from container import OUT, TAG, Image, built_line

sys.path.insert(0, str(ROOT / "benchmarks"))

MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
ENVIRONMENT = {"CAIRN_MODEL": str(FOLDER / "README.md")}  # Any file: what is in it is not read.
CAIRN = ["cache-1", "cache-2", "worker-1", "worker-2", "router"]


@pytest.fixture(scope="module")
def file():
    return load(ENVIRONMENT)


def test_the_file_has_no_mistakes(file):
    assert mistakes(file) == []
    assert [name for name in file["services"] if name not in ("prometheus", "grafana")] == CAIRN


@pytest.mark.parametrize(
    ("service", "key", "value", "said"),
    [
        ("router", "comand", [], "router: comand: no such key"),
        ("router", "ports", ["8000:8000"], "router: port 8000:8000, expected 127.0.0.1"),
        ("router", "volumes", ["./no.yaml:/etc/x:ro"], "router: ./no.yaml does not exist"),
        ("grafana", "volumes", ["other:/x"], "grafana: volume other is not declared"),
        (
            "worker-1",
            "network_mode",
            "service:cache-9",
            "worker-1: network_mode: got service:cache",
        ),
        ("worker-1", "ports", ["127.0.0.1:1:1"], "worker-1: ports and hostname are those of"),
    ],
)
def test_a_mistake_is_found(file, service, key, value, said):
    wrong = copy.deepcopy(file)
    wrong["services"][service][key] = value
    assert any(text.startswith(said) for text in mistakes(wrong)), mistakes(wrong)


def test_the_model_must_be_named():
    with pytest.raises(Missing, match="CAIRN_MODEL: the GGUF file to run"):
        load({})


def test_compose_itself_accepts_the_file():
    """Where it is installed: the plugin of Docker, or Debian's docker-compose."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) is None:
            continue
        if subprocess.run([*words, "version"], capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("Compose is not installed")
    done = subprocess.run(
        [*words, "-f", FOLDER / "compose.yaml", "config"],
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == {*CAIRN, "prometheus", "grafana"}


@pytest.mark.parametrize("name", CAIRN)
def test_a_container_has_what_it_needs_and_no_more(file, name):
    service = file["services"][name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["image"] == "cairn:0.1.0"
    writable = {target for _source, target, options in mounts(service) if options != "ro"}
    assert writable <= {"/var/lib/cairn", "/run/cairn"}
    # The node makes the socket, and its worker finds it.
    if name.startswith("worker"):
        node = file["services"][address_of(file, name)]
        shared = {m[0] for m in mounts(service)} & {m[0] for m in mounts(node)}
        assert shared == {f"run-{name[-1]}"}


def settings(name, file, folder):
    """The command line of a service with its files here."""
    service = file["services"][name]
    command = list(service["command"])
    path = FOLDER / {m[1]: m[0] for m in mounts(service)}[command[2]]
    given = yaml.safe_load(path.read_text())
    if "model" in given:
        given["model"] = str(MODEL)
    if "disk" in given:
        given["disk"]["path"] = str(folder / "disk")
    command[2] = str(folder / path.name)
    (folder / path.name).write_text(yaml.safe_dump(given))
    return command


@pytest.mark.parametrize("name", CAIRN)
def test_a_program_takes_its_settings(file, programs, name, tmp_path):
    program, *arguments = settings(name, file, tmp_path)
    limit = re.sub(r"[mg]$", lambda m: m[0].upper() + "iB", file["services"][name]["mem_limit"])
    done = subprocess.run(
        [programs / program, *arguments, "--memory.limit", limit, "--check-config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def ports(file, name, key):
    """HOST:PORT at which others reach the setting `key` of a service."""
    command = file["services"][name]["command"]
    given = yaml.safe_load((FOLDER / command[2].rsplit("/", 1)[1]).read_text())
    for level in key.split("."):
        given = given[level]
    return f"{address_of(file, name)}:{given.rsplit(':', 1)[1]}"


def test_everybody_is_where_others_look(file):
    node, worker = {"cache-1", "cache-2"}, {"worker-1", "worker-2"}
    cache = yaml.safe_load((FOLDER / "cache.yaml").read_text())
    router = yaml.safe_load((FOLDER / "router.yaml").read_text())
    data = {name: ports(file, name, "listen") for name in CAIRN}
    assert set(cache["cluster"]["members"]) == {data[name] for name in node}
    assert set(router["workers"]) == {data[name] for name in worker}
    assert set(router["cache"].split(",")) == {data[name] for name in node}
    for name in node:
        assert file["services"][name]["command"][-1] == data[name]
    published = file["services"]["router"]["ports"][0].rsplit(":", 1)[1]
    assert ports(file, "router", "http.listen") == f"router:{published}"


def test_prometheus_scrapes_everybody_and_has_the_rules(file, tmp_path):
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    scraped = {
        job["job_name"]: set(job["static_configs"][0]["targets"])
        for job in config["scrape_configs"]
    }
    roles = {"cairn-cache": "cache-", "cairn-worker": "worker-", "cairn-router": "router"}
    for job, prefix in roles.items():
        names = [name for name in CAIRN if name.startswith(prefix)]
        assert scraped[job] == {ports(file, name, "admin.listen") for name in names}
    # The same jobs as without containers, so that dashboards and rules serve both.
    plain = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    assert [job["job_name"] for job in plain["scrape_configs"]] == list(scraped)

    source, target = next(
        (m[0], m[1])
        for m in mounts(file["services"]["prometheus"])
        if m[1] == "/etc/prometheus/rules"
    )
    config["rule_files"] = [
        path.replace(target, str((FOLDER / source).resolve())) for path in config["rule_files"]
    ]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = len(list((ROOT / "helm/cairn/files/rules").glob("*.yaml")))
    assert f"{files} rule files found" in done.stdout


def test_grafana_finds_the_data_and_every_dashboard(file):
    where = {m[1]: m[0] for m in mounts(file["services"]["grafana"])}
    found = {
        kind: yaml.safe_load(
            (FOLDER / where[f"/etc/grafana/provisioning/{kind}/cairn.yaml"]).read_text()
        )
        for kind in ("datasources", "dashboards")
    }
    (source,) = found["datasources"]["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert source["url"] == "http://prometheus:9090"
    (provider,) = found["dashboards"]["providers"]
    folder = (FOLDER / where[provider["options"]["path"]]).resolve()
    assert folder == ROOT / "helm/cairn/files/dashboards"
    files = list(folder.glob("*.json"))
    assert files
    for path in files:
        # A variable finds the source by its kind: no dashboard names one.
        variables = json.loads(path.read_text())["templating"]["list"]
        assert [v["query"] for v in variables if v["type"] == "datasource"] == [source["type"]]


def number(text, name, labels=""):
    """The sum of a metric's series that have these labels."""
    found = re.findall(rf"^{name}(?:{{[^}}]*{labels}[^}}]*}})? (\S+)$", text, flags=re.M)
    assert found, f"{name} is not exported"
    return sum(float(value) for value in found)


def test_the_containers_serve(networks, programs, tmp_path):
    """The file's containers, without Docker: a conversation's KV comes out of a node's memory, and
    the nodes are one cluster."""
    from compose_stand import ComposeStand
    from rows.processes import wait_until

    built_line(programs)
    image = Image(OUT / "oci", TAG, tmp_path)
    file = load({"CAIRN_MODEL": str(MODEL)})
    admin = int(ports(file, "router", "admin.listen").rsplit(":", 1)[1])
    with ComposeStand(file, image, tmp_path) as stand:
        stand.up()
        # It answers 503 before.
        wait_until(
            lambda: (
                number(
                    stand.get("router", admin, "/metrics"),
                    "cairn_router_workers",
                    'condition="ready"',
                )
                == 2
            ),
            60,
            "both workers are ready for the router",
        )
        for name in ("cache-1", "cache-2"):
            wait_until(
                lambda node=name: (
                    number(
                        stand.get(node, 7401, "/metrics"), "cairn_cluster_members", 'state="live"'
                    )
                    == 1
                ),
                60,
                f"{name} sees the other member",
            )
        question = {"role": "user", "content": "Why is the sky blue? " * 40}
        body = json.dumps({"messages": [question], "max_tokens": 4, "temperature": 0}).encode()

        def cached_tokens():
            answer = json.loads(stand.get("router", 8000, "/v1/chat/completions", body))
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached_tokens() == 0
        wait_until(cached_tokens, 60, "the prompt comes from a node")
        nodes = [stand.get(name, 7401, "/metrics") for name in ("cache-1", "cache-2")]
        assert sum(number(text, "cairn_local_bytes_total") for text in nodes) > 0
        for server in reversed(stand.servers.values()):
            assert server.terminate() == 0
