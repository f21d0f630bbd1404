"""Engines in processes of their own, real cache nodes, models that need no hub.

CAIRN_BUILD names the build directory with the programs (default build/release).
"""

import os
import pathlib
import subprocess
import sys
import time

import pytest

import cairn
from engine import ALONE, Engine, numbers, tail  # noqa: F401  (for the tests)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
MODELS = ROOT / "build/engines/models"
GGUF = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "tests/support"))
from ports import free_port  # noqa: E402,F401
from rows.processes import Server, node_command, wait_until  # noqa: E402,F401  (needs the path)


@pytest.fixture(autouse=True, scope="module")
def environment():
    """Each file's tests begin with what the first file's began with: engines that they start read
    variables that libraries in this process set for themselves, such as LMCache's."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def start_node(tmp_path_factory):
    """Starts a node; all of them are killed at the end of the file: engines need the memory."""
    folder = tmp_path_factory.mktemp("nodes")
    nodes = []

    def start(*extra):
        node = Server(
            node_command(BUILD, "--host.capacity", "256MiB", "--host.prefault", "false", *extra),
            folder / f"node{len(nodes)}.log",
        )
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node.kill()


def made(name, *arguments):
    """The folder of a model, made when it is not there."""
    folder = MODELS / name
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, HERE / "make_model.py", name, *arguments, folder], check=True
        )
    return folder


@pytest.fixture(scope="session")
def tiny():
    return made("tiny")


@pytest.fixture(scope="session")
def byte_model():
    """Like `tiny`, with a tokenizer."""
    return made("bytes")


@pytest.fixture(scope="session")
def smollm2():
    return made("smollm2", GGUF)


@pytest.fixture(scope="session")
def engine_log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    count = iter(range(1 << 20))
    return lambda: folder / f"engine{next(count)}.log"


class Counts:
    """The counts of a node since this was made: hits are those of the store, not of the engine."""

    def __init__(self, node):
        self._client = cairn.Client(node.grpc, client_name="engine-tests")
        self._before = self._stat()

    def _stat(self):
        return self._client.stat(deadline=10.0)

    def since(self):
        now = self._stat()
        found = {
            name: getattr(now, name) - getattr(self._before, name)
            for name in (
                "fetched_bytes",
                "pushed_bytes",
                "promoted_blocks",
                "fetched_disk_bytes",
                "corrupt_blocks",
                "matched_tokens",
            )
        }
        # Blocks that a hint brought into memory are read there.
        return {
            **found,
            "blocks": now.blocks,
            "from_disk": found["promoted_blocks"] + found["fetched_disk_bytes"],
        }

    def blocks(self):
        return self._stat().blocks

    def wait_blocks(self, blocks):
        """Storing goes on after the answer."""
        wait_until(lambda: self.blocks() >= blocks, 20, f"{blocks} blocks at the node")

    def flush(self):
        self._client.flush(deadline=10.0)

    def close(self):
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def stored(payload, slices=1):
    """Bytes of a part at the node, header included (docs/inside/formats/part.md)."""
    return payload + -(-(64 + 24 * slices) // 64) * 64


def same(answers, expected):
    """Tokens, and log-probabilities to what float32 keeps over other batch shapes."""
    assert [a["ids"] for a in answers] == [e["ids"] for e in expected]
    for a, e in zip(answers, expected):
        assert max(abs(x - y) for x, y in zip(a["logprobs"], e["logprobs"])) < 1e-3


def timed(call):
    begin = time.monotonic()
    return call(), time.monotonic() - begin


# ---- what the tests with the small model share ----

BLOCK = 32
ENGINE = {"max_model_len": 2048, "block_size": BLOCK}

A, B, C, D = (numbers(seed, 992) for seed in (97, 98, 99, 100))
A_LONGER = A[:960] + numbers(7, 300)
CROWD = [numbers(1000 + i, 480) for i in range(8)]
CROWD_TOKENS = 200


@pytest.fixture(scope="session")
def reference(tiny, engine_log):
    """Answers without a connector, by prompt."""
    with Engine(tiny, engine_log(), **ENGINE, **ALONE) as engine:
        found = {tuple(p): engine.ask(p)[0] for p in (A, B, C, D, A_LONGER)}
        crowd = [engine.ask(p, tokens=CROWD_TOKENS)[0] for p in CROWD]
    return lambda *prompts, crowded=False: crowd if crowded else [found[tuple(p)] for p in prompts]
