"""Workers that an autoscaler of the chart adds and removes, while requests come."""

import pytest

from cairn_cluster import PLAINTEXT, Load, metric, start
from test_cluster_release import Caller

# Callers: so many that there is always a request for each of the three workers, also while a slow
# machine keeps most of the callers from asking.
BUSY = 12
# One worker for each request. The use of processors is measured, too, and never asks for more.
METRICS = [
    {
        "type": "Pods",
        "pods": {
            "metric": {"name": "cairn_worker_running_requests"},
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    },
    {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 900}},
    },
]
VALUES = {
    **PLAINTEXT,
    "worker": {
        "enabled": True,
        "autoscaling": {"enabled": True, "maxReplicas": 3, "metrics": METRICS},
    },
    "router": {"enabled": True, "modelId": "m", "policy": "round_robin", "announceSeconds": 2},
}


@pytest.fixture
def release(networks, chart, programs, tmp_path):
    made = start(chart, tmp_path, programs, lag=1.0, haste=100)
    yield made
    made.cluster.close()


def workers(release):
    label = "app.kubernetes.io/component"
    return [p for p in release.cluster.pods() if p.labels.get(label) == "worker"]


def replicas(release):
    return release.cluster.objects.find("StatefulSet", "test-worker")["spec"].get("replicas", 1)


def served(release, worker):
    return metric(release, worker, 7501, "cairn_worker_requests_total", 'result="completed"')


def test_workers_come_under_load_and_go_after_it(release):
    release.upgrade(VALUES)
    cluster = release.cluster
    caller = Caller(cluster, https=False, tokens=200)
    caller.learn()
    load = Load(cluster, caller, threads=BUSY)
    cluster.wait(lambda: replicas(release) == 3, "an autoscaler that asks for three workers", 60)
    cluster.wait_settled()
    three = workers(release)
    assert len(three) == 3
    cluster.wait(lambda: all(served(release, w) for w in three), "requests at all of them", 30)
    release.upgrade(VALUES)
    assert replicas(release) == 3  # It has no number of its own.
    # One caller goes on.
    few = Load(cluster, caller, threads=1)
    load.stop()
    cluster.wait(lambda: replicas(release) == 1, "an autoscaler that asks for one worker", 60)
    cluster.wait_settled()
    assert [w.name for w in workers(release)] == ["test-worker-0"]
    done = few.done
    cluster.wait(lambda: few.done > done + 3, "requests at the worker that is left", 30)
    few.stop()
    assert load.failures + few.failures == [], cluster.report()
    assert cluster.notes == []
