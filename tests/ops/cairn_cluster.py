"""Cairn in the small cluster: values for small pods, certificates, and calls from a pod."""

import http.client
import json
import pathlib
import re
import shutil
import sys
import threading
import time

from conftest import ROOT
from pod_security import pod_specs
from rendered_chart import merged, render
from small_cluster.cluster import SmallCluster

sys.path.insert(0, str(ROOT / "tests/support"))
import authority  # noqa: E402  (needs the path)

MODEL = ROOT / "tests/data/gguf/kquant.gguf"
PLAINTEXT = {"tls": {"acceptPlaintextOnTheNetwork": True}}
SMALL = {
    "cache": {
        "host": {"capacityMiB": 64},
        "disk": {"capacityMiB": 64},
        "config": {"index": {"capacity": "16MiB"}, "disk": {"scrub_rate": "0B"}},
        "announceSeconds": 1,
    },
    "worker": {
        "kvPoolMiB": 64,
        "threads": 1,
        "announceSeconds": 1,
        "model": {"existingClaim": "models", "path": "kquant.gguf"},
        "config": {"cache": {"push_queue": "16MiB"}},
    },
    "router": {"announceSeconds": 1},
}


def make_programs(folder, programs, scripts=()):
    """A folder with Cairn's programs and the scripts {name: text, or path of a program}."""
    folder.mkdir()
    for name in ["cairn", "cairn-cache", "cairn-worker", "cairn-router"]:
        shutil.copy(programs / name, folder / name)
    for name, text in dict(scripts).items():
        if isinstance(text, pathlib.Path):
            shutil.copy(text, folder / name)
        else:
            (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


_ENGINE = """#!/usr/bin/python3
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "m", "object": "model"}]})
    def do_POST(self):
        if "Content-Length" in self.headers:
            self.rfile.read(int(self.headers["Content-Length"]))
        else:  # In chunks, as gateways send bodies that they have looked at.
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        choice = {"index": 0, "finish_reason": "stop", "text": TEXT}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        self.answer({"id": "x", "model": "m", "choices": [choice], "usage": usage})
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


def engine_script(text):
    """A program that answers as an engine does, with what the expression `text` says."""
    return _ENGINE.replace("TEXT", text)


class Release:
    """The chart's objects in a small cluster. `authority`: signs its Certificates, if any."""

    def __init__(self, chart, cluster):
        self._chart, self.cluster = chart, cluster
        self.authority = None
        self.values, self._docs = {}, []

    def upgrade(self, *values, patience=180):
        """Applies the chart with these values over the small ones, and waits until all is ready."""
        self.apply(*values)
        self.cluster.wait_settled(patience)

    def apply(self, *values, change=lambda docs: docs):
        self.values = SMALL
        for more in values:
            self.values = merged(self.values, more)
        self._docs = render(self._chart, self.values)
        if self.authority:
            for made in self.authority.issue(self._docs):
                self.cluster.add(made)
        self.cluster.apply(change(self._docs))

    def test(self):
        """`helm test`: (whether it succeeded, what it said)."""
        (doc,) = [d for d in self._docs if d["kind"] == "Pod"]
        pod = self.cluster.run_hook(doc)
        pod.ended.wait(20)
        (container,) = doc["spec"]["containers"]
        said = pod.container(container["name"]).log.read_text(errors="replace")
        return pod.phase == "Succeeded", said

    def wait_whole(self, address):
        """Until all members see each other, as `cairn stat --cluster` says."""
        said = []

        def whole():
            code, output = self.cairn("stat", "--cluster", f"--cache={address}")
            said[:] = [output]
            return code == 0

        try:
            self.cluster.wait(whole, "all members see each other")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{said[0]}") from None

    def run(self, *command):
        """(exit code, output) of a program in a pod that mounts what `helm test` has."""
        (doc,) = [d for d in self._docs if d["kind"] == "Pod"]
        ((_, spec),) = pod_specs(doc)
        # Its limits are for `helm test`.
        container = {**spec["containers"][0], "name": "run", "command": list(command)}
        container.pop("resources")
        model = {"name": "model", "mountPath": "/models", "readOnly": True}
        container["volumeMounts"] = [*container.get("volumeMounts", []), model]
        claim = {"name": "model", "persistentVolumeClaim": {"claimName": "models"}}
        spec = {**spec, "volumes": [*spec.get("volumes", []), claim]}
        name = f"run-{self.cluster.number()}"
        pod = self.cluster.run_hook(
            {"metadata": {"name": name}, "spec": {**spec, "containers": [container]}}
        )
        pod.ended.wait(20)
        ran = pod.container("run")
        return ran.exit_code, ran.log.read_text(errors="replace")

    def cairn(self, *words):
        tls = []
        if self._has_tls():
            tls = [f"--tls-{k}=/etc/cairn-tls/{f}" for k, f in TLS_FILES]
            tls.append("--tls-server-name=test-cache.kv.svc")
        return self.run("cairn", *words, *tls)

    def generate(self, address, numbers=250, first=1):
        """How many tokens of a prompt of `numbers` numbers came from the node at the address, and a
        hash of what was computed. The node holds the prompt's blocks afterwards."""
        code, output = self.run(
            "sh",
            "-c",
            f"seq -s' ' {first} {first + numbers - 1} |"
            " cairn generate --model=/models/kquant.gguf --prompt-file=-"
            f" --raw --max-tokens=1 --threads=1 --json --cache={address} {self._tls()}",
        )
        assert code == 0, output
        answer = json.loads(output[output.index('{"prompt_tokens') :])
        return answer["fetched_tokens"], answer["prompt_logits_sha256"]

    def _has_tls(self):
        return "tls-ca" in json.dumps(self._docs)

    def _tls(self):
        if not self._has_tls():
            return ""
        files = " ".join(f"--tls-{k}=/etc/cairn-tls/{f}" for k, f in TLS_FILES)
        return f"{files} --tls-server-name=test-cache.kv.svc"


def metric(release, pod, port, name, labels=""):
    """The sum of a metric's series with these labels."""

    def read():
        connection = http.client.HTTPConnection(pod.address, port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.findall(rf"^{name}(?:{{[^}}]*{labels}[^}}]*}})? (\S+)$", text, flags=re.M)
        return sum(float(value) for value in found)

    return release.cluster.in_client(read)


def post(release, service, port, path, body):
    """(status, text) of a call to a Service."""

    def call():
        address = release.cluster.service_address(service)
        connection = http.client.HTTPConnection(address, port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    return release.cluster.in_client(call)


TLS_FILES = [("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")]


def start(chart, folder, programs, scripts=(), **options):
    """A release in a cluster of its own, with a volume that has a model; close its cluster."""
    folder.chmod(0o755)
    made = make_programs(folder / "programs", programs, scripts)
    cluster = SmallCluster(folder / "cluster", made, **options)
    models = cluster.claims.folder("models", 10001)
    shutil.copy(MODEL, models / MODEL.name)
    (models / MODEL.name).chmod(0o644)
    return Release(chart, cluster)


class Authority(authority.Authority):
    """Signs certificates as an issuer of cert-manager does."""

    def issue(self, docs):
        """The Secrets of the Certificates among manifests."""
        for doc in docs:
            if doc["kind"] == "Certificate":
                spec = doc["spec"]
                data = self.make(spec["dnsNames"], spec.get("uris", ()))
                yield secret(spec["secretName"], data)

    def mount(self, attributes, pod):
        """The files of a volume of cert-manager's CSI driver."""

        def items(name):
            text = attributes.get(f"csi.cert-manager.io/{name}", "")
            for variable, value in [("POD_NAME", pod), ("POD_NAMESPACE", "kv")]:
                text = text.replace(f"${{{variable}}}", value)
            return [item for item in text.split(",") if item]

        return self.make(items("dns-names"), items("uri-sans"))


def secret(name, data):
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": data,
    }


class Load:
    """Calls `request` again and again from a pod's network, in threads, until `stop`."""

    def __init__(self, cluster, request, threads=2):
        self.done, self.failures = 0, []
        self._cluster, self._request = cluster, request
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        self._cluster.enter_client()
        while not self._ended.wait(0.05):
            try:
                self._request()
                self.done += 1
            except Exception as error:  # Whatever a caller would see.
                self.failures.append(f"{time.monotonic():.1f}: {type(error).__name__}: {error}")

    def stop(self):
        self._ended.set()
        for thread in self._threads:
            thread.join()
