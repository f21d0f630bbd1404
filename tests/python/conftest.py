"""Real nodes for the Python package, which `make wheel` has installed here.

CAIRN_BUILD names the build directory with the programs (default build/release).
"""

import os
import pathlib
import sys
import time

import pytest

import cairn

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
sys.path.insert(0, str(ROOT / "tests/support/fake_device"))
sys.path.insert(0, str(ROOT / "benchmarks"))
from rows.processes import Server, node_command, wait_until  # noqa: E402,F401  (needs the path)

SLOW = 120.0  # A deadline that only a bug reaches.


@pytest.fixture(scope="session")
def start_node(tmp_path_factory):
    """Starts a node; all of them are killed at the end."""
    folder = tmp_path_factory.mktemp("nodes")
    nodes = []

    def start(*extra):
        node = Server(
            node_command(BUILD, "--host.capacity", "256MiB", *extra),
            folder / f"node{len(nodes)}.log",
        )
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node.kill()


@pytest.fixture(scope="session")
def node(start_node, tmp_path_factory):
    """A node that tests share and leave healthy, with a disk."""
    return start_node("--disk.path", str(tmp_path_factory.mktemp("disk")))


pytest.register_assert_rewrite("vllm_device_engine")
from vllm_device_engine import engines, gpu, kernels, keys  # noqa: E402,F401  (fixtures)


@pytest.fixture(params=["grpc", "local"])
def path(request):
    return request.param


def patient(name, *limits):
    """A call of a client whose limits are SLOW unless the test names them."""
    plain = getattr(cairn.Client, name)
    defaults = dict.fromkeys(limits, SLOW)
    return lambda self, *args, **options: plain(self, *args, **(defaults | options))


class PatientClient(cairn.Client):
    """A client for busy machines: the limits by default are those of engines, which are in a
    hurry."""

    open_namespace = patient("open_namespace", "deadline")
    match = patient("match", "deadline")
    match_pools = patient("match_pools", "deadline")
    fetch = patient("fetch", "progress", "deadline")
    get = patient("get", "lookup_deadline", "progress", "deadline")
    push = patient("push", "deadline")
    prefetch = patient("prefetch", "deadline")
    exists = patient("exists", "deadline")
    renew_lease = patient("renew_lease", "deadline")
    flush = patient("flush", "deadline")
    stat = patient("stat", "deadline")


def connect(node, path="auto", **options):
    """A client whose calls work, and take the path that was asked for."""
    client = PatientClient(node.grpc, client_name="python-test", path=path, **options)
    until = time.monotonic() + SLOW
    while not client.stats().connected:
        assert time.monotonic() < until, "not connected"
        time.sleep(0.005)
    return client


@pytest.fixture
def client(node, path):
    with connect(node, path) as client:
        yield client


@pytest.fixture(scope="session")
def serial():
    """Numbers that no other test has: each has prompts of its own at the shared node."""
    numbers = iter(range(1, 1 << 20))
    return lambda: next(numbers)


def native_spec(**changes):
    """2 layers, 4 KV heads, 16 tokens."""
    planes = [cairn.Plane("k", 4, 32, cairn.DType.F16), cairn.Plane("v", 4, 32, cairn.DType.F16)]
    fields = {
        "model": "test",
        "revision": "1",
        "numerics": "test",
        "layout": cairn.NativeLayout([cairn.LayerGroup(2, planes)], kv_heads=4, block_tokens=16),
    }
    return cairn.NamespaceSpec(**(fields | changes))


def opaque_spec(size=1 << 20, parts=1, **changes):
    fields = {
        "model": "test",
        "revision": "1",
        "numerics": "test",
        "key_scheme": "test",
        "layout": cairn.OpaqueLayout(
            "bytes of a test", max_part_bytes=size, parts=parts, block_tokens=16
        ),
    }
    return cairn.NamespaceSpec(**(fields | changes))


class Prompt:
    """Blocks with random bytes, and their keys."""

    def __init__(self, client, spec, seed, blocks, size):
        self.namespace = client.open_namespace(spec, deadline=SLOW).fingerprint
        tokens = [seed] * (16 * blocks)
        self.keys = cairn.block_keys(self.namespace, tokens, 16)
        self.data = [os.urandom(size) for _ in range(blocks)]

    def parts(self, rect=None):
        parents = [None, *self.keys]
        return [
            cairn.Part(key, data, parent=parent, first_position=16 * i, rect=rect)
            for i, (key, data, parent) in enumerate(zip(self.keys, self.data, parents))
        ]

    def push(self, client):
        assert client.push(self.namespace, self.parts()) == [None] * len(self.keys)
        return self

    def match(self, client, **options):
        match = client.match(self.namespace, self.keys, deadline=SLOW, **options)
        assert match.matched_blocks == len(self.keys), match
        return match
