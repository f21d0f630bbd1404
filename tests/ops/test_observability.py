"""A real Prometheus scrapes real nodes, workers and routers under a small load; every dashboard
query returns data from them."""

import re
import shutil
import subprocess
import time
import urllib.request
import xml.etree.ElementTree

import pytest

from conftest import ROOT
from dashboard_files import DASHBOARDS, NAMES, PANELS, concrete
from observed_world import PATIENCE, observed_world
from runbook_pages import HIT_RATE

# Panels that may stay empty, by the reason. Prometheus must still accept their queries.
MAY_BE_EMPTY = {
    "no engine with the connector runs": [
        "cairn-router: Found share of blocks",
        "cairn-router: Look-ups",
        "cairn-router: Mean time of look-ups, loads and saves",
        "cairn-router: Loaded and stored bytes",
        "cairn-router: Loads",
        "cairn-router: Blocks of loads and saves",
        "cairn-router: Requests that compute although they could load",
        "cairn-router: Requests without a right key",
        "cairn-router: Exceptions of the connector",
    ],
    "no call fails in a healthy system": [
        "cairn-node: Calls that did not end in OK",
        "cairn-workers: Calls that did not end in OK",
        "cairn-router: Calls that did not end in OK",
        "cairn-security: Calls without permission",
    ],
    "nobody calls the router over gRPC": ["cairn-router: Time of calls by method, p99"],
    "no block has to make room": ["cairn-node: Age of evicted blocks"],
    "no match waits for a writer": ["cairn-node: How long matches wait for a writer"],
    "the policy has not learned yet": ["cairn-node: Uses per block and hour"],
    "the recipe raw encodes nothing": ["cairn-workers: How many times smaller codecs make KV"],
}
EMPTY = [name for names in MAY_BE_EMPTY.values() for name in names]


def query(uid, title):
    """The first one of a panel."""
    (panel,) = (p for owner, p in PANELS if (owner, p["title"]) == (uid, title))
    return panel["targets"][0]["expr"]


@pytest.fixture(scope="module")
def world(programs, tmp_path_factory):
    if not shutil.which("prometheus"):
        pytest.fail("prometheus is not installed: run tools/setup/setup.sh")
    with observed_world(programs.parent, tmp_path_factory.mktemp("observed")) as made:
        yield made


def test_only_panels_that_exist_may_be_empty():
    assert set(EMPTY) <= set(NAMES)


@pytest.mark.parametrize(
    ("name", "panel"), list(zip(NAMES, [p for _, p in PANELS], strict=True)), ids=NAMES
)
def test_every_query_returns_data(world, name, panel):
    for target in panel["targets"]:
        values = world.prometheus.values(concrete(target["expr"]), world.start)
        assert values or name in EMPTY, target["expr"]


@pytest.mark.parametrize(
    "query", [q for b in re.findall(r"```promql\n(.*?)```", HIT_RATE, re.S) for q in b.splitlines()]
)
def test_every_query_of_the_page_on_the_hit_rate_returns_data(world, query):
    assert world.prometheus.values(query, world.start)


def test_queries_of_the_page_on_the_hit_rate_keep_processes_apart():
    """As the rules do: with deploy/prometheus there is no label `pod`."""
    groups = re.findall(r"\bby \(([^)]*)\)", HIT_RATE)
    assert len(groups) > 5
    for group in groups:
        assert group.split(", ")[:3] == ["namespace", "pod", "instance"], group


def test_panels_that_the_page_on_the_hit_rate_names_exist():
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", HIT_RATE))
    assert len(named) > 5 and named <= {panel["title"] for _, panel in PANELS}


def test_the_variables_offer_what_there_is(world):
    """And pods only in Kubernetes."""
    found = {}
    for variable in DASHBOARDS["cairn-overview"]["templating"]["list"][1:]:
        series, name = (
            variable["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ")
        )
        found[name] = set(
            world.prometheus.get(f"/api/v1/label/{name}/values", **{"match[]": concrete(series)})
        )
    assert found == {
        "namespace": set(),
        "job": set(world.services),
        "pod": set(),
        "instance": {one.admin for some in world.services.values() for one in some},
    }


def test_one_chosen_instance_shows_that_alone(world):
    worker = world.services["cairn-worker"][0].admin
    expr = query("cairn-overview", "Resident memory")
    series = world.prometheus.series(concrete(expr, worker), world.start)
    assert [labels["instance"] for labels, _ in series] == [worker]


def test_starts_of_processes_are_at_their_time(world):
    """In milliseconds, as Grafana takes a value for a time, and with the version."""
    (starts,) = DASHBOARDS["cairn-overview"]["annotations"]["list"]
    series = world.prometheus.series(concrete(starts["expr"]), world.start)
    assert len(series) == sum(map(len, world.services.values()))
    for labels, samples in series:
        assert labels["version"]
        assert all(world.start - PATIENCE < value / 1000 <= world.start for _, value in samples)


def test_the_hit_ratio_shows_the_hits(world):
    hit_ratio = query("cairn-overview", "Token hit ratio")
    assert 0 < max(world.prometheus.values(concrete(hit_ratio), world.start)) <= 1


def test_a_wrong_key_is_counted(world):
    wrong = query("cairn-security", "Requests with a wrong key")
    assert max(world.prometheus.values(concrete(wrong), world.start)) > 0


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_is_drawn(world, uid, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/images"))
    import dashboard_svg

    answers = dashboard_svg.answers_of(DASHBOARDS[uid], world)
    image = dashboard_svg.draw(DASHBOARDS[uid], answers, world.start, time.time())
    texts = [node.text for node in xml.etree.ElementTree.fromstring(image).iter()]
    assert {panel["title"] for panel in DASHBOARDS[uid]["panels"]} <= set(texts)


def test_a_time_is_drawn_as_a_day(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/images"))
    import dashboard_svg

    assert dashboard_svg.number(1.8e12, "dateTimeAsIso") == "2027-01-15"
    assert dashboard_svg.number(90 * 86400, "s") == "90 days"


def test_the_router_sees_workers_and_nodes(world):
    router = world.services["cairn-router"][0].admin

    def now(metric):
        return world.prometheus.values(f'{metric}{{instance="{router}"}}', time.time())

    assert set(now("cairn_router_workers")) == {0, 2}
    assert now("cairn_router_index_members") == [3]


def test_nodes_and_routers_say_when_certificates_end(world):
    ends = world.prometheus.series("cairn_tls_cert_expiry_timestamp_seconds", time.time())
    assert {labels["job"] for labels, _ in ends} == {"cairn-cache", "cairn-router"}


def test_a_scrape_has_few_series(world):
    """With a disk, a GPU, a cluster and a picker."""
    scraped = world.prometheus.values("scrape_samples_scraped", time.time())
    assert len(scraped) == sum(map(len, world.services.values()))
    assert max(scraped) <= 2500


@pytest.mark.parametrize("job", ["cairn-cache", "cairn-worker", "cairn-router"])
def test_promtool_finds_nothing_to_improve_in_the_metrics(world, job):
    for service in world.services[job]:
        with urllib.request.urlopen(f"http://{service.admin}/metrics", timeout=PATIENCE) as answer:
            text = answer.read()
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=text,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
