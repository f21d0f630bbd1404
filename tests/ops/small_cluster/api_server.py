"""Enough of the Kubernetes API for real Helm: discovery, and objects that are read, created,
changed and deleted. There are no watches, so Helm may not wait; apply replaces what was there."""

import copy
import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import yaml

from small_cluster.objects import Refused

KINDS = {  # group/version: {plural: kind}
    "v1": {
        "pods": "Pod",
        "services": "Service",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "persistentvolumeclaims": "PersistentVolumeClaim",
    },
    "apps/v1": {"statefulsets": "StatefulSet", "deployments": "Deployment"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
}
PATH = re.compile(r"^/apis?/((?:[^/]+/)?v1)(?:/namespaces/([^/]+))?(?:/([a-z]+)(?:/([^/]+))?)?$")


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
            version = {"groupVersion": group, "version": "v1"}
            name = group.split("/")[0]
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/openapi/v3":
        return {"paths": {r: {"serverRelativeURL": f"/openapi/v3/{r}?hash=1"} for r in roots}}
    if path.startswith("/openapi/v3/"):
        return _openapi(path.removeprefix("/openapi/v3/"))
    return None


def _merge(old, new):
    result = dict(old)
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(old.get(key) or {}, value) if isinstance(value, dict) else value
    return result


class _Error(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "code": code,
            "message": message,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects = None

    def log_message(self, *_):
        pass

    def _call(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlparse(self.path)
        path = url.path.rstrip("/")
        try:
            code, answer = 200, discovery(path)
            if answer is None:
                code, answer = self._on_object(path, parse_qs(url.query), body)
        except _Error as error:
            code, answer = error.code, error.body
        except Refused as refused:
            error = _Error(422, "Invalid", str(refused))
            code, answer = error.code, error.body
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _call

    def _on_object(self, path, query, body):
        matched = PATH.match(path)
        if not matched or matched[1] not in KINDS:
            raise _Error(404, "NotFound", f"no such path {path}")
        version, namespace, plural, name = matched.groups()
        if plural is None:
            verbs = ["create", "delete", "get", "list", "patch", "update"]
            resources = [
                {
                    "name": p,
                    "singularName": k.lower(),
                    "namespaced": True,
                    "kind": k,
                    "verbs": verbs,
                }
                for p, k in KINDS[version].items()
            ]
            return 200, {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": version,
                "resources": resources,
            }
        kind = KINDS[version].get(plural)
        if kind is None:
            raise _Error(404, "NotFound", plural)
        if self.command == "GET" and name is None:
            return 200, {
                "kind": f"{kind}List",
                "apiVersion": version,
                "metadata": {"resourceVersion": "1"},
                "items": self.objects.all(kind),
            }
        old = self.objects.find(kind, name) if name else None
        if old is None and (self.command != "PATCH" or "apply" not in self._type()):
            if self.command != "POST":
                raise _Error(404, "NotFound", f'{plural} "{name}" not found')
        if self.command == "GET":
            return 200, old
        if self.command == "DELETE":
            self.objects.remove(kind, name)
            return 200, old
        return self._put(kind, namespace, old, yaml.safe_load(body), "dryRun" in query)

    def _type(self):
        return self.headers.get("Content-Type", "")

    def _put(self, kind, namespace, old, obj, dry):
        if self.command == "PATCH" and "apply" not in self._type():
            obj = _merge(old, obj)
        meta = obj["metadata"]
        meta.setdefault("namespace", namespace)
        if self.command == "POST" and self.objects.find(kind, meta["name"]):
            raise _Error(409, "AlreadyExists", meta["name"])
        kept = (old or {}).get("metadata", {})
        meta["uid"] = kept.get("uid") or str(uuid.uuid4())
        meta["resourceVersion"] = str(int(kept.get("resourceVersion", 0)) + 1)
        if dry:
            return 200, copy.deepcopy(obj)
        self.objects.put(obj)
        return (200 if old else 201), self.objects.find(kind, meta["name"])


def serve(objects):
    """Starts it on loopback; its URL. It ends with the process."""
    handler = type("Bound", (_Handler,), {"objects": objects})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
