"""The cluster as the API shows it: what was applied, the pods and machines that there are, and what
became of workloads; each with a version, and what has changed since another one."""

import base64
import copy
import json
import threading
import time

from small_cluster import workloads

LIVE = ("Node", "Pod")  # Kinds that nobody applies.


def _container_status(container):
    spec = container.spec
    state = {"running": {}} if container.running() else {"waiting": {"reason": "NotRunning"}}
    if container.exit_code is not None and not container.running():
        state = {"terminated": {"exitCode": container.exit_code}}
    return {
        "name": spec["name"],
        "image": spec.get("image", ""),
        "imageID": "",
        "ready": container.ready,
        "restartCount": max(container.restarts, 0),
        "state": state,
    }


def pod_object(pod, uids):
    """`uids`: {(kind, name): uid} of workloads."""
    meta = {"name": pod.name, "namespace": pod.cluster.namespace, "uid": pod.uid}
    meta["labels"] = dict(pod.labels)
    if pod.owner in uids:
        kind, name = pod.owner
        version = "batch/v1" if kind == "Job" else "apps/v1"
        owner = {"apiVersion": version, "kind": kind, "name": name, "uid": uids[pod.owner]}
        meta["ownerReferences"] = [{**owner, "controller": True}]
    if pod.deleted.is_set():
        meta["deletionTimestamp"] = pod.deletion_time
    ready = {"type": "Ready", "status": "True" if pod.ready else "False"}
    status = {
        "phase": pod.phase,
        "conditions": [ready],
        "containerStatuses": [_container_status(c) for c in pod.containers],
        "initContainerStatuses": [_container_status(c) for c in pod.inits],
    }
    if pod.address:
        status["podIP"] = pod.address
    spec = {**pod.spec, "nodeName": pod.machine}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _machine_object(name, cordoned):
    spec = {"unschedulable": True} if cordoned else {}
    ready = {"type": "Ready", "status": "True"}
    meta = {"name": name, "uid": name}
    status = {"conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


def _job_status(cluster, job, pods):
    end = cluster.finished_jobs.get(job["metadata"]["uid"])
    return {
        "active": sum(p.phase in ("Pending", "Running") for p in pods),
        "failed": sum(p.phase == "Failed" for p in pods),
        "succeeded": int(end == "Complete"),
        "conditions": [{"type": end, "status": "True"}] if end else [],
    }


def _workload_status(cluster, workload):
    pods = _pods_of(cluster, workload)
    if workload["kind"] == "Job":
        return _job_status(cluster, workload, pods)
    wanted = workloads.revision(workload["spec"]["template"])
    new = sum(p.revision == wanted for p in pods)
    ready = sum(p.ready for p in pods)
    available = sum(workloads.available(p, workload) for p in pods)
    missing = max(0, workloads.size(cluster, workload) - available)
    status = {"observedGeneration": workload["metadata"]["generation"]}
    if workload["kind"] == "DaemonSet":
        return {
            **status,
            "desiredNumberScheduled": workloads.size(cluster, workload),
            "currentNumberScheduled": len(pods),
            "updatedNumberScheduled": new,
            "numberMisscheduled": 0,
            "numberReady": ready,
            "numberAvailable": available,
            "numberUnavailable": missing,
        }
    status.update(
        replicas=len(pods),
        updatedReplicas=new,
        readyReplicas=ready,
        availableReplicas=available,
        unavailableReplicas=missing,
    )
    if workload["kind"] == "StatefulSet":
        status["updateRevision"] = wanted
        status["currentRevision"] = wanted if new == len(pods) else "before"
    return status


def _pods_of(cluster, workload):
    owner = (workload["kind"], workload["metadata"]["name"])
    return [p for p in cluster.pods() if p.owner == owner and not p.ended.is_set()]


def state(cluster):
    """Everything that the API shows of pods and machines, to compare it with what was before."""
    pods = [(p.owner, pod_object(p, {})) for p in cluster.pods() if not p.ended.is_set()]
    applied = [w for kind in workloads.KINDS for w in cluster.objects.all(kind)]
    statuses = [_workload_status(cluster, w) for w in applied]
    return pods, statuses, cluster.cordoned


class View:
    """`cluster`: None for objects that nobody runs. Thread-safe. Nobody may change what it
    returns."""

    def __init__(self, objects, cluster=None):
        self.objects, self.cluster = objects, cluster
        self._lock = threading.Lock()
        self._version = 1
        self._known = {}  # kind: {name: (version, version of its birth, object without it, text)}
        self._gone = {}  # kind: [(version, object)]

    def list(self, kind):
        """(version, all objects of the kind)."""
        with self._lock:
            self._look(kind)
            return self._version, [o for _, _, o, _ in self._known[kind].values()]

    def find(self, kind, name):
        _, found = self.list(kind)
        return next((o for o in found if o["metadata"]["name"] == name), None)

    def changes(self, kind, since, seconds):
        """(version, [(what happened, object)]) after the version `since`; waits for this many
        seconds for something to happen."""
        news, end = self.objects.news, time.monotonic() + seconds
        while True:
            number = news.number()  # Before the look: what changes after it ends the wait.
            version, events = self._events(kind, since)
            left = end - time.monotonic()
            if events or left <= 0:
                return version, events
            news.wait(number, left)

    def _events(self, kind, since):
        with self._lock:
            self._look(kind)
            events = []
            for version, born, obj, _ in self._known[kind].values():
                if version > since:
                    events.append((version, "ADDED" if born > since else "MODIFIED", obj))
            for version, obj in self._gone[kind]:
                if version > since:
                    events.append((version, "DELETED", obj))
            events.sort(key=lambda e: e[0])
            return self._version, [(what, obj) for _, what, obj in events]

    def _look(self, kind):
        """Gives a new version to whatever is not as it was."""
        known = self._known.setdefault(kind, {})
        gone = self._gone.setdefault(kind, [])
        now = {o["metadata"]["name"]: o for o in self._now(kind)}
        for name, obj in now.items():
            text = json.dumps(obj, sort_keys=True)
            before = known.get(name)
            if before and before[3] == text:
                continue
            if before and before[2]["metadata"]["uid"] != obj["metadata"]["uid"]:
                self._forget(known, gone, name)
                before = None
            self._version += 1
            made = copy.deepcopy(obj)
            made["metadata"]["resourceVersion"] = str(self._version)
            known[name] = (self._version, before[1] if before else self._version, made, text)
        for name in set(known) - set(now):
            self._forget(known, gone, name)

    def _forget(self, known, gone, name):
        self._version += 1
        last = copy.deepcopy(known.pop(name)[2])
        last["metadata"]["resourceVersion"] = str(self._version)
        gone.append((self._version, last))

    def _now(self, kind):
        if kind not in LIVE:
            return [self._with_status(o) for o in self.objects.all(kind)]
        if self.cluster is None:
            return []
        if kind == "Node":
            cluster = self.cluster
            return [_machine_object(m, m in cluster.cordoned) for m in cluster.machines]
        uids = {}
        for kind_of_owner in workloads.KINDS:
            for obj in self.objects.all(kind_of_owner):
                uids[(kind_of_owner, obj["metadata"]["name"])] = obj["metadata"]["uid"]
        return [pod_object(p, uids) for p in self.cluster.pods() if not p.ended.is_set()]

    def _with_status(self, obj):
        if obj["kind"] == "PersistentVolumeClaim":
            return {**obj, "status": {"phase": "Bound"}}
        if obj["kind"] == "Secret" and "stringData" in obj:
            # The API server turns it into this.
            text = {k: base64.b64encode(v.encode()).decode() for k, v in obj["stringData"].items()}
            made = {k: v for k, v in obj.items() if k != "stringData"}
            return {**made, "data": {**(obj.get("data") or {}), **text}}
        if self.cluster is None or obj["kind"] not in workloads.KINDS:
            return obj
        return {**obj, "status": _workload_status(self.cluster, obj)}
