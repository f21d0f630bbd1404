"""Each alert has a page. What these pages and the one on the hit rate tell to type and to look at
is there: commands run against real programs, those of kubectl name what the chart makes."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from cairn_cluster import MODEL, Authority
from conftest import ROOT
from operator_page import program
from pod_security import pod_specs
from rendered_chart import VALUES, containers_of, documents, merged
from runbook_pages import (
    FOLDER,
    HIT_RATE,
    PAGES,
    alerts,
    alternatives,
    commands,
    metric_rows,
    patterns,
    quoted,
    series_of,
)

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "tests/support"))
# Need the paths above.
from ports import free_port  # noqa: E402
from rows.processes import (  # noqa: E402
    Server,
    node_command,
    router_command,
    wait_until,
    worker_command,
)

INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")
TEXTS = {"README": INDEX, "hit-rate": HIT_RATE, **PAGES}
# The process of an alert, by its file; of alerts on engines, a router in front of one.
PROCESSES = {"cluster": "node", "node": "node", "router": "router", "worker": "worker"}
FILES = {rule["alert"]: path.stem for path, rule in alerts()}
PATIENCE = 60


def test_each_alert_has_a_page_and_each_page_an_alert():
    assert set(PAGES) == set(FILES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_means_what_to_look_at_and_what_to_do(name):
    headings = re.findall(r"^#+ .*$", PAGES[name], flags=re.M)
    assert headings == [f"# {name}", "## Meaning", "## Checks", "## Actions"]
    assert f"]({name}.md)" in INDEX
    assert commands(PAGES[name])


@pytest.mark.parametrize("name", TEXTS)
def test_metrics_of_the_pages_are_documented(name):
    # Those that a command looks for may be cut off, and are in what it finds below.
    text = re.sub(r"```sh\n.*?```", "", TEXTS[name], flags=re.S)
    rows = metric_rows()
    for series, label, value in re.findall(r'\b(cairn_[a-z_]+)(?:{(\w+)="(\w+)"})?', text):
        row = rows[series_of(series)]
        assert f"`{label}`" in row and value in row if label else row


def settings():
    """Names of all settings of the programs, and of the chart's values."""
    pages = [f"docs/operate/config{role}.md" for role in ["", "-worker", "-router"]]
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in [*pages, "helm/cairn/README.md"]]
    return set(re.findall(r"^\| `([\w.]+)`", "\n".join(texts), flags=re.M))


@pytest.mark.parametrize("name", TEXTS)
def test_settings_of_the_pages_exist(name):
    known = settings()
    levels = {key.rsplit(".", depth)[0] for key in known for depth in (1, 2)}
    for used in re.findall(r"`([a-z_]+\.[a-zA-Z_.*]+)`", TEXTS[name]):
        if not re.search(r"\.(crt|md|yaml)$", used):
            assert used in known | levels or used.removesuffix(".*") in levels, used


# ---- kubectl: that the words are its own, and that the chart makes what they name.


@pytest.fixture(scope="module")
def made(chart):
    """Names of what the chart makes, as KIND/NAME, and of the containers."""
    values = merged(VALUES["everything"], {"cache": {"replicas": 3}})
    names, containers = set(), set()
    for doc in documents(chart.render(values, name="cairn", namespace="kv")):
        names.add(f"{doc['kind'].lower()}/{doc['metadata']['name']}")
        for claim in doc.get("spec", {}).get("volumeClaimTemplates", []):
            names.add(f"pvc/{claim['metadata']['name']}-{doc['metadata']['name']}-0")
        for _, spec in pod_specs(doc):
            containers |= {c["name"] for c in containers_of(spec)}
            secrets = [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v]
            names |= {f"secret/{secret}" for secret in secrets}
    return names, containers


KUBECTL = sorted(
    {
        line.split(" | ")[0]
        for text in TEXTS.values()
        for line in [*commands(text), *quoted(text, "kubectl")]
        if line.startswith("kubectl ")
    }
)
IN_POD = re.search(r'IN_POD="(.*)"', INDEX)[1]


@pytest.mark.parametrize("command", [*KUBECTL, IN_POD])
def test_kubectl_knows_the_command_and_the_chart_the_names(made, command):
    names, containers = made
    words = shlex.split(command.removesuffix(" &"))[1:]
    if words[0] == "-n":
        assert words[1] == "$NS"
        words = words[2:]
    done = subprocess.run(
        [program(), words[0], "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and f"kubectl {words[0]}" in done.stdout
    if "-c" in words:
        assert words[words.index("-c") + 1] in containers
    plain = [w for w in words[1:] if not w.startswith("-")]
    if len(plain) > 1 and words[0] in ("get", "describe") and "$" not in plain[1]:
        assert f"{plain[0]}/{plain[1]}" in names


# ---- The log lines that pages look for.


def events():
    """All texts of the sources that may be names of log lines."""
    name = re.compile(r'"([a-z]+(?:_[a-z]+)+)"|log::\w+\(\s*"([a-z]+)"')
    sources = [path for folder in ("services", "common") for path in (ROOT / folder).rglob("*.cc")]
    return {
        several or one
        for path in sources
        for several, one in name.findall(path.read_text(encoding="utf-8"))
    }


def test_log_lines_of_the_pages_are_those_of_the_programs():
    known = events()
    looked_for = {
        one
        for text in TEXTS.values()
        for line in commands(text)
        if " logs " in line
        for one in patterns(line)
    }
    assert len(looked_for) > 15
    assert [one for one in looked_for if not any(one in event for event in known)] == []


# ---- All other commands run as they stand, against real programs.


@pytest.fixture(scope="module")
def stand(programs, tmp_path_factory):
    """The variables of the pages, by the process of the alert. The node has all that nodes can
    have; it is the only one of its cluster."""
    folder = tmp_path_factory.mktemp("runbooks")
    Authority(folder / "tls").make(["node"])
    (folder / "keys").write_text(f"tenant {'0' * 64}\n", encoding="ascii")
    rule = {"identity": "dns:node", "role": "writer", "tenants": ["*"]}
    (folder / "policy").write_text(json.dumps({"rules": [rule]}), encoding="ascii")
    ca, certificate, key = (folder / "tls" / file for file in ("ca.crt", "tls.crt", "tls.key"))
    build = programs.parent
    socket, engine = folder / "admin.sock", "http://127.0.0.1:1"
    commands_of = {
        "node": lambda _: node_command(
            build,
            *("--host.capacity", "64MiB", "--disk.path", folder / "disk"),
            *("--disk.capacity", "64MiB", "--device.capacity", "64MiB", "--admin.socket", socket),
            *("--tls.cert", certificate, "--tls.key", key, "--tls.client_ca", ca),
            *("--auth.policy", folder / "policy"),
            *("--cluster.discovery", "static", "--cluster.members", "127.0.0.1:1"),
            *("--listen", f"127.0.0.1:{free_port()}"),
            *("--events.zmq", f"tcp://127.0.0.1:{free_port()}"),
        ),
        "worker": lambda of: worker_command(
            build,
            MODEL,
            *("--cache", of["node"].grpc, "--cache.ca", ca, "--cache.server_name", "node"),
            *("--cache.cert", certificate, "--cache.key", key),
        ),
        "router": lambda of: router_command(
            build,
            MODEL,
            *("--workers", of["worker"].grpc, "--cache", of["node"].grpc, "--http.api_keys"),
            *(folder / "keys", "--cache_tls.ca", ca, "--cache_tls.server_name", "node"),
            *("--cache_tls.cert", certificate, "--cache_tls.key", key),
        ),
        "engines": lambda _: router_command(
            build,
            MODEL,
            *("--workers", engine, "--engines.events", f"{engine}=tcp://127.0.0.1:1"),
        ),
    }
    with contextlib.ExitStack() as stack:
        of = {}
        for name, command in commands_of.items():
            of[name] = stack.enter_context(Server(command(of), folder / f"{name}.log"))
        wait_until(
            lambda: of["worker"].metric("cairn_worker_cache_connected") == 1,
            PATIENCE,
            "the worker connects",
        )
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "IN_POD": "",
            "CACHE": f"unix:{socket}",
            "WORKER": of["worker"].grpc,
            "CACHE_ADMIN": of["node"].admin,
            "WORKER_ADMIN": of["worker"].admin,
            "ROUTER_ADMIN": of["router"].admin,
        }
        yield {name: {**variables, "ADMIN": one.admin} for name, one in of.items()}


def process_of(page):
    return "engines" if "Engine" in page else PROCESSES[FILES.get(page, "node")]


@pytest.mark.parametrize("name", ["hit-rate", *PAGES])
def test_the_commands_run_and_find_what_they_look_for(stand, name):
    for command in commands(TEXTS[name]):
        if command.startswith("kubectl "):
            continue
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=stand[process_of(name)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.stdout.strip(), f"{command}: {done.stderr}"
        assert done.returncode == 0, f"{command}: {done.stderr}"
        for one in patterns(command):
            assert re.search(one, done.stdout, flags=re.M), f"{command}: nothing is {one}"


def test_commands_between_backquotes_are_there(programs):
    found = sorted({c for text in TEXTS.values() for c in quoted(text, "cairn")})
    assert found
    for command in found:
        words = [w for w in shlex.split(command)[1:] if re.fullmatch("[a-z][a-z-]*", w)]
        done = subprocess.run(
            [programs / "cairn", *words, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and " ".join(words) in done.stdout, command


@pytest.mark.parametrize(
    "pattern, found",
    [("^a_(b|c)_d", ["^a_b_d", "^a_c_d"]), ("a|b", ["a", "b"]), ("^(a|b )", ["^a", "^b "])],
)
def test_each_alternative_of_a_pattern_counts(pattern, found):
    assert alternatives(pattern) == found
