"""Child processes of the comparison, and how a peer program is driven: one JSON object a line, in
and out."""

import json
import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Child:
    """A server that is ended by its own id. `ready`: text that its output holds once it serves."""

    def __init__(self, argv, log, env=None, ready=None, timeout=60):
        self._log = open(log, "wb")
        self._process = subprocess.Popen(
            [str(a) for a in argv],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
        self.pid = self._process.pid
        until = time.monotonic() + timeout
        while ready and ready not in open(log, encoding="utf-8", errors="replace").read():
            if self._process.poll() is not None or time.monotonic() > until:
                tail = open(log, encoding="utf-8", errors="replace").read()[-600:]
                self.stop()
                raise RuntimeError(f"{argv[0]} is not ready, see {log}: {tail}")
            time.sleep(0.05)

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()


class Peer:
    """A program of this folder that measures somebody else's store. Use as a context manager."""

    def __init__(self, name, argv, log):
        self.name = name
        self._log = open(log, "wb")
        self._process = subprocess.Popen(
            [str(a) for a in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._log_path = log
        self.pids = self._read()["pids"] + [self._process.pid]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended, see {self._log_path}")
        return json.loads(line)

    def ask(self, **request):
        """One trial; its measurements by name."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer


def serve(pids, trial):
    """The other end of Peer: answers each request with trial(**request) until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # The output of libraries goes to the log.
    sys.stdout = sys.stderr

    def say(answer):
        out.write(json.dumps(answer) + "\n")
        out.flush()

    say({"pids": pids})
    for line in sys.stdin:
        try:
            say(trial(**json.loads(line)))
        except Exception as error:  # noqa: BLE001  The caller shows it.
            say({"error": f"{type(error).__name__}: {error}"})
