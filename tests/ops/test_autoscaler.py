"""The small cluster's autoscaler computes what Kubernetes does. Its clock here is a number."""

import pytest

from rendered_chart import TLS, WORKER, find, merged, render
from small_cluster.autoscaler import Decision, pods_for, quantity


@pytest.mark.parametrize(
    ("current", "values", "unready", "missing", "expected"),
    [
        (2, [100, 100], 0, 0, 4),
        (3, [100, 40, 40], 0, 0, 4),
        (3, [20, 20, 20], 0, 0, 2),
        (4, [10, 10, 10, 10], 0, 0, 1),
        # Within a tenth of the target.
        (3, [54, 55, 54], 0, 0, 3),
        (3, [46, 45, 46], 0, 0, 3),
        (3, [57, 57, 57], 0, 0, 4),
        # A pod that is not ready is idle if there must be more, and else as if it was not there.
        (3, [100, 100], 1, 0, 4),
        (3, [60, 60], 1, 0, 3),
        (3, [20, 20], 1, 0, 1),
        # A pod that nobody has measured is idle if there must be more, and busy if fewer.
        (3, [100, 100], 0, 1, 4),
        (3, [60, 60], 0, 1, 3),
        (3, [20, 20], 0, 1, 3),
        (4, [5, 5, 5], 0, 1, 3),
        # Nothing is known.
        (3, [], 3, 0, None),
    ],
)
def test_pods_that_a_metric_asks_for(current, values, unready, missing, expected):
    assert pods_for(current, values, unready, missing, target=50, full=100) == expected


def course(spec, current, proposals):
    """The pods after each of {seconds: proposal}."""
    decision, found = Decision(spec), []
    for now, proposal in proposals.items():
        current = decision.pods(current, proposal, now)
        found.append(current)
    return found


def test_bounds():
    spec = {"minReplicas": 2, "maxReplicas": 4}
    assert course(spec, 1, {0: 1}) == [2]
    assert course(spec, 9, {0: 9}) == [4]
    assert course(spec, 3, {0: 100}) == [4]
    assert course(spec, 0, {0: 3}) == [0]
    assert course(spec, 3, {0: None}) == [3]


def test_pods_come_by_four_or_twice_as_many_in_15_s():
    spec = {"maxReplicas": 100}
    asked = {0: 90, 10: 90, 15: 90, 30: 90, 45: 90, 60: 90}
    assert course(spec, 1, asked) == [5, 5, 10, 20, 40, 80]


def test_pods_go_when_fewer_were_enough_for_five_minutes():
    spec = {"maxReplicas": 10}
    assert course(spec, 8, {0: 2, 299: 2, 300: 2}) == [8, 8, 2]
    # One proposal of more in that time is enough to keep them.
    assert course(spec, 8, {0: 2, 200: 7, 301: 2, 499: 2, 500: 2}) == [8, 8, 7, 7, 2]


def test_the_chart_lets_one_pod_go_in_a_minute(chart):
    more = {"worker": {"autoscaling": {"enabled": True, "maxReplicas": 20}}}
    docs = render(chart, merged({**TLS, **WORKER}, more))
    spec = find(docs, "HorizontalPodAutoscaler", "test-worker")["spec"]
    assert spec["scaleTargetRef"]["name"] == "test-worker"
    asked = {0: 1, 300: 1, 330: 1, 360: 1, 420: 1, 480: 1}
    assert course(spec, 4, asked) == [4, 3, 3, 2, 1, 1]
    assert "replicas" not in find(docs, "Deployment", "test-worker")["spec"]


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("500m", 0.5), ("1.5", 1.5), ("1k", 1000), ("2Mi", 2 << 20)]
)
def test_quantities(text, value):
    assert quantity(text) == value
