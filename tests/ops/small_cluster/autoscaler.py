"""HorizontalPodAutoscalers: their arithmetic, and what they measure of pods.

    desired = ceil(pods x mean value / target), not if mean / target is within a tenth of 1

The arithmetic is that of Kubernetes 1.33 (pkg/controller/podautoscaler, horizontal.go and
replica_calculator.go). Metrics are the use of processors, as the metrics server tells it, and what
pods export themselves, as Prometheus' adapter tells it: the sum of a metric's series of a pod.
"""

import collections
import fractions
import http.client
import math
import os
import re
import time

TOLERANCE = 0.1
SYNC = 15.0  # Seconds between two looks.
UNITS = {"m": fractions.Fraction(1, 1000), "": 1, "k": 1000, "M": 10**6}
UNITS.update({"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30})
UP = {
    "stabilizationWindowSeconds": 0,
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
DOWN = {
    "stabilizationWindowSeconds": 300,
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


def quantity(text):
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return float(fractions.Fraction(number) * UNITS[unit])


def pods_for(current, values, unready, missing, target, full):
    """The number of pods that a metric asks for; None: there is no value.

    `current`: pods that there should be. `values`: of the pods that count and were measured.
    `unready`: how many do not count yet. They are idle if there must be more pods. `missing`: how
    many count and were not measured. They are idle if there must be more, and have the value `full`
    if there may be fewer.
    """
    if not values:
        return None
    ratio = sum(values) / len(values) / target
    if not missing and not (unready and ratio > 1):
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * len(values))
    every = list(values)
    if ratio > 1:
        every += [0] * (unready + missing)
    elif ratio < 1:
        every += [full] * missing
    again = sum(every) / len(every) / target
    if abs(again - 1) <= TOLERANCE or (again < 1) != (ratio < 1):
        return current
    wanted = math.ceil(again * len(every))
    # Pods without a value do not turn the direction around.
    return max(wanted, current) if again > 1 else min(wanted, current)


class Decision:
    """What becomes of proposals over time: bounds, stabilization and policies. `now` are seconds of
    any clock."""

    def __init__(self, spec):
        behavior = spec.get("behavior") or {}
        self._least, self._most = spec.get("minReplicas", 1), spec["maxReplicas"]
        self._up = {**UP, **(behavior.get("scaleUp") or {})}
        self._down = {**DOWN, **(behavior.get("scaleDown") or {})}
        for rules in (self._up, self._down):
            if rules.get("selectPolicy", "Max") != "Max":
                raise NotImplementedError("selectPolicy: expected Max")
        self._proposals = collections.deque(maxlen=1000)  # (when, pods)
        self._changes = collections.deque(maxlen=1000)  # (when, pods more)

    def pods(self, current, proposal, now):
        """The number of pods from now on. `proposal`: None if no metric has a value."""
        if current == 0:
            return 0  # Somebody has turned it off.
        if not self._proposals:
            self._proposals.append((now, current))
        if current > self._most or current < self._least:
            wanted = min(max(current, self._least), self._most)
        elif proposal is None:
            wanted = current
        else:
            wanted = self._bounded(current, self._stable(current, proposal, now), now)
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _stable(self, current, proposal, now):
        """The least of the proposals that ask for more, and the most of those for fewer."""

        def since(rules):
            start = now - rules["stabilizationWindowSeconds"]
            return [proposal] + [pods for when, pods in self._proposals if when > start]

        least, most = min(since(self._up)), max(since(self._down))
        self._proposals.append((now, proposal))
        return min(max(current, least), most)

    def _bounded(self, current, wanted, now):
        if wanted > current:
            limits = [self._limit(current, p, now, 1) for p in self._up["policies"]]
            return min(wanted, self._most, max([current, *limits]))
        if wanted < current:
            limits = [self._limit(current, p, now, -1) for p in self._down["policies"]]
            return max(wanted, self._least, min([current, *limits]))
        return current

    def _limit(self, current, policy, now, sign):
        """Pods that the policy allows at most, or at least: from those at its period's start."""
        begin = now - policy["periodSeconds"]
        start = current - sum(more for when, more in self._changes if when > begin)
        if policy["type"] == "Pods":
            return start + sign * policy["value"]
        share = start * (1 + sign * policy["value"] / 100)
        return math.ceil(share) if sign > 0 else int(share)


class Processors:
    """Processors that pods use, from one look to the next."""

    def __init__(self):
        self._before = {}  # A pod's uid: (when, seconds of its processes)

    def used(self, pods):
        """{pod: processors}, without pods that were not there at the last look."""
        now = {p.uid: (time.monotonic(), self._seconds(p)) for p in pods}
        used = {}
        for pod in pods:
            if pod.uid in self._before:
                (start, before), (end, after) = self._before[pod.uid], now[pod.uid]
                # A container that started again begins at 0.
                used[pod] = max(0.0, after - before) / (end - start)
        self._before = now
        return used

    def _seconds(self, pod):
        ticks = 0
        for container in pod.inits + pod.containers:
            process = container.process
            try:
                with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
                    fields = file.read().rpartition(")")[2].split()
            except (AttributeError, OSError):
                continue  # It does not run.
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def exported(pod, name):
    """The sum of the series of a metric that a pod exports; None: it says nothing about it."""
    found = []
    for port in [p for c in pod.inits + pod.containers for p in c.spec.get("ports") or []]:
        if not port.get("name", "").endswith("admin"):
            continue
        try:
            connection = http.client.HTTPConnection(pod.address, port["containerPort"], timeout=1)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
        except (OSError, http.client.HTTPException):
            continue  # It does not listen yet, or no more.
        found += re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, flags=re.M)
    return sum(map(float, found)) if found else None


def requested(pod):
    """Processors that the pod asks for."""
    sidecars = [c for c in pod.inits if c.spec.get("restartPolicy") == "Always"]
    return sum(quantity(c.spec["resources"]["requests"]["cpu"]) for c in sidecars + pod.containers)


class Autoscaler:
    """Of one HorizontalPodAutoscaler. `haste`: how many times as fast as in Kubernetes its clock
    goes, so that tests need not wait for minutes. Not thread-safe."""

    def __init__(self, spec, haste):
        self.spec, self._haste = spec, haste
        self._decision = Decision(spec)
        self._processors = Processors()

    def pods(self, current, pods):
        """The number of pods from now on. `pods`: all that there are, without those that end."""
        used = self._processors.used(pods)
        asked = [self._proposal(metric, current, pods, used) for metric in self.spec["metrics"]]
        known = [count for count in asked if count is not None]
        # As long as a metric has no value, nothing says that fewer pods are enough.
        if len(known) < len(asked) and known and max(known) < current:
            known = []
        now = time.monotonic() * self._haste
        return self._decision.pods(current, max(known, default=None), now)

    def _proposal(self, metric, current, pods, used):
        if metric["type"] == "Resource" and metric["resource"]["name"] == "cpu":
            target = metric["resource"]["target"]
            if target["type"] != "Utilization":
                raise NotImplementedError(f"target of cpu: {target['type']}")
            goal = target["averageUtilization"]
            count = [p for p in pods if p.ready]
            found = [100 * used[p] / requested(p) for p in count if p in used]
            full = max(100, goal)
        elif metric["type"] == "Pods":
            goal = full = quantity(metric["pods"]["target"]["averageValue"])
            count = [p for p in pods if p.phase == "Running"]
            values = [exported(p, metric["pods"]["metric"]["name"]) for p in count]
            found = [value for value in values if value is not None]
        else:
            raise NotImplementedError(f"metric: {metric}")
        unready, missing = len(pods) - len(count), len(count) - len(found)
        return pods_for(current, found, unready, missing, goal, full)
