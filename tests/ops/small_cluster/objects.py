"""What was applied, and what Kubernetes would refuse."""

import copy
import threading
import uuid

import kubernetes_validate

from pod_security import pod_specs, violations

VERSION = "1.33"
# All that may change in the spec of a StatefulSet.
MUTABLE = {
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "template",
    "updateStrategy",
}
PROFILE = "pod-security.kubernetes.io/enforce"
FROZEN = {"Deployment": ["selector"], "Job": ["selector", "template"]}
# Their schemas are not Kubernetes' own.
CUSTOM = (
    "monitoring.coreos.com/",
    "cert-manager.io/",
    "keda.sh/",
    "gateway.networking.k8s.io/",
    "inference.networking.k8s.io/",
)


class Refused(Exception):
    """An object that the API server would not take."""


def _changed(old, new):
    before, after = old.get("spec") or {}, new.get("spec") or {}
    changed = {f for f in set(before) | set(after) if before.get(f) != after.get(f)}
    if new["kind"] == "StatefulSet":
        return sorted(changed - MUTABLE)
    return sorted(changed & set(FROZEN.get(new["kind"], [])))


def admit(new, old, restricted=True):
    if not new["apiVersion"].startswith(CUSTOM):
        try:
            kubernetes_validate.validate(new, VERSION, strict=True)
        except Exception as error:  # The package has no common base of its errors.
            name = f"{new['kind']} {new['metadata']['name']}"
            raise Refused(f"{name}: {str(error).splitlines()[0]}") from error
    if old and (frozen := _changed(old, new)):
        raise Refused(f"{new['kind']} {new['metadata']['name']}: Forbidden: updates to {frozen}")
    for name, spec in pod_specs(new) if restricted else ():
        if found := violations(spec):
            raise Refused(f"{name}: violates PodSecurity restricted: {'; '.join(found)}")


class News:
    """Wakes those who wait for a change. Thread-safe."""

    def __init__(self):
        self._condition = threading.Condition()
        self._number = 0

    def number(self):
        """How often something has changed."""
        with self._condition:
            return self._number

    def tell(self):
        with self._condition:
            self._number += 1
            self._condition.notify_all()

    def wait(self, number, seconds):
        """Until something changes after `number` was read, or for this many seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._number != number, seconds)


class Objects:
    """Thread-safe. Nobody may change what it returns. `news`: of objects, and of the pods of the
    cluster that has them."""

    def __init__(self):
        self.news = News()
        self._lock = threading.Lock()
        self._objects = {}
        self._scaled = set()  # Workloads whose `replicas` an autoscaler owns.
        self._addresses = 0

    def find(self, kind, name, _owner=None):
        with self._lock:
            return self._objects.get((kind, name))

    def all(self, kind):
        with self._lock:
            return [o for (k, _), o in sorted(self._objects.items()) if k == kind]

    def put(self, obj):
        """Raises Refused. Fills in what the API server would."""
        obj = copy.deepcopy(obj)
        key = (obj["kind"], obj["metadata"]["name"])
        old = self.find(*key)
        admit(
            obj,
            old and {k: v for k, v in old.items() if k != "status"},
            self._profile(obj["metadata"].get("namespace")) == "restricted",
        )
        with self._lock:
            if "replicas" in (obj.get("spec") or {}):
                self._scaled.discard(key)
            elif key in self._scaled:
                obj["spec"]["replicas"] = self._objects[key]["spec"]["replicas"]
            if obj["kind"] == "Service":
                old_spec = old["spec"] if old else {}
                obj["spec"].setdefault("clusterIP", old_spec.get("clusterIP") or self._address())
            meta, kept = obj["metadata"], (old or {}).get("metadata", {})
            meta["uid"] = kept.get("uid") or str(uuid.uuid4())
            same = old is not None and old.get("spec") == obj.get("spec")
            meta["generation"] = kept.get("generation", 0) + (not same)
            self._objects[key] = obj
        self.news.tell()

    def _profile(self, namespace):
        """What the label of the object's namespace says. There are no pods but in one namespace."""
        found = self.find("Namespace", namespace) or {"metadata": {}}
        return (found["metadata"].get("labels") or {}).get(PROFILE, "restricted")

    def scale(self, kind, name, replicas):
        """As an autoscaler does: manifests without `replicas` leave this number from now on."""
        with self._lock:
            obj = copy.deepcopy(self._objects[(kind, name)])
            obj["spec"]["replicas"] = replicas
            obj["metadata"]["generation"] += 1
            self._objects[(kind, name)] = obj
            self._scaled.add((kind, name))
        self.news.tell()

    def remove(self, kind, name):
        with self._lock:
            self._scaled.discard((kind, name))
            removed = self._objects.pop((kind, name), None)
        self.news.tell()
        return removed

    def keys(self):
        with self._lock:
            return set(self._objects)

    def _address(self):
        self._addresses += 1
        return f"10.96.1.{self._addresses}"
