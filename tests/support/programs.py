"""Cairn's real programs on loopback, with a small model. CAIRN_BUILD names the build directory with
the programs (default build/release)."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from waiting import PATIENCE, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release")) / "bin"
MODEL = ROOT / "tests/data/gguf/kquant.gguf"
LOOPBACK = ("--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0")
SMALL = ("--host.capacity", "64MiB", "--index.capacity", "16MiB")


class Program:
    """A process whose output goes to files."""

    def __init__(self, folder, name, *args, prefix=(), env=None, **popen):
        self.log, self.out = folder / "log", folder / "out"
        popen.setdefault("stdin", subprocess.DEVNULL)
        with open(self.out, "wb") as out, open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*map(str, prefix), str(BIN / name), *map(str, args)],
                env=env,
                stdout=popen.pop("stdout", out),
                stderr=popen.pop("stderr", log),
                cwd=popen.pop("cwd", folder),
                **popen,
            )

    def ready(self):
        """The addresses of its ready line. None: it has ended before."""
        end = time.monotonic() + PATIENCE
        while True:
            ended = self.process.poll() is not None
            for line in self.out.read_text(errors="replace").splitlines():
                if line.startswith("ready "):
                    return dict(word.split("=", 1) for word in line.split() if "=" in word)
            if ended:
                return None
            assert time.monotonic() < end, self.stderr()
            time.sleep(0.02)

    def stderr(self):
        return self.log.read_text(errors="replace")

    def wait(self):
        return self.process.wait(PATIENCE)

    def stop(self, number=signal.SIGTERM):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


class Programs:
    """Starts programs, and ends them when the test ends."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        self.env["XDG_RUNTIME_DIR"] = str(runtime)

    def start(self, name, *args, **more):
        folder = self.folder / f"{len(self.started)}-{name}"
        folder.mkdir()
        program = Program(folder, name, *args, env=more.pop("env", self.env), **more)
        self.started.append(program)
        return program

    def node(self, *args, **more):
        return self.start("cairn-cache", *LOOPBACK, *SMALL, *args, **more)

    def worker(self, *args, model=MODEL, **more):
        own = ("--model", model, "--kv_pool", "64MiB", "--threads", "1")
        return self.start("cairn-worker", *LOOPBACK, *own, *args, **more)

    def router(self, workers, *args, model=MODEL, **more):
        named = ("--model", model) if model else ()
        own = ("--http.listen", "127.0.0.1:0", "--workers", workers)
        return self.start("cairn-router", *LOOPBACK, *own, *named, *args, **more)

    def serve(self, *router_args, worker_args=(), model=MODEL):
        """A worker and a router before it, which answers. Its URL and its admin port."""
        worker = self.worker(*worker_args, model=model)
        ready = worker.ready()
        assert ready, worker.stderr()
        router = self.router(ready["grpc"], *router_args, model=model)
        ready = router.ready()
        assert ready, router.stderr()
        url = "http://" + ready["http"]
        wait_until(lambda: ask(url + "/health")[0] == 200, router.stderr())
        return url, ready["admin"]

    def relay(self, engine, *settings):
        """A router before an engine, which answers. Its URL."""
        router = self.router(engine.url, *settings, model=None)
        ready = router.ready()
        assert ready, router.stderr()
        url = "http://" + ready["http"]
        wait_until(lambda: ask(url + "/health")[0] == 200, router.stderr())
        return url

    def cairn(self, *args, **more):
        more.setdefault("env", self.env)
        more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [BIN / "cairn", *map(str, args)],
            check=False,
            cwd=self.folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            **more,
        )

    def stop(self):
        for program in reversed(self.started):
            if program.process.poll() is None:
                program.process.kill()
            program.process.wait()


def ask(url, body=None, headers=None, method=None):
    """Status, headers and body of one call. Status 0: there was no answer."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()
    except OSError as error:
        return 0, {}, str(error).encode()


def raw(address, data):
    """Sends bytes, and returns the answer's first line and its body."""
    host, port = address.rsplit(":", 1)
    with contextlib.closing(socket.create_connection((host, int(port)), PATIENCE)) as connection:
        connection.sendall(data)
        answer = connection.makefile("rb")
        first = answer.readline().decode()
        length = 0
        while (line := answer.readline().strip()) != b"":
            name, value = line.split(b":", 1)
            if name.lower() == b"content-length":
                length = int(value)
        return first, answer.read(length)
