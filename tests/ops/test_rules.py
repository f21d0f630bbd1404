"""Alert rules: promtool accepts them, and each fires for what it is about and for nothing else."""

import re
import subprocess

import pytest
import yaml

from conftest import ROOT

RULES = ROOT / "helm/cairn/files/rules"
INSTANCE = 'instance="node-0:7401"'
# By alert: a series that makes it fire, one of a healthy node, and how long it takes.
CASES = {
    "CairnMemberAbsent": ('cairn_cluster_members{state="absent"}', "1", "0", "3m"),
    "CairnClusterViewsDiffer": ('cairn_cluster_members{state="other_view"}', "2", "0", "3m"),
    "CairnBumpsDiffer": ('cairn_cluster_members{state="other_bumps"}', "1", "0", "2m"),
    "CairnNodeReplaced": ("cairn_cluster_replaced{}", "1", "0", "2m"),
    "CairnMemberSendsWrongBytes": ('cairn_cluster_members{state="sent_wrong"}', "1", "0", "1m"),
    "CairnDiscoveryDown": ("cairn_cluster_discovery_up{}", "0", "1", "6m"),
    "CairnAnnouncementsLate": ("cairn_cluster_announcing_members{}", "1", "0", "6m"),
    "CairnWorkerBehind": ("cairn_worker_prefill_backlog_seconds{}", "45", "20", "6m"),
    "CairnWorkerRefusesRequests": (
        'cairn_worker_requests_total{result="refused"}',
        "0+10x60",
        "7",
        "20m",
    ),
    "CairnWorkerParksOften": ("cairn_worker_parked_total{}", "0+10x60", "7", "20m"),
    "CairnWorkerWithoutCache": ("cairn_worker_cache_connected{}", "0", "1", "6m"),
    "CairnDirectoryFull": ("cairn_cluster_directory_forgotten_total{}", "0+10x60", "7", "20m"),
}


def alerts():
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield path, rule


def with_instance(series):
    name, labels = series.rstrip("}").split("{")
    return f"{name}{{{labels + ',' if labels else ''}{INSTANCE}}}"


def run_promtool(*arguments, cwd):
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize("path", sorted(RULES.glob("*.yaml")), ids=lambda p: p.name)
def test_promtool_accepts_the_rules(path):
    done = run_promtool("check", "rules", path, cwd=RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case():
    assert {rule["alert"] for _, rule in alerts()} == set(CASES)


def test_each_alert_says_what_it_means():
    for _, rule in alerts():
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_alerts_use_metrics_that_are_documented():
    pages = [(ROOT / "docs" / name).read_text() for name in ("metrics.md", "metrics-worker.md")]
    documented = set(re.findall(r"`(cairn_\w+)`", "".join(pages)))
    for _, rule in alerts():
        used = set(re.findall(r"cairn_\w+", rule["expr"]))
        assert used <= documented, f"{rule['alert']}: {used - documented}"


@pytest.mark.parametrize("alert", CASES)
def test_the_alert_fires_for_its_cause_alone(alert, tmp_path):
    series, bad, good, after = CASES[alert]
    path, rule = next((p, r) for p, r in alerts() if r["alert"] == alert)

    def case(value, fires):
        values = value if "x" in value else f"{value}x60"
        expected = []
        if fires:
            labels = {"instance": "node-0:7401", "severity": rule["labels"]["severity"]}
            if "state" in series:
                labels["state"] = re.search(r'state="(\w+)"', series)[1]
            expected = [{"exp_labels": labels}]
        return {
            "interval": "1m",
            "input_series": [{"series": with_instance(series), "values": values}],
            "alert_rule_test": [{"eval_time": after, "alertname": alert, "exp_alerts": expected}],
        }

    # promtool compares annotations, too: those that the rule makes are taken from the rule.
    bare = yaml.safe_load(path.read_text())
    for group in bare["groups"]:
        for one in group["rules"]:
            del one["annotations"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(bare))
    tests = {"rule_files": ["rules.yaml"], "tests": [case(bad, True), case(good, False)]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tests))
    done = run_promtool("test", "rules", "test.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
