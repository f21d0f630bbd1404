"""Nobody learns what others have stored: not by answers, and not by the time that they take.

CAIRN_PROBES: how many look-ups of each kind are timed (default 2000)."""

import collections
import json
import os
import pathlib
import random
import sys
import time

import numpy
import pytest

import cairn
from conftest import SLOW, PatientClient, Prompt, opaque_spec, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "tests/support"))
from authority import Authority  # noqa: E402  (needs the path)

PROBES = int(os.environ.get("CAIRN_PROBES", "2000"))
PROMPTS, BLOCKS, SIZE = 32, 4, 4096
# 0.5: times tell nothing. With 2,000 look-ups of each kind chance stays within 0.03 of it.
MOST_TOLD = 0.55


class World:
    """A node with a policy. Tenant a has users with salts of their own; tenant b is another."""

    def __init__(self, folder, start_node):
        authority = Authority(folder / "authority")
        self._folder = folder
        server = self._files("server", authority.make(["localhost"]))
        self._tls = {
            tenant: self._files(tenant, authority.make([], [f"spiffe://test/{tenant}"]))
            for tenant in "ab"
        }
        rules = [
            {"identity": f"uri:spiffe://test/{t}", "role": "writer", "tenants": [t]} for t in "ab"
        ]
        (folder / "policy").write_text(json.dumps({"rules": rules}), encoding="ascii")
        self._node = start_node(
            *("--tls.cert", server["tls.crt"], "--tls.key", server["tls.key"]),
            *("--tls.client_ca", server["ca.crt"], "--auth.policy", folder / "policy"),
        )
        with self.client("a", "grpc") as a, self.client("b", "grpc") as b:
            self.neighbour = self._stored(a, opaque_spec(SIZE, tenant="a", salt=b"neighbour"))
            self.stranger = self._stored(b, opaque_spec(SIZE, tenant="b", salt=b"stranger"))

    def _files(self, name, secret):
        folder = self._folder / name
        folder.mkdir()
        for file, text in secret.items():
            (folder / file).write_text(text, encoding="ascii")
        return {file: str(folder / file) for file in secret}

    @staticmethod
    def _stored(client, spec):
        return [Prompt(client, spec, seed, BLOCKS, SIZE).push(client) for seed in range(PROMPTS)]

    def client(self, tenant, path):
        files = self._tls[tenant]
        tls = cairn.Tls(files["ca.crt"], files["tls.crt"], files["tls.key"])
        address = self._node.grpc.replace("127.0.0.1", "localhost")
        made = PatientClient(address, client_name="prober", path=path, tls=tls, tenant=tenant)
        wait_until(lambda: made.stats().connected, SLOW, "the session")
        # The same-node path needs a namespace, and a moment.
        own = made.open_namespace(opaque_spec(SIZE, tenant=tenant, salt=b"prober")).fingerprint
        wait_until(
            lambda: answer_of(made, own, [os.urandom(32)])[0] != "UnavailableError",
            SLOW,
            "the path",
        )
        return made


@pytest.fixture(scope="module")
def world(tmp_path_factory, start_node):
    return World(tmp_path_factory.mktemp("private"), start_node)


def others(prompt):
    """Keys of nobody's blocks."""
    return [os.urandom(32) for _ in prompt.keys]


def neighbours_keys(world, client):
    """The keys of a user with another salt, in the prober's own namespace: more than it can guess,
    since its own keys of the same tokens are others."""
    own = client.open_namespace(opaque_spec(SIZE, tenant="a", salt=b"prober")).fingerprint
    stored = [(own, prompt.keys) for prompt in world.neighbour]
    return stored, [(own, others(prompt)) for prompt in world.neighbour]


def strangers_blocks(world, _client):
    """The namespace of another tenant, with keys that are stored there, and that are not."""
    there = world.stranger[0].namespace
    stored = [(there, prompt.keys) for prompt in world.stranger]
    return stored, [(there, others(prompt)) for prompt in world.stranger]


def strangers_namespaces(world, _client):
    """The namespace of another tenant, and one that is not there."""
    there = world.stranger[0].namespace
    stored = [(there, prompt.keys) for prompt in world.stranger]
    return stored, [(os.urandom(32), prompt.keys) for prompt in world.stranger]


def answer_of(client, namespace, keys):
    """All that the caller is told."""
    try:
        match = client.match(namespace, keys)
    except cairn.Error as error:
        return type(error).__name__, str(error).replace(namespace.hex(), "NAMESPACE")
    return match.matched_blocks, str(match.miss_reason), len(match.tiers), match.lease.held


def told_by(first, second):
    """The probability that a time of the second is the longer one (area under the ROC curve)."""
    times = numpy.concatenate([first, second])
    order = times.argsort(kind="stable")
    ranks = numpy.empty(len(times))
    ranks[order] = numpy.arange(1, len(times) + 1)
    _, places, counts = numpy.unique(times, return_inverse=True, return_counts=True)
    ranks = (numpy.bincount(places, ranks) / counts)[places]  # Equal times share their ranks.
    n, m = len(first), len(second)
    return (ranks[n:].sum() - m * (m + 1) / 2) / (n * m)


def test_what_times_tell_is_measured():
    chance = numpy.random.default_rng(1)
    base = chance.normal(100, 10, 4000)
    assert abs(told_by(base[:2000], base[2000:]) - 0.5) < 0.03
    assert told_by(base[:2000], base[2000:] + 3) > MOST_TOLD
    assert told_by(base, base) == 0.5
    assert told_by(numpy.zeros(5), numpy.ones(5)) == 1


# In shared memory our client asks for no namespace that is another tenant's.
@pytest.mark.parametrize(
    "guesses, path",
    [
        (neighbours_keys, "grpc"),
        (neighbours_keys, "local"),
        (strangers_blocks, "grpc"),
        (strangers_namespaces, "grpc"),
    ],
)
def test_nobody_learns_what_others_have_stored(world, path, guesses, record_property):
    with world.client("a", path) as client:
        kinds = guesses(world, client)
        answers = [{answer_of(client, *guess) for guess in kind} for kind in kinds]
        assert answers[0] == answers[1] and len(answers[0]) == 1
        # In a random order, so that whatever else the machine does meets both alike.
        order = [0, 1] * PROBES
        random.Random(1).shuffle(order)
        times = collections.defaultdict(list)
        for n, kind in enumerate([0, 1] * 100 + order):
            guess = kinds[kind][n % PROMPTS]
            begin = time.perf_counter_ns()
            answer_of(client, *guess)
            if n >= 200:  # The first ones warm up.
                times[kind].append(time.perf_counter_ns() - begin)
    told = told_by(numpy.array(times[0]), numpy.array(times[1]))
    record_property("told", told)
    print(f"{path} {guesses.__name__}: {told:.3f}, median {numpy.median(times[0]) / 1000:.0f} us")
    assert 1 - MOST_TOLD <= told <= MOST_TOLD
