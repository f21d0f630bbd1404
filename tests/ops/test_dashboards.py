"""Dashboards: generated, complete, valid for Grafana, and of the form that Grafana's own
dashboard-linter asks for. test_observability.py runs their queries."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from conftest import ROOT
from dashboard_files import DASHBOARDS, FOLDER, PANELS, concrete

CHOSEN = 'namespace=~"$namespace",job=~"$job",pod=~"$pod",instance=~"$instance"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
METRIC = r"\b(?:cairn|process)_\w+|\bup\b"
PAGES = [
    "operate/metrics.md",
    "operate/metrics-worker.md",
    "operate/metrics-router.md",
    "program/engines/vllm.md",
]
each_dashboard = pytest.mark.parametrize("uid", DASHBOARDS)


def documented():
    """Type of each metric by its name, from the first cells of the pages' tables. The connector's
    are all counters, and their table has no column for it."""
    found = {}
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text()
        for names, kind in re.findall(r"^\| (`(?:cairn|process)_[^|]*) \| (\w+)", text, flags=re.M):
            for name in re.findall(r"`(\w+)`", names):
                found[name] = "counter" if name.startswith("cairn_vllm_") else kind
    return found


TYPES = documented()


def metric(series):
    """The name of the metric that a series belongs to."""
    base = re.sub("_(bucket|count|sum)$", "", series)
    return base if TYPES.get(base) == "histogram" else series


def panels_of(uid):
    return [panel for owner, panel in PANELS if owner == uid]


def queries_of(uid):
    """Those of the panels, and the annotation's."""
    (starts,) = DASHBOARDS[uid]["annotations"]["list"]
    return [t["expr"] for p in panels_of(uid) for t in p["targets"]] + [starts["expr"]]


def shown():
    return {
        metric(name)
        for _, panel in PANELS
        for target in panel["targets"]
        for name in re.findall(METRIC, target["expr"])
    } - {"up"}


def test_the_committed_dashboards_are_the_generated_ones(tmp_path):
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    subprocess.run([sys.executable, tmp_path / "generate.py"], check=True)
    generated = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == generated


def test_every_metric_is_shown_or_there_is_a_reason_why_not():
    exceptions = yaml.safe_load((FOLDER / "not-shown.yaml").read_text())
    assert all(exceptions.values())
    assert set(TYPES) - shown() == set(exceptions)
    assert shown() <= set(TYPES)


def test_the_pages_are_read():
    """Otherwise the test above would say nothing."""
    kinds = set(TYPES.values())
    assert kinds == {"counter", "gauge", "histogram"}
    for prefix in ("cairn_tier", "cairn_link", "cairn_worker", "cairn_router", "cairn_vllm"):
        assert any(name.startswith(prefix) for name in TYPES)


def test_every_latency_is_a_heatmap_somewhere():
    drawn = {
        metric(name)
        for _, panel in PANELS
        if panel["type"] == "heatmap"
        for name in re.findall(METRIC, panel["targets"][0]["expr"])
    }
    latencies = {n for n, kind in TYPES.items() if kind == "histogram" and n.endswith("_seconds")}
    assert latencies and latencies <= drawn


def lost(before, after, path=""):
    """Paths in `before` whose values `after` has not."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line for key in before for line in lost(before[key], after.get(key), f"{path}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for i, (one, other) in enumerate(zip(before, after, strict=True))
            for line in lost(one, other, f"{path}[{i}]")
        ]
    return [] if before == after else [f"{path}: {before!r} became {after!r}"]


@each_dashboard
def test_grafanas_model_loses_nothing(uid):
    register_default_plugins()
    read = Dashboard.from_json(json.loads(json.dumps(DASHBOARDS[uid])))
    written = json.loads(json.dumps(read, cls=JSONEncoder))
    assert not lost(DASHBOARDS[uid], written)


def test_what_a_model_loses_is_found():
    assert lost({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}], "c": 4}) == [".a[1].b: 2 became 3"]


@each_dashboard
def test_a_dashboard_is_of_the_repository_and_refreshes_itself(uid):
    dashboard = DASHBOARDS[uid]
    assert dashboard["uid"] == uid and dashboard["title"].startswith("Cairn / ")
    assert dashboard["editable"] is False and dashboard["refresh"] == "30s"
    assert dashboard["description"] and dashboard["tags"] == ["cairn"]
    (link,) = dashboard["links"]
    assert (link["type"], link["tags"]) == ("dashboards", ["cairn"])
    assert link["includeVars"] and link["keepTime"]
    (starts,) = dashboard["annotations"]["list"]
    assert starts["enable"] and starts["useValueForTime"] and starts["datasource"] == SOURCE


@each_dashboard
def test_variables_choose_the_source_and_the_pods(uid):
    source, *labels = DASHBOARDS[uid]["templating"]["list"]
    expected = ("datasource", "Data source", "datasource", "prometheus")
    assert tuple(source[key] for key in ("name", "label", "type", "query")) == expected
    assert [v["name"] for v in labels] == ["namespace", "job", "pod", "instance"]
    for i, variable in enumerate(labels):
        name = variable["name"]
        assert (variable["type"], variable["label"]) == ("query", name.capitalize())
        assert variable["datasource"] == SOURCE and variable["refresh"] == 2
        assert variable["multi"] and variable["includeAll"]
        # Series without the label count only where there may be none.
        assert variable["allValue"] == (".+" if name in ("job", "instance") else ".*")
        earlier = "".join(f',{v["name"]}=~"${v["name"]}"' for v in labels[:i])
        assert re.fullmatch(
            rf"label_values\(\{{__name__=~\"[\w|]+\"{re.escape(earlier)}\}}, {name}\)",
            variable["query"],
        )


@each_dashboard
def test_ids_and_titles_are_unique_and_panels_do_not_overlap(uid):
    panels = DASHBOARDS[uid]["panels"]
    ids = [panel["id"] for panel in panels]
    titles = [panel["title"] for panel in panels]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24


@each_dashboard
def test_a_dashboard_begins_with_numbers_that_have_thresholds(uid):
    _, *panels = DASHBOARDS[uid]["panels"]
    first = [p["type"] for p in panels[:5]]
    assert first == ["stat"] * 5
    for panel in panels:
        if panel["type"] == "stat":
            steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            values = [step["value"] for step in steps[1:]]
            assert steps[0]["value"] is None and values == sorted(set(values))


@each_dashboard
def test_links_of_panels_lead_to_other_dashboards(uid):
    for panel in panels_of(uid):
        for link in panel.get("links", []):
            assert re.match(r"/d/([\w-]+)\?", link["url"])[1] in DASHBOARDS


@each_dashboard
def test_panels_have_what_the_linter_asks_for(uid):
    known = {value for name, value in vars(units).items() if not name.startswith("_")}
    for panel in panels_of(uid):
        fields = panel["fieldConfig"]
        overrides = [p["value"] for o in fields["overrides"] for p in o["properties"]]
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert {fields["defaults"]["unit"], *overrides} <= known, panel["title"]
        assert panel["targets"], panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == SOURCE, panel["title"]


@each_dashboard
def test_every_query_is_of_the_chosen_pods(uid):
    for expr in queries_of(uid):
        metrics = re.findall(METRIC, expr)
        assert metrics and expr.count("{" + CHOSEN) == len(metrics), expr


@each_dashboard
def test_counters_are_rates_over_grafanas_interval(uid):
    for expr in queries_of(uid):
        for name in set(re.findall(METRIC, expr)):
            if TYPES.get(metric(name)) in ("counter", "histogram"):
                bare = re.findall(rf"(?<!rate\()(?<!increase\()\b{name}\b", expr)
                assert not bare, f"{name} outside rate() and increase(): {expr}"
        assert set(re.findall(r"rate\([^\[]*\[([^\]]*)\]", expr)) <= {"$__rate_interval"}, expr


def test_every_query_parses(tmp_path):
    """As Prometheus reads it."""
    queries = [expr for uid in DASHBOARDS for expr in queries_of(uid)]
    rules = [{"record": f"query:{i}", "expr": concrete(query)} for i, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout
