"""Nodes and workers as child processes: start, wait for the ready line, call through the CLI,
stop."""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import time
import urllib.request


class Server:
    """A service that prints `ready grpc=HOST:PORT admin=HOST:PORT`, and `http=HOST:PORT` if it has
    such a port. Use as a context manager."""

    def __init__(self, command, log, ready_seconds=60):
        self._log = open(log, "ab")
        self._process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=self._log
        )
        self.pid = self._process.pid
        deadline = time.monotonic() + ready_seconds
        text = b""
        while b"\n" not in text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self.kill()
                raise RuntimeError(
                    f"{command[0]}: no ready line within {ready_seconds} s, see {log}"
                )
            chunk = self._process.stdout.read1(4096)
            if not chunk:
                raise RuntimeError(
                    f"{command[0]} ended with {self._process.wait()} before it was ready, see {log}"
                )
            text += chunk
        found = re.search(rb"ready grpc=(\S+) admin=(\S+)", text)
        if not found:
            self.kill()
            raise RuntimeError(f"{command[0]} printed {text!r}, expected a ready line")
        self.grpc, self.admin = found[1].decode(), found[2].decode()
        http = re.search(rb" http=(\S+)", text)
        self.http = http[1].decode() if http else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """SIGKILL, and waits for the end."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def freeze(self):
        """SIGSTOP, and all threads have stopped: the signal alone does not wait for those that
        run."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self.pid}/task")
        while any(
            (task / "stat").read_text().rpartition(")")[2].split()[0] != "T"
            for task in tasks.iterdir()
        ):
            time.sleep(0.001)

    def thaw(self):
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self):
        """SIGTERM, and waits for the end; the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    def metric(self, name):
        """Sum of a metric's series, from /metrics."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if re.match(re.escape(name) + r"(\{| )", line)
        ]
        if not values:
            raise RuntimeError(f"metric {name} is not exported")
        return sum(values)


def wait_until(condition, seconds, what):
    """Polls a cheap condition of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def cairn(build, *arguments):
    """Runs the CLI with --json; its answer."""
    done = subprocess.run(
        [str(build / "bin/cairn"), *[str(a) for a in arguments], "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"cairn {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return json.loads(done.stdout)


def node_command(build, *extra):
    return [
        build / "bin/cairn-cache",
        "--listen",
        "127.0.0.1:0",
        "--admin.listen",
        "127.0.0.1:0",
        *extra,
    ]


def router_command(build, model, *extra):
    return [
        build / "bin/cairn-router",
        "--model",
        model,
        "--listen",
        "127.0.0.1:0",
        "--admin.listen",
        "127.0.0.1:0",
        "--http.listen",
        "127.0.0.1:0",
        *extra,
    ]


def worker_command(build, model, *extra):
    return [
        build / "bin/cairn-worker",
        "--model",
        model,
        "--listen",
        "127.0.0.1:0",
        "--admin.listen",
        "127.0.0.1:0",
        *extra,
    ]
