"""The controllers: what makes pods of workloads, and addresses of Services. Each is a function that
makes one step towards what was asked for; the cluster calls them again and again."""

import hashlib
import json
import math
import time

from small_cluster.name_server import Zone


def revision(template):
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]


def selects(selector, labels):
    if selector.get("matchExpressions"):
        raise NotImplementedError("matchExpressions")
    return selector.get("matchLabels", selector).items() <= labels.items()


def _owned(cluster, workload):
    """Its pods, among them those that an earlier workload with this selector left behind."""
    owner = (workload["kind"], workload["metadata"]["name"])
    pods = cluster.pods()
    for pod in pods:
        if pod.owner is None and pod.orphan and selects(workload["spec"]["selector"], pod.labels):
            pod.owner, pod.orphan = owner, False
    return [p for p in pods if p.owner == owner]


def available(pod, workload):
    least = workload["spec"].get("minReadySeconds", 0)
    return pod.ready and time.monotonic() >= pod.ready_since + least


def _make(cluster, workload, name, extra=None):
    template = workload["spec"]["template"]
    meta = {
        "name": name,
        "labels": template["metadata"].get("labels") or {},
        "owner": (workload["kind"], workload["metadata"]["name"]),
        "revision": revision(template),
    }
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


def _part(value, replicas, rounding):
    if isinstance(value, str):
        return rounding(replicas * int(value.removesuffix("%")) / 100)
    return value


def deployment(cluster, workload):
    """Pods that are all alike, replaced by strategy."""
    spec = workload["spec"]
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    surge = _part(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _part(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
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


def endpoints(cluster, service):
    """The pods of a Service that get calls."""
    spec = service["spec"]
    if not spec.get("selector"):
        return []
    every = spec.get("publishNotReadyAddresses", False)
    return [
        p
        for p in cluster.pods()
        if p.address and selects(spec["selector"], p.labels) and (p.ready or every)
    ]


def _target(service_port, pod):
    target = service_port.get("targetPort", service_port["port"])
    if isinstance(target, int):
        return target
    for container in pod.inits + pod.containers:
        for port in container.spec.get("ports") or []:
            if port.get("name") == target:
                return port["containerPort"]
    return None


def services(cluster):
    """(what the machine's rules are to be, what the name server is to know)."""
    rules, zone = {}, Zone()
    for service in cluster.objects.all("Service"):
        pods = endpoints(cluster, service)
        hosts = [
            (p.address, p.host if p.spec.get("subdomain") == service["metadata"]["name"] else "")
            for p in pods
        ]
        zone.add(service, cluster.namespace, hosts)
        if service["spec"]["clusterIP"] == "None":
            continue
        for port in service["spec"]["ports"]:
            ends = [(p.address, _target(port, p)) for p in pods]
            stays = service["spec"].get("sessionAffinity") == "ClientIP"
            rules[(service["spec"]["clusterIP"], port["port"])] = (
                stays,
                sorted(end for end in ends if end[1] is not None),
            )
    return rules, zone


def _sources(cluster, peers):
    """Addresses and ranges of the "from" of a NetworkPolicy; None: everybody."""
    if not peers:
        return None
    found = set()
    labels = {"kubernetes.io/metadata.name": cluster.namespace}
    for peer in peers:
        if "ipBlock" in peer:
            if peer["ipBlock"].get("except"):
                raise NotImplementedError("ipBlock.except")
            found.add(peer["ipBlock"]["cidr"])
        elif selects(peer.get("namespaceSelector", {}), labels):
            pods = [p for p in cluster.pods() if selects(peer.get("podSelector", {}), p.labels)]
            found.update(p.address for p in pods if p.address)
    return frozenset(found)


def policies(cluster):
    """{address of a pod: [(ports or None, sources or None)]} of all pods that a NetworkPolicy
    selects: who may connect."""
    found = {}
    for policy in cluster.objects.all("NetworkPolicy"):
        spec = policy["spec"]
        if spec.get("policyTypes", ["Ingress"]) != ["Ingress"]:
            raise NotImplementedError(f"policyTypes: {spec['policyTypes']}")
        for pod in cluster.pods():
            if not pod.address or not selects(spec["podSelector"], pod.labels):
                continue
            rules = found.setdefault(pod.address, [])
            for rule in spec.get("ingress") or []:
                ports = [_target({"targetPort": p["port"], "port": 0}, pod) for p in rule["ports"]]
                known = frozenset(p for p in ports if p is not None)
                rules.append((known, _sources(cluster, rule.get("from"))))
    return found


def may_be_evicted(cluster, pod):
    """Whether PodDisruptionBudgets let the pod go."""
    for budget in cluster.objects.all("PodDisruptionBudget"):
        spec = budget["spec"]
        if not selects(spec["selector"], pod.labels):
            continue
        pods = [p for p in cluster.pods() if selects(spec["selector"], p.labels)]
        if not pod.ready and spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            continue
        healthy = sum(p.ready for p in pods)
        if "minAvailable" in spec:
            least = _part(spec["minAvailable"], len(pods), math.ceil)
        else:
            least = len(pods) - _part(spec["maxUnavailable"], len(pods), math.ceil)
        if healthy - 1 < least:
            return False
    return True
