"""A real Prometheus scrapes a real node, worker and router under a small load; every dashboard
query returns data from them."""

import importlib
import json
import re
import subprocess
import sys
import time
import urllib.request

import pytest
import yaml

from conftest import ROOT
from monitoring import Prometheus
from runbook_pages import HIT_RATE

sys.path.insert(0, str(ROOT / "benchmarks"))
# Needs the path above.
from rows.processes import (  # noqa: E402
    Server,
    cairn,
    node_command,
    router_command,
    wait_until,
    worker_command,
)

MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
# Limit for waiting, in seconds: the machine may be busy with other things.
PATIENCE = 300
# Panels that stay empty as long as nothing goes wrong, or with the default policy; their queries
# must still be accepted.
MAY_BE_EMPTY = {"Refused RPCs", "Uses per block and hour"}


def dashboard_module():
    folder = str(ROOT / "helm/cairn/files/dashboards")
    sys.path.insert(0, folder)  # The names of the modules that it imports.
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(folder)


def panels():
    return [p for p in dashboard_module().dashboard()["panels"] if p["type"] != "row"]


def start_prometheus(folder, admin_ports):
    """With the shipped configuration pointed at our ports: `admin_ports` has HOST:PORT by job."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"]["scrape_interval"] = "1s"
    for job in config["scrape_configs"]:
        job["static_configs"][0]["targets"] = [admin_ports[job["job_name"]]]
    return Prometheus(folder, config)


def chat(router, text):
    """One chat over the router's HTTP API; its usage."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"http://{router.http}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)["usage"]


def is_ready(server):
    try:
        with urllib.request.urlopen(f"http://{server.admin}/readyz", timeout=PATIENCE) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def observed(programs, tmp_path_factory):
    """(prometheus, start of the load, services by job): all have served a prompt several times, and
    were scraped meanwhile."""
    folder = tmp_path_factory.mktemp("observed")
    build = programs.parent
    log = folder / "services.log"
    with (
        Server(
            node_command(build, "--host.capacity", "128MiB", "--disk.path", folder / "disk"), log
        ) as node,
        Server(
            worker_command(
                build,
                MODEL,
                "--cache",
                node.grpc,
                "--cache.path",
                "grpc",
                "--cache.match_deadline",
                "2s",
                "--cache.stall_deadline",
                "2s",
            ),
            log,
        ) as worker,
        Server(
            router_command(build, MODEL, "--workers", worker.grpc, "--cache", node.grpc), log
        ) as router,
    ):
        services = {"cairn-cache": node, "cairn-worker": worker, "cairn-router": router}
        prometheus = start_prometheus(folder, {job: s.admin for job, s in services.items()})
        try:
            wait_until(prometheus.ready, PATIENCE, "prometheus scrapes all")
            start = time.time()
            prompt = folder / "prompt.txt"
            prompt.write_text((ROOT / "examples/demo/system.txt").read_text() * 3)
            ask = (
                "generate",
                "--worker",
                worker.grpc,
                "--raw",
                "--prompt-file",
                prompt,
                "--max-tokens",
                8,
                "--temperature",
                0,
            )
            wait_until(
                lambda: worker.metric("cairn_worker_cache_connected") == 1,
                PATIENCE,
                "worker connects",
            )
            cairn(build, *ask)
            wait_until(
                lambda: cairn(build, "stat", "--cache", node.grpc)["blocks"] > 0,
                PATIENCE,
                "blocks are pushed",
            )
            wait_until(
                lambda: worker.metric("cairn_worker_push_queue_blocks") == 0,
                PATIENCE,
                "pushes end",
            )
            assert cairn(build, *ask)["fetched_tokens"] > 0

            wait_until(lambda: is_ready(router), PATIENCE, "the router sees its worker")

            def rates_are_seen():
                cairn(build, *ask)
                chat(router, prompt.read_text())
                return all(
                    max(prometheus.values(f"sum(rate({counter}[10s]))", start), default=0) > 0
                    for counter in (
                        "cairn_tokens_saved_total",
                        "cairn_worker_ttft_seconds_count",
                        "cairn_router_ttft_seconds_count",
                        "cairn_router_http_answers_total",
                    )
                )

            wait_until(rates_are_seen, PATIENCE, "prometheus sees the load's rates")
            yield prometheus, start, services
        finally:
            prometheus.stop()


def concrete(expr):
    for name, text in [("namespace", ".*"), ("job", ".*"), ("instance", ".*")]:
        expr = expr.replace(f"${name}", text)
    return expr.replace("$__rate_interval", "10s")


def test_the_committed_dashboard_is_the_generated_one():
    module = dashboard_module()
    assert (ROOT / "helm/cairn/files/dashboards/cairn-node.json").read_text() == module.text()


@pytest.mark.parametrize("panel", panels(), ids=lambda p: p["title"])
def test_every_query_is_of_the_chosen_pods(panel):
    selector = 'namespace=~"$namespace",job=~"$job",instance=~"$instance"'
    for target in panel["targets"]:
        metrics = re.findall(r"\b(?:cairn|process)_\w+", target["expr"])
        assert metrics and target["expr"].count(selector) == len(metrics)


@pytest.mark.parametrize("panel", panels(), ids=lambda p: p["title"])
def test_every_panel_has_a_unit_a_description_and_rates_of_counters(panel):
    assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        for counter in re.findall(r"(?<![a-z_])[a-z_]+_total\b", target["expr"]):
            assert re.search(r"(rate|increase)\(" + counter, target["expr"]), (
                f"{counter} outside rate()"
            )


@pytest.mark.parametrize("panel", panels(), ids=lambda p: p["title"])
def test_every_query_returns_data(observed, panel):
    prometheus, start, _ = observed
    for target in panel["targets"]:
        values = prometheus.values(concrete(target["expr"]), start)
        assert values or panel["title"] in MAY_BE_EMPTY, target["expr"]


@pytest.mark.parametrize(
    "query", [q for b in re.findall(r"```promql\n(.*?)```", HIT_RATE, re.S) for q in b.splitlines()]
)
def test_every_query_of_the_page_on_the_hit_rate_returns_data(observed, query):
    prometheus, start, _ = observed
    assert prometheus.values(query, start)


def test_panels_that_the_page_on_the_hit_rate_names_exist():
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", HIT_RATE))
    assert len(named) > 5 and named <= {p["title"] for p in panels()}


def test_the_hit_ratio_shows_the_hits(observed):
    prometheus, start, _ = observed
    hit_ratio = next(p for p in panels() if p["title"] == "Token hit ratio")["targets"][0]["expr"]
    assert 0 < max(prometheus.values(concrete(hit_ratio), start)) <= 1


@pytest.mark.parametrize("metric, values", [("workers", {0, 1}), ("index_members", {1})])
def test_the_router_sees_the_worker_and_the_node(observed, metric, values):
    prometheus, _, _ = observed
    assert set(prometheus.values(f"cairn_router_{metric}", time.time())) == values


@pytest.mark.parametrize("job", ["cairn-cache", "cairn-router"])
def test_promtool_finds_nothing_to_improve_in_the_metrics(observed, job):
    _, _, services = observed
    with urllib.request.urlopen(
        f"http://{services[job].admin}/metrics", timeout=PATIENCE
    ) as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
