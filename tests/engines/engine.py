"""A vLLM engine in a process of its own, for tests and benchmarks."""

import contextlib
import json
import os
import pathlib
import select
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LONG = 400.0  # Seconds that only a bug takes.


def numbers(seed, count, below=512):
    """Tokens that no other seed has in this order."""
    found, x = [], seed
    for _ in range(count):
        x = (x * 1103515245 + 12345) % (1 << 31)
        found.append((x >> 8) % below)
    return found


# Scheduler and worker in the engine's own process: it starts in half the time.
ALONE = {"distributed_executor_backend": "uni"}


class Engine:
    """vllm_engine.py. Use as a context manager; its end is the engine's regular one."""

    def __init__(self, model, log, environment=None, **options):
        environment = dict(environment or {})
        if options.get("distributed_executor_backend") == "uni":
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self._log = open(log, "ab")
        self._process = subprocess.Popen(
            [sys.executable, HERE / "vllm_engine.py", json.dumps({"model": str(model), **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )
        self._path = log
        self.pid = self._process.pid
        assert self._read() == {"ready": True}

    def _read(self):
        if not select.select([self._process.stdout], [], [], LONG)[0]:
            raise RuntimeError(f"no answer within {LONG:.0f} s: {tail(self._path)}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with {self._process.wait()}: {tail(self._path)}")
        return json.loads(line)

    def send(self, **command):
        self._process.stdin.write(json.dumps(command) + "\n")

    def receive(self):
        return self._read()["answer"]

    def ask(self, *prompts, **options):
        """Answers to all prompts, sent at once."""
        self.send(prompts=prompts, **options)
        return self.receive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def tail(path, lines=40):
    return "\n".join(pathlib.Path(path).read_text(errors="replace").splitlines()[-lines:])
