"""Enough of the Kubernetes API for real Helm and kubectl: discovery; objects that are read,
watched, created, changed and deleted; pods that are evicted, asked for their logs, and run
commands. Apply replaces what was there; there is no admission but that of objects.py."""

import copy
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import yaml

from small_cluster import commands, protobuf, workloads
from small_cluster.objects import Refused
from small_cluster.view import LIVE, View

KINDS = {  # group/version: {plural: kind}
    "v1": {
        "namespaces": "Namespace",
        "nodes": "Node",
        "pods": "Pod",
        "services": "Service",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "persistentvolumeclaims": "PersistentVolumeClaim",
    },
    "apps/v1": {
        "statefulsets": "StatefulSet",
        "deployments": "Deployment",
        "daemonsets": "DaemonSet",
    },
    "batch/v1": {"jobs": "Job"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "monitoring.coreos.com/v1": {"podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"},
    "cert-manager.io/v1": {"certificates": "Certificate"},
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
    "gateway.networking.k8s.io/v1": {"httproutes": "HTTPRoute"},
    "inference.networking.k8s.io/v1": {"inferencepools": "InferencePool"},
}
SHORT = {"pods": ["po"], "persistentvolumeclaims": ["pvc"], "statefulsets": ["sts"]}
PATH = re.compile(
    r"^/apis?/((?:[^/]+/)?v[0-9a-z]+)(?:/namespaces/([^/]+))?"
    r"(?:/([a-z]+)(?:/([^/]+)(?:/([a-z]+))?)?)?$"
)
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _openapi(root):
    version = root.split("/", 1)[1]
    group, _, short = version.rpartition("/")
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths = {}
    for plural, kind in KINDS[version].items():
        patch = {
            "parameters": [parameter],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": group, "version": short, "kind": kind},
        }
        paths[f"/{root}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
    info = {"title": "small", "version": "1"}
    return {"openapi": "3.0.0", "info": info, "components": {"schemas": {}}, "paths": paths}


def _resources(version):
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": kind not in ("Namespace", "Node"),
            "kind": kind,
            "verbs": VERBS,
            "shortNames": SHORT.get(plural, []),
        }
        for plural, kind in KINDS[version].items()
    ]
    if version == "v1":
        eviction = {"kind": "Eviction", "group": "policy", "version": "v1", "verbs": ["create"]}
        resources.append({"name": "pods/eviction", "namespaced": True, **eviction})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": resources,
    }


def discovery(path):
    """The answer to a path that is no object; None if it is one."""
    roots = [("apis/" if "/" in g else "api/") + g for g in KINDS]
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = []
        for group in [g for g in KINDS if "/" in g]:
            name, number = group.split("/")
            version = {"groupVersion": group, "version": number}
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/openapi/v3":
        return {"paths": {r: {"serverRelativeURL": f"/openapi/v3/{r}?hash=1"} for r in roots}}
    if path.startswith("/openapi/v3/"):
        return _openapi(path.removeprefix("/openapi/v3/"))
    matched = PATH.match(path)
    if matched and matched[1] in KINDS and matched[3] is None:
        return _resources(matched[1])
    return None


def _merge(old, new):
    result = dict(old)
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(old.get(key) or {}, value) if isinstance(value, dict) else value
    return result


def _selected(obj, query):
    """Whether the selectors of a query take the object."""
    meta = obj["metadata"]
    fields = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta.get("namespace", ""),
        "spec.nodeName": obj.get("spec", {}).get("nodeName", ""),
    }
    for text in query.get("fieldSelector", []):
        for part in filter(None, text.split(",")):
            name, value = re.split("==?", part, maxsplit=1)
            if fields[name] != value:
                return False
    for text in query.get("labelSelector", []):
        for part in filter(None, text.split(",")):
            name, value = re.split("==?", part, maxsplit=1)
            if (meta.get("labels") or {}).get(name) != value:
                return False
    return True


class _Error(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": reason,
            "code": code,
            "message": message,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    view = None

    def log_message(self, *_):
        pass

    def _call(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlparse(self.path)
        path, query = url.path.rstrip("/"), parse_qs(url.query)
        try:
            code, answer = 200, discovery(path)
            if answer is None:
                code, answer = self._on_object(path, query, body)
        except _Error as error:
            code, answer = error.code, error.body
        except Refused as refused:
            error = _Error(422, "Invalid", str(refused))
            code, answer = error.code, error.body
        if answer is None:
            return  # It was answered already.
        text = isinstance(answer, str)
        data = answer.encode() if text else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if text else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _call

    def _on_object(self, path, query, body):
        matched = PATH.match(path)
        if not matched or matched[1] not in KINDS:
            raise _Error(404, "NotFound", f"no such path {path}")
        version, namespace, plural, name, sub = matched.groups()
        kind = KINDS[version].get(plural)
        if kind is None:
            raise _Error(404, "NotFound", plural)
        if self.command == "GET" and name is None:
            if query.get("watch", ["false"])[0] in ("1", "true"):
                return 200, self._watch(kind, version, query)
            at, items = self.view.list(kind)
            return 200, {
                "kind": f"{kind}List",
                "apiVersion": version,
                "metadata": {"resourceVersion": str(at)},
                "items": [o for o in items if _selected(o, query)],
            }
        old = self.view.find(kind, name) if name else None
        if old is None and (self.command != "PATCH" or "apply" not in self._type()):
            if self.command != "POST" or sub is not None:
                raise _Error(404, "NotFound", f'{plural} "{name}" not found')
        if sub is not None:
            return self._sub(kind, name, sub, query)
        if self.command == "GET":
            return 200, old
        if self.command == "DELETE":
            return 200, self._delete(kind, old, yaml.safe_load(body) if body else {}, query)
        binary = body.startswith(protobuf.MAGIC)
        obj = protobuf.read(body) if binary else yaml.safe_load(body)
        dry = "dryRun" in query
        if kind == "Node":
            obj = _merge(old, obj)
            self.view.cluster.cordon(name, obj["spec"].get("unschedulable", False))
            return 200, self.view.find(kind, name)
        if kind == "Pod" and old is None:
            meta = {"name": obj["metadata"]["name"], "labels": obj["metadata"].get("labels") or {}}
            self.view.cluster.add_pod(meta, obj["spec"])
            return 201, self.view.find(kind, meta["name"])
        return self._put(kind, namespace, old, obj, dry)

    def _type(self):
        return self.headers.get("Content-Type", "")

    def _put(self, kind, namespace, old, obj, dry):
        if self.command == "PATCH" and "apply" not in self._type():
            obj = _merge(copy.deepcopy(old), obj)
        if kind in LIVE:
            raise _Error(405, "MethodNotAllowed", f"{kind}: {self.command}")
        obj.pop("status", None)
        meta = obj["metadata"]
        meta.setdefault("namespace", namespace)
        if self.command == "POST" and self.view.objects.find(kind, meta["name"]):
            raise _Error(409, "AlreadyExists", meta["name"])
        if dry:
            meta.setdefault("uid", "")
            return 200, copy.deepcopy(obj)
        self.view.objects.put(obj)
        return (200 if old else 201), self.view.find(kind, meta["name"])

    def _delete(self, kind, old, options, query):
        name, cluster = old["metadata"]["name"], self.view.cluster
        how = {**{k: v[0] for k, v in query.items()}, **(options or {})}
        if kind == "Pod":
            grace = how.get("gracePeriodSeconds")
            cluster.pod(name).delete(None if grace is None else int(grace))
        elif kind == "PersistentVolumeClaim" and cluster:
            cluster.remove_claim(name)
        elif cluster and kind in workloads.KINDS:
            if how.get("propagationPolicy") == "Orphan":
                cluster.orphan(kind, name)
            else:
                self.view.objects.remove(kind, name)
        else:
            self.view.objects.remove(kind, name)
        return old

    def _sub(self, kind, name, sub, query):
        cluster = self.view.cluster
        if kind != "Pod":
            raise _Error(404, "NotFound", f"{kind}/{sub}")
        if sub == "eviction":
            if not cluster.evict(name):
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise _Error(429, "TooManyRequests", text)
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        pod = cluster.pod(name)
        containers = pod.inits + pod.containers
        wanted = query.get("container", [pod.containers[0].spec["name"]])[0]
        if wanted not in [c.spec["name"] for c in containers]:
            raise _Error(400, "BadRequest", f"container {wanted} is not valid for pod {name}")
        container = pod.container(wanted)
        if sub == "log":
            return 200, container.log.read_text(errors="replace")
        if sub == "exec":
            commands.serve(self, container, query["command"])
            return 200, None
        raise _Error(404, "NotFound", f"pods/{sub}")

    def _watch(self, kind, version, query):
        """Writes what changes, until the caller goes or its time is over."""
        since = int(query.get("resourceVersion", ["0"])[0] or 0)
        end = time.monotonic() + float(query.get("timeoutSeconds", ["600"])[0])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        initial = query.get("sendInitialEvents", ["false"])[0] == "true"
        try:
            while (left := end - time.monotonic()) > 0:
                since, events = self.view.changes(kind, since, 0 if initial else left)
                for what, obj in events:
                    if _selected(obj, query) and not (initial and what == "DELETED"):
                        self._event(what, obj)
                if initial:
                    note = {"k8s.io/initial-events-end": "true"}
                    meta = {"resourceVersion": str(since), "annotations": note}
                    self._event("BOOKMARK", {"kind": kind, "apiVersion": version, "metadata": meta})
                    initial = False
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # The caller has gone.

    def _event(self, what, obj):
        data = json.dumps({"type": what, "object": obj}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def serve(objects, cluster=None):
    """Starts it on loopback; its URL. It ends with the process."""
    handler = type("Bound", (_Handler,), {"view": View(objects, cluster)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
