"""Alert rules: promtool accepts them, and each fires for what it is about and for nothing else."""

import re
import subprocess

import pytest
import yaml

from runbook_pages import RULES, alerts, metric_rows, series_of

# The labels that a scrape gives each series of a pod, which notifications go by.
TARGET = {"instance": "10.0.0.1:7401", "namespace": "kv", "pod": "cairn-cache-0"}
# By alert: a series that makes it fire, its values then and in health, and how long it takes.
CASES = {
    "CairnProcessDown": ("up{}", "0", "1", "3m"),
    "CairnProcessNotReady": ('cairn_node_state{state="ready"}', "0", "1", "12m"),
    "CairnDrainHangs": ('cairn_node_state{state="draining"}', "1", "0", "6m"),
    "CairnCertificateEnds": (
        'cairn_tls_cert_expiry_timestamp_seconds{cert="server"}',
        "500000",
        "700000",
        "12m",
    ),
    "CairnTlsFilesRefused": ('cairn_tls_files_refused{cert="server"}', "1", "0", "12m"),
    "CairnPolicyRefused": ("cairn_auth_policy_refused{}", "1", "0", "12m"),
    "CairnLogLinesLost": ('cairn_log_lost_lines_total{reason="full"}', "0 0 0 1x60", "5", "5m"),
    "CairnPollerHangs": ("cairn_rpc_poller_busy_seconds{}", "4", "1", "2m"),
    "CairnDiskFails": ('cairn_tier_io_errors_total{tier="disk"}', "0 0 0 1x60", "5", "5m"),
    "CairnDiskCopiesStall": ("cairn_copy_stalls_total{}", "0 0 0 1x60", "5", "5m"),
    "CairnDiskCopiesLate": ("cairn_late_copies_total{}", "0+90x60", "0+30x60", "20m"),
    "CairnDiskCopiesFail": ("cairn_failed_copies_total{}", "0 0 0 1x60", "5", "5m"),
    "CairnChecksumsFail": ("cairn_checksum_failures_total{}", "0 0 0 1x60", "5", "5m"),
    "CairnDiskDamaged": ("cairn_disk_scrub_failures_total{}", "0 0 0 1x60", "5", "5m"),
    "CairnMemoryRefused": ('cairn_memory_refusals_total{item="rpc"}', "0+10x60", "0+3x60", "20m"),
    "CairnCallsRefused": (
        'cairn_rpc_rejected_total{reason="overload"}',
        "0+90x60",
        "0+30x60",
        "20m",
    ),
    "CairnGpuLost": ('cairn_device_up{device="cuda:0"}', "0", "1", "2m"),
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
    "CairnWorkerMemoryRefused": (
        'cairn_worker_memory_refusals_total{item="near"}',
        "0+10x60",
        "0+3x60",
        "20m",
    ),
    "CairnWorkerParksOften": ("cairn_worker_parked_total{}", "0+10x60", "7", "20m"),
    "CairnWorkerBreakerOpen": ("cairn_worker_cache_breaker_open{}", "1", "0", "3m"),
    "CairnWorkerWithoutCache": ("cairn_worker_cache_connected{}", "0", "1", "6m"),
    "CairnRouterWithoutWorkers": ('cairn_router_workers{condition="ready"}', "0", "1", "2m"),
    "CairnRouterMissesWorkers": ('cairn_router_workers{condition="waiting"}', "1", "0", "12m"),
    "CairnRouterSheds": ('cairn_router_requests_total{result="shed"}', "0+6x60", "0+1x60", "12m"),
    "CairnRouterTriesAgain": ("cairn_router_tries_again_total{}", "0+9x60", "0+3x60", "20m"),
    "CairnRouterPrefillsFail": (
        "cairn_router_failed_prefills_total{}",
        "0+9x60",
        "0+3x60",
        "20m",
    ),
    "CairnRouterStreamsBreak": (
        'cairn_router_requests_total{result="broken"}',
        "0 0 0 1x60",
        "5",
        "5m",
    ),
    "CairnRouterMemoryRefused": (
        'cairn_router_memory_refusals_total{item="bodies"}',
        "0+10x60",
        "0+3x60",
        "20m",
    ),
    "CairnRouterIndexNearlyFull": ("cairn_router_index_bytes{}", "95", "80", "40m"),
    "CairnRouterIndexBlind": ("cairn_router_index_members{}", "0", "1", "6m"),
    "CairnRouterLosesEngineEvents": (
        'cairn_router_engine_event_streams{condition="lost"}',
        "1",
        "0",
        "6m",
    ),
    "CairnRouterIgnoresEngineBlocks": (
        'cairn_router_engine_skipped_blocks_total{reason="block_size"}',
        "0+10x60",
        "7",
        "30m",
    ),
    "CairnRouterSlow": (
        'cairn_router_prepare_seconds_bucket{le="0.1"}',
        "0+5x60",
        "7+100x60",
        "20m",
    ),
    "CairnRouterKeysStale": ('cairn_router_keys_stale{setting="http.api_keys"}', "1", "0", "2m"),
    "CairnDirectoryFull": ("cairn_cluster_directory_forgotten_total{}", "0+10x60", "7", "20m"),
}

# Series that an alert needs in addition to the one of its case.
BESIDES = {
    "CairnProcessDown": {"cairn_build_info{}": "1x60"},
    "CairnRouterSheds": {'cairn_router_requests_total{result="completed"}': "0+100x60"},
    "CairnRouterTriesAgain": {'cairn_router_requests_total{result="completed"}': "0+100x60"},
    "CairnRouterPrefillsFail": {"cairn_router_paired_total{}": "0+100x60"},
    "CairnRouterIndexNearlyFull": {"cairn_router_index_max_bytes{}": "100x60"},
    "CairnRouterSlow": {
        'cairn_router_prepare_seconds_bucket{le="0.25"}': "7+100x60",
        'cairn_router_prepare_seconds_bucket{le="+Inf"}': "7+100x60",
    },
}


def of_target(series):
    name, labels = series.rstrip("}").split("{")
    target = ",".join(f'{label}="{value}"' for label, value in TARGET.items())
    return f"{name}{{{labels + ',' if labels else ''}{target}}}"


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
        assert rule["annotations"]["runbook_url"] == f"docs/operate/runbooks/{rule['alert']}.md"
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_alerts_use_metrics_that_are_documented():
    for _, rule in alerts():
        used = {series_of(name) for name in re.findall(r"cairn_\w+", rule["expr"])}
        assert used <= set(metric_rows()), rule["alert"]


@pytest.mark.parametrize("alert", CASES)
def test_the_alert_fires_for_its_cause_alone(alert, tmp_path):
    series, bad, good, after = CASES[alert]
    path, rule = next((p, r) for p, r in alerts() if r["alert"] == alert)

    def case(value, fires):
        values = value if "x" in value else f"{value}x60"
        series_of_case = {series: values, **BESIDES.get(alert, {})}
        expected = []
        if fires:
            labels = {**TARGET, "severity": rule["labels"]["severity"]}
            if " by (" not in rule["expr"]:
                labels |= dict(re.findall(r'(\w+)="([^"]*)"', series))
            expected = [{"exp_labels": labels}]
        return {
            "interval": "1m",
            "input_series": [
                {"series": of_target(name), "values": v} for name, v in series_of_case.items()
            ],
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
