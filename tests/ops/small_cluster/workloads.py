"""What makes pods of workloads. Each function makes one step towards what was asked for; the
cluster calls them again and again."""

import hashlib
import json
import math
import time

from small_cluster.controllers import part, selects


def revision(template):
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]


def _owned(cluster, workload):
    """Its pods, among them those that an earlier workload with this selector left behind."""
    owner = (workload["kind"], workload["metadata"]["name"])
    selector = workload["spec"].get("selector")  # A Job has none.
    pods = cluster.pods()
    for pod in pods:
        if pod.owner is None and pod.orphan and selector and selects(selector, pod.labels):
            pod.owner, pod.orphan = owner, False
    return [p for p in pods if p.owner == owner]


def available(pod, workload):
    least = workload["spec"].get("minReadySeconds", 0)
    return pod.ready and time.monotonic() >= pod.ready_since + least


def _make(cluster, workload, name, extra=None, machine=None):
    template = workload["spec"]["template"]
    meta = {
        "name": name,
        "labels": (template.get("metadata") or {}).get("labels") or {},
        "owner": (workload["kind"], workload["metadata"]["name"]),
        "revision": revision(template),
    }
    if machine is not None:
        meta["machine"] = machine
    cluster.add_pod(meta, {**template["spec"], **(extra or {})})


def _claim(workload, template, ordinal):
    return f"{template['metadata']['name']}-{workload['metadata']['name']}-{ordinal}"


def _make_claims(cluster, workload, templates, ordinal):
    """Whether the pod's claims are there. One that is being removed has to go first."""
    for template in templates:
        name = _claim(workload, template, ordinal)
        if cluster.claim_goes(name):
            return False
        if cluster.objects.find("PersistentVolumeClaim", name) is None:
            cluster.add(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": name},
                    "spec": template["spec"],
                }
            )
    return True


def stateful_set(cluster, workload):
    """Pods with a name, a hostname and volumes of their own. Policy Parallel, RollingUpdate."""
    spec, name = workload["spec"], workload["metadata"]["name"]
    if spec.get("podManagementPolicy") != "Parallel":
        raise NotImplementedError("podManagementPolicy: expected Parallel")
    pods = {p.name: p for p in _owned(cluster, workload)}
    wanted = [f"{name}-{i}" for i in range(spec.get("replicas", 1))]
    templates = spec.get("volumeClaimTemplates") or []
    for ordinal, pod in enumerate(wanted):
        if pod in pods or not _make_claims(cluster, workload, templates, ordinal):
            continue
        volumes = [
            {
                "name": t["metadata"]["name"],
                "persistentVolumeClaim": {"claimName": _claim(workload, t, ordinal)},
            }
            for t in templates
        ]
        extra = {
            "hostname": pod,
            "subdomain": spec["serviceName"],
            "volumes": volumes + (spec["template"]["spec"].get("volumes") or []),
        }
        _make(cluster, workload, pod, extra)
    for pod in set(pods) - set(wanted):
        pods[pod].delete()
    _forget_claims(cluster, workload, set(pods) | set(wanted))
    old = [p for p in wanted if p in pods and pods[p].revision != revision(spec["template"])]
    # One at a time, the last one first, and only while all others work. A pod of the old revision
    # that does not work is replaced at once: an update must be able to repair it.
    others = [pods[p] for p in wanted if p in pods and p != (old or [None])[-1]]
    whole = all(p in pods and not pods[p].deleted.is_set() for p in wanted)
    if old and whole:
        broken = [p for p in old if not pods[p].ready]
        if broken or all(available(p, workload) for p in others):
            pods[(broken or old)[-1]].delete()


def _forget_claims(cluster, workload, used):
    policy = workload["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    if policy.get("whenScaled") != "Delete":
        return
    for template in workload["spec"].get("volumeClaimTemplates") or []:
        prefix = f"{template['metadata']['name']}-"
        for claim in cluster.claims.names():
            pod = claim.removeprefix(prefix)
            if claim.startswith(f"{prefix}{workload['metadata']['name']}-") and pod not in used:
                cluster.remove_claim(claim)


def deployment(cluster, workload):
    """Pods that are all alike, replaced by strategy."""
    spec = workload["spec"]
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    surge = part(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = part(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    wanted = revision(spec["template"])
    pods = [p for p in _owned(cluster, workload) if not p.deleted.is_set()]
    new = [p for p in pods if p.revision == wanted]
    old = sorted((p for p in pods if p.revision != wanted), key=lambda p: (p.ready, p.name))
    if strategy.get("type") == "Recreate":
        for pod in old:
            pod.delete()
        if old or len(_owned(cluster, workload)) > len(pods):
            return
        surge = 0
    while len(new) < replicas and len(pods) < replicas + surge:
        name = f"{workload['metadata']['name']}-{wanted}-{cluster.number()}"
        _make(cluster, workload, name)
        new.append(None)
        pods.append(None)
    for pod in [p for p in new if p is not None][replicas:]:
        pod.delete()
    serving = sum(1 for p in pods if p is not None and available(p, workload))
    for pod in old:
        if pod.ready and serving <= replicas - unavailable:
            break
        serving -= pod.ready
        pod.delete()


def daemon_set(cluster, workload):
    """A pod on each machine, also where no other pods may go. Updates leave a machine without its
    pod for a while; maxSurge is not there."""
    rolling = (workload["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    if rolling.get("maxSurge", 0) != 0:
        raise NotImplementedError("updateStrategy.rollingUpdate.maxSurge")
    every = _owned(cluster, workload)
    taken = {p.machine for p in every}
    wanted = revision(workload["spec"]["template"])
    for machine in cluster.machines:
        if machine not in taken:
            name = f"{workload['metadata']['name']}-{cluster.number()}"
            _make(cluster, workload, name, machine=machine)
    pods = [p for p in every if not p.deleted.is_set()]
    old = sorted((p for p in pods if p.revision != wanted), key=lambda p: (p.ready, p.name))
    most = part(rolling.get("maxUnavailable", 1), len(cluster.machines), math.ceil)
    room = most - (len(cluster.machines) - sum(available(p, workload) for p in pods))
    for pod in old:
        if pod.ready:
            if room <= 0:
                break
            room -= 1
        pod.delete()


def job(cluster, workload):
    """A pod that runs to its end, and others after it if it fails, until `backoffLimit`."""
    spec = workload["spec"]
    if spec.get("completions", 1) != 1 or spec.get("parallelism", 1) != 1:
        raise NotImplementedError("completions, parallelism: expected 1")
    if spec["template"]["spec"].get("restartPolicy") != "Never":
        raise NotImplementedError("restartPolicy: expected Never")
    uid = workload["metadata"]["uid"]
    if uid in cluster.finished_jobs:
        return
    pods = _owned(cluster, workload)
    failed = [p for p in pods if p.phase == "Failed"]
    if any(p.phase == "Succeeded" for p in pods):
        cluster.finished_jobs[uid] = "Complete"
    elif len(failed) > spec.get("backoffLimit", 6):
        cluster.finished_jobs[uid] = "Failed"
    elif len(failed) == len([p for p in pods if not p.deleted.is_set()]):
        # Kubernetes waits 10 s, 20 s, 40 s ... A small cluster waits a tenth.
        last = max((p.ended_at for p in failed), default=-math.inf)
        if time.monotonic() >= last + 2 ** (len(failed) - 1):
            _make(cluster, workload, f"{workload['metadata']['name']}-{cluster.number()}")


KINDS = {
    "StatefulSet": stateful_set,
    "Deployment": deployment,
    "DaemonSet": daemon_set,
    "Job": job,
}


def size(cluster, workload):
    """The number of pods that it asks for."""
    if workload["kind"] == "DaemonSet":
        return len(cluster.machines)
    return workload["spec"].get("replicas", 1)


def settled(cluster, workload):
    """Whether it has all its pods, of the newest revision, and ready; or a Job has succeeded."""
    if workload["kind"] == "Job":
        return cluster.finished_jobs.get(workload["metadata"]["uid"]) == "Complete"
    pods = _owned(cluster, workload)
    wanted = revision(workload["spec"]["template"])
    ready = all(p.ready and p.revision == wanted for p in pods)
    return ready and len(pods) == size(cluster, workload)
