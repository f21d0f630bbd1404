"""Checks pod specs against the Pod Security Standard "restricted", offline.

It reads fields only and is no admission controller: AppArmor, SELinux and Windows fields, host
fields of probes, and custom resources that hold pod templates are not looked at.
"""

ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP_TYPES = {"RuntimeDefault", "Localhost"}
TEMPLATED_KINDS = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}

# What a pod and its containers say at least under the profile "restricted".
POD_CONTEXT = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_CONTEXT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod_specs(doc):
    """Yields (kind/name, pod spec) of every pod that this manifest makes."""
    kind = doc.get("kind", "")
    name = f"{kind}/{(doc.get('metadata') or {}).get('name', '?')}"
    if kind == "Pod":
        yield name, doc["spec"]
    elif kind in TEMPLATED_KINDS:
        yield name, doc["spec"]["template"]["spec"]
    elif kind == "CronJob":
        yield name, doc["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def violations(spec):
    """All violations of one pod spec, as text."""
    found = list(_pod_level(spec))
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(group) or []:
            found.extend(_container(container, spec.get("securityContext") or {}))
    return found


def _pod_level(spec):
    context = spec.get("securityContext") or {}
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    if context.get("runAsUser") == 0:
        yield "pod: runAsUser is 0"
    if context.get("sysctls"):
        yield "pod: sysctls"
    for volume in spec.get("volumes") or []:
        kinds = [key for key in volume if key != "name"]
        if kinds and kinds[0] not in ALLOWED_VOLUMES:
            yield f"volume {volume['name']}: {kinds[0]}"


def _container(container, pod_context):
    context = container.get("securityContext") or {}
    name = container["name"]

    def effective(field):
        return context.get(field, pod_context.get(field))

    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if effective("runAsNonRoot") is not True:
        yield f"{name}: runAsNonRoot is not true"
    if effective("runAsUser") == 0:
        yield f"{name}: runAsUser is 0"
    if (effective("seccompProfile") or {}).get("type") not in SECCOMP_TYPES:
        yield f"{name}: seccompProfile unset or unconfined"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{name}: capabilities.drop lacks ALL"
    added = set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}
    if added:
        yield f"{name}: adds {', '.join(sorted(added))}"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{name}: hostPort"
