"""Debian's Prometheus and Alertmanager on scratch folders, and what Alertmanager tells."""

import http.server
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/support"))
# Need the path above.
from ports import free_port  # noqa: E402
from waiting import PATIENCE  # noqa: E402


class _Process:
    """A program of Debian's that listens at `self.url`."""

    def __init__(self, program, folder, flag, *flags):
        if not shutil.which(program):
            pytest.fail(f"{program} is not installed: run tools/setup/setup.sh")
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self._log = open(folder / f"{program}.log", "wb")
        self._process = subprocess.Popen(
            [program, f"{flag}={address}", *flags], stdout=self._log, stderr=self._log
        )

    def stop(self):
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        self._log.close()


def _written(folder, name, config):
    path = folder / name
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


class Prometheus(_Process):
    def __init__(self, folder, config):
        path = _written(folder, "prometheus.yaml", config)
        super().__init__(
            "prometheus",
            folder,
            "--web.listen-address",
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
        )

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def ready(self):
        """Whether all targets answered the last scrape."""
        try:
            return all(t["health"] == "up" for t in self.get("/api/v1/targets")["activeTargets"])
        except OSError:
            return False

    def up(self):
        """The label `pod` of the targets that answered the last scrape."""
        try:
            found = self.get("/api/v1/query", query="up == 1")["result"]
        except OSError:
            return set()
        return {series["metric"]["pod"] for series in found}

    def series(self, expr, start):
        """[(labels, [(time, value)])] of a range query from `start` to now."""
        found = self.get("/api/v1/query_range", query=expr, start=start, end=time.time(), step=1)
        return [
            (one["metric"], [(float(t), float(v)) for t, v in one["values"]])
            for one in found["result"]
        ]

    def values(self, expr, start):
        """Every sample of `series` that is a number."""
        return [
            value
            for _, samples in self.series(expr, start)
            for _, value in samples
            if not math.isnan(value)
        ]


class Receiver:
    """A webhook for Alertmanager. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._alerts = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with receiver._lock:
                    receiver._alerts += body["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def told(self, alert, pod):
        """All that was told of an alert, the oldest first."""
        with self._lock:
            alerts = list(self._alerts)
        return [
            told
            for told in alerts
            if (told["labels"]["alertname"], told["labels"].get("pod")) == (alert, pod)
        ]

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


class Alertmanager(_Process):
    """Tells a receiver of each alert at once."""

    def __init__(self, folder, receiver):
        config = {
            "route": {
                "receiver": "test",
                "group_by": ["..."],
                "group_wait": "0s",
                "group_interval": "1s",
            },
            "receivers": [
                {
                    "name": "test",
                    "webhook_configs": [{"url": receiver.url, "send_resolved": True}],
                }
            ],
        }
        path = _written(folder, "alertmanager.yaml", config)
        super().__init__(
            "prometheus-alertmanager",
            folder,
            "--web.listen-address",
            f"--config.file={path}",
            f"--storage.path={folder / 'alertmanager'}",
            "--cluster.listen-address=",
        )


def hurried(groups):
    """Groups of rules that look back for two seconds instead of each minute, and that wait a second
    at most: a busy machine misses some scrapes, after which a longer wait would begin again."""

    def ranges(expr):
        seconds = {"m": 2, "h": 120}
        return re.sub(r"\[(\d+)([mh])\]", lambda m: f"[{int(m[1]) * seconds[m[2]]}s]", expr)

    return [
        {
            **group,
            "rules": [
                {**rule, "expr": ranges(rule["expr"])} | ({"for": "1s"} if "for" in rule else {})
                for rule in group["rules"]
            ],
        }
        for group in groups
    ]
