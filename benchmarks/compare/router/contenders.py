"""The routers that are compared, as child processes before simulated engines."""

import contextlib
import pathlib
import re
import select
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
VENV = ROOT / "build/compare/router"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engines:
    """benchmarks/simulated_engines. Use as a context manager."""

    def __init__(self, build, *options):
        self.process = subprocess.Popen(
            [build / "benchmarks/simulated_engines", *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if not select.select([self.process.stdout], [], [], 30)[0]:
            raise RuntimeError("simulated_engines: not ready within 30 s")
        line = self.process.stdout.readline().decode().split()
        if not line or line[0] != "ready":
            raise RuntimeError(f"simulated_engines printed {line}, expected ready and URLs")
        self.urls = line[1:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Router:
    """A router that has found all its engines. Use as a context manager."""

    def __init__(self, command, url, log, ready_seconds=90):
        self.url = url
        self._log = open(log, "ab")
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + ready_seconds
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"{command[0]}: not ready, see {log}")
            time.sleep(0.1)

    def _serves(self):
        body = b'{"model":"simulated","prompt":"ready?","max_tokens":1}'
        request = urllib.request.Request(
            self.url + "/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    @property
    def pid(self):
        return self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def smg(engines, log, *flags):
    port = free_port()
    return Router(
        [
            VENV / "bin/smg",
            "launch",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--prometheus-port",
            free_port(),
            "--log-level",
            "warn",
            *flags,
            "--worker-urls",
            *engines,
        ],
        f"http://127.0.0.1:{port}",
        log,
    )


def vllm_router(engines, log, *flags):
    port = free_port()
    return Router(
        [
            VENV / "bin/vllm-router",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--prometheus-port",
            free_port(),
            "--log-level",
            "warning",
            *flags,
            "--worker-urls",
            *engines,
        ],
        f"http://127.0.0.1:{port}",
        log,
    )


def cairn(build, engines, log, *flags):
    port = free_port()
    return Router(
        [
            build / "bin/cairn-router",
            "--listen",
            "127.0.0.1:0",
            "--admin.listen",
            "127.0.0.1:0",
            "--http.listen",
            f"127.0.0.1:{port}",
            "--workers",
            ",".join(engines),
            *flags,
        ],
        f"http://127.0.0.1:{port}",
        log,
    )


@contextlib.contextmanager
def direct(engines):
    """The first engine without a router."""

    class Direct:
        url = engines[0]
        pid = None

    yield Direct()


def cpu_seconds(pid):
    """The processor time of all threads of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024
