"""What follows the pods: addresses of Services, rules of NetworkPolicies, and whether a
PodDisruptionBudget lets a pod go."""

import math

from small_cluster.name_server import Zone


def selects(selector, labels):
    if selector.get("matchExpressions"):
        raise NotImplementedError("matchExpressions")
    return selector.get("matchLabels", selector).items() <= labels.items()


def part(value, replicas, rounding):
    if isinstance(value, str):
        return rounding(replicas * int(value.removesuffix("%")) / 100)
    return value


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
            least = part(spec["minAvailable"], len(pods), math.ceil)
        else:
            least = len(pods) - part(spec["maxUnavailable"], len(pods), math.ceil)
        if healthy - 1 < least:
            return False
    return True
