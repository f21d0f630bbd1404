"""`vllm serve` in a process of its own, as users start it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

from conftest import tail, wait_until
from vllm_engine import ENVIRONMENT

LONG = 400  # Seconds that a start takes at most.


class Serve:
    """On a port of its own. Use as a context manager. `wait=False`: it may not be ready yet, and
    `wait_ready` waits: several start at a time. `command`: in place of `vllm serve`."""

    def __init__(self, arguments, log, port=None, wait=True, environment=None, command=None):
        self._log = open(log, "ab")
        self._path = log
        self.port = port or 18000 + os.getpid() % 2000
        command = command or [os.path.join(os.path.dirname(sys.executable), "vllm"), "serve"]
        environment = {
            **ENVIRONMENT,
            **os.environ,
            **(environment or {}),
            "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
        }
        # With it, servers that run at the same time add up their metrics in one folder.
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        self._process = subprocess.Popen(
            [*map(str, command), *map(str, arguments), "--port", str(self.port)],
            stdout=self._log,
            stderr=self._log,
            env=environment,
        )
        if wait:
            self.wait_ready()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self):
        wait_until(self._ready, LONG, f"vllm serve, see {self._path}")

    def _ready(self):
        assert self._process.poll() is None, tail(self._path)
        try:
            return self.get("/health") is not None
        except OSError:
            time.sleep(0.5)
            return False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def complete(self, model, prompt):
        """The answer's text."""
        return complete(self.url, model, prompt)["choices"][0]["text"]

    def metric(self, name):
        """The sum over all labels."""
        lines = [
            line
            for line in self.get("/metrics").splitlines()
            if re.match(re.escape(name) + r"(\{| )", line)
        ]
        assert lines, f"{name} is not exported"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def post(url, body, timeout=200):
    """A JSON answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def complete(url, model, prompt, tokens=8):
    """The answer to a completion. Greedy."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return post(url + "/v1/completions", body)
