"""Engines' pods as deploy/kubernetes has them: another user than the node's, an image without
anything of Cairn, and the client that an init container stages."""

import itertools
import json
import re
import signal
import subprocess

import kubernetes_validate
import pytest
from cairn_cluster import MODEL, PLAINTEXT, Authority, Release, metric
from engine_pods import (
    BLOCK,
    CLIENT,
    FOLDER,
    LAST,
    call,
    generate,
    last_blocks,
    make_images,
    manifest,
    programs_for,
    wait_loaded,
)
from pod_security import pod_specs, violations
from rendered_chart import container_of, find, merged, pod_of
from small_cluster.cluster import Refused, SmallCluster

SIDECAR, SHARED = "engine-with-node.yaml", "engine-of-release.yaml"
PRIVILEGED = "privileged-node-per-machine.yaml"
BLOCKS = 8
GENERATE = """#!/bin/sh
cd /dev/shm
while :; do
  seq -s' ' 1 250 | cairn generate --model=/models/kquant.gguf --prompt-file=- --raw \\
    --max-tokens=1 --threads=1 --json --cache=127.0.0.1:7400
done
"""
CERTIFICATES = {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def cluster(networks, programs, images, tmp_path):
    tmp_path.chmod(0o755)
    made = programs_for(tmp_path / "programs", programs, images)
    options = {"images": images.images, "machines": 2}
    with SmallCluster(tmp_path / "cluster", made, **options) as started:
        yield started


def pods_of(cluster, name):
    """The pods of a workload, those that end left out, in the order of their machines."""
    pods = [p for p in cluster.pods() if p.owner[1] == name and not p.deleted.is_set()]
    return sorted(pods, key=lambda p: p.machine)


def wait_gone(cluster, name):
    """Until the pods of a workload have ended. Until then they may serve."""
    cluster.wait(lambda: name not in {p.owner[1] for p in cluster.pods()}, f"end of {name}")


class Seen:
    """A node's own statistics of bytes, from now on."""

    def __init__(self, cluster, pod):
        self.cluster = cluster
        self._pod = pod
        self._before = self._read()

    def _read(self):
        names = ("local_bytes", "rpc_received_bytes", "rpc_sent_bytes")
        local, *calls = (metric(self, self._pod, 7401, f"cairn_{name}_total") for name in names)
        return local, sum(calls)

    def bytes(self):
        """(through shared memory, in calls and answers)"""
        return tuple(now - then for now, then in zip(self._read(), self._before, strict=True))


def wait_memory_is_shared(cluster, engine, node, first):
    """Until a prompt is stored and loaded, and no block of it goes through gRPC. `first`: a prompt
    that nobody had; those after it are tried too. On a busy machine a client finds the socket
    late, and its bytes come through gRPC before."""
    prompts = itertools.count(first)
    tries = []

    def shared():
        prompt, seen = next(prompts), Seen(cluster, node)
        assert generate(cluster, engine, prompt) == 0
        wait_loaded(cluster, engine, prompt)
        local, calls = seen.bytes()
        tries.append((local, calls, call(cluster, engine, "GET", "/")))
        return local >= 2 * BLOCKS * BLOCK and calls < BLOCK

    try:
        cluster.wait(shared, "blocks that go through shared memory")
    except AssertionError as error:
        error.add_note(f"bytes through memory, bytes in calls, the client: {tries[-3:]}")
        raise


# ---- The files ----


@pytest.mark.parametrize("name", [SIDECAR, SHARED, PRIVILEGED])
def test_the_manifests_are_valid(name):
    docs = manifest(name)
    for version in ["1.30", "1.33", "1.36"]:
        for doc in docs:
            kubernetes_validate.validate(doc, version, strict=True)


@pytest.mark.parametrize("name", [SIDECAR, SHARED])
def test_the_manifests_are_restricted(name):
    specs = [pair for doc in manifest(name) for pair in pod_specs(doc)]
    assert [violations(spec) for _, spec in specs] == [[]]


def test_the_privileged_one_says_so_and_needs_no_more_than_the_folder():
    text = (FOLDER / PRIVILEGED).read_text(encoding="utf-8")
    assert text.startswith("# PRIVILEGED")
    docs = manifest(PRIVILEGED)
    namespace = find(docs, "Namespace", "engines-privileged")["metadata"]
    assert namespace["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    others = {doc["metadata"].get("namespace") for doc in docs if doc["kind"] != "Namespace"}
    assert others == {namespace["name"]}
    found = {name: violations(spec) for doc in docs for name, spec in pod_specs(doc)}
    assert found == {
        "DaemonSet/node-per-machine": [
            "volume sockets: hostPath",
            "folder: runAsNonRoot is not true",
            "folder: runAsUser is 0",
            "folder: adds CHOWN, FOWNER",
        ],
        "Deployment/engine": ["volume sockets: hostPath"],
    }


@pytest.mark.parametrize(
    ("name", "kind", "workload"),
    [(SIDECAR, "Deployment", "engine"), (PRIVILEGED, "DaemonSet", "node-per-machine")],
)
def test_the_nodes_memory_covers_its_settings(name, kind, workload, programs, tmp_path):
    """The program's own sum, whose parts are its bounds, the tier and a sixteenth of the tier."""
    docs = manifest(name)
    (config,) = [doc["data"]["cache.yaml"] for doc in docs if doc["kind"] == "ConfigMap"]
    (tmp_path / "cache.yaml").write_text(config.replace("/run/cairn", str(tmp_path)))
    words = [programs / "cairn-cache", "--check-config", "--config", tmp_path / "cache.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bounds = int(re.search(r" = (\d+) MiB", done.stdout)[1]) - 64 - 64 // 16
    whole = (FOLDER / name).read_text(encoding="utf-8")
    capacity = int(re.search(r"host: {capacity: (\d+)GiB}", whole)[1]) * 1024
    node = container_of(pod_of(docs, kind, workload), "cache")
    limit = int(node["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024
    assert 0 <= limit - (bounds + capacity + capacity // 16) < limit // 8


# ---- The node as a sidecar ----


def test_an_engine_uses_the_memory_of_its_node(cluster, images):
    cluster.apply(manifest(SIDECAR))
    cluster.wait_settled()
    (pod,) = cluster.pods()
    wait_memory_is_shared(cluster, pod, pod, 100)
    assert call(cluster, pod, "GET", "/")["uid"] == 2000
    maps = call(cluster, pod, "GET", "/maps")
    assert "cairn.libs/libgrpc" in maps and images.strange(maps) == []
    # The node's process dies, and its container starts again.
    pod.container("cache").process.send_signal(signal.SIGKILL)
    assert generate(cluster, pod, 2) == 0
    cluster.wait(lambda: pod.container("cache").restarts == 1 and pod.ready, "a node that is back")
    wait_memory_is_shared(cluster, pod, pod, 500)
    assert pod.container("cache").restarts == 1 and pod.container("engine").restarts == 0


def test_a_user_who_is_not_allowed_uses_the_network(cluster):
    cluster.apply(manifest(SIDECAR, **{'"2000"': '"2001"'}))
    cluster.wait_settled()
    (pod,) = cluster.pods()
    seen = Seen(cluster, pod)
    wait_loaded(cluster, pod, 1)
    local, calls = seen.bytes()
    assert local == 0 and calls >= 2 * BLOCKS * BLOCK
    refused = ("cairn_local_connections_total", 'outcome="refused"')
    assert metric(seen, pod, 7401, *refused) > 0


def end(cluster, docs):
    """Starts a pod, ends it, and returns it and the last blocks that its engine stored."""
    cluster.apply(docs)
    cluster.wait_settled()
    (pod,) = cluster.pods()
    wait_loaded(cluster, pod, 1)
    cluster.apply([])
    assert pod.ended.wait(60)
    return pod, last_blocks(pod)


def test_the_last_blocks_arrive_when_the_pod_ends(cluster):
    pod, stored = end(cluster, manifest(SIDECAR))
    assert stored == LAST
    assert [pod.container(name).exit_code for name in ("engine", "cache")] == [0, 0]
    assert cluster.notes == []


def test_they_would_not_if_the_node_were_no_sidecar(cluster):
    """Both get SIGTERM together. So the test above can fail."""
    docs = manifest(SIDECAR)
    spec = pod_of(docs, "Deployment", "engine")
    node = spec["initContainers"].pop()
    assert node.pop("restartPolicy") == "Always"
    spec["containers"].append(node)
    _, stored = end(cluster, docs)
    assert stored < LAST


def test_an_engine_that_computes_uses_the_memory_of_its_node(networks, programs, images, tmp_path):
    """The engine here is the command line's, with a small model."""
    tmp_path.chmod(0o755)
    made = programs_for(tmp_path / "programs", programs, images, {"engine": GENERATE})
    files = {CLIENT: images.images[CLIENT]}
    with SmallCluster(tmp_path / "cluster", made, images=files) as cluster:
        models = cluster.claims.folder("models")
        (models / MODEL.name).write_bytes(MODEL.read_bytes())
        docs = manifest(SIDECAR)
        spec = pod_of(docs, "Deployment", "engine")
        (engine,) = spec["containers"]
        # The command line instead of vLLM, which answers no probe.
        engine["command"] = ["engine"]
        del engine["readinessProbe"]
        engine["volumeMounts"].append({"name": "model", "mountPath": "/models", "readOnly": True})
        claim = {"claimName": "models", "readOnly": True}
        spec["volumes"].append({"name": "model", "persistentVolumeClaim": claim})
        cluster.apply(docs)
        cluster.wait_settled()
        (pod,) = cluster.pods()
        log = pod.container("engine").log

        def answers():
            lines = log.read_text(errors="replace").splitlines()
            return [json.loads(line) for line in lines if line.startswith('{"prompt_tokens')]

        def shared():
            return any(a["fetch_path"] == "local" and a["fetched_tokens"] == 832 for a in answers())

        cluster.wait(shared, "a prompt that comes from the node's memory")
        assert answers()[0]["fetched_tokens"] == 0
        assert len({answer["prompt_logits_sha256"] for answer in answers()}) == 1


# ---- The nodes of a release ----


def test_engines_share_the_nodes_of_a_release(cluster, chart, tmp_path):
    """With certificates, and two nodes. The engines start first, and the nodes go before them."""
    release = Release(chart, cluster)
    release.authority = Authority(tmp_path / "tls")
    engines = manifest(SHARED, **{"cairn-connection": "test-connection"})
    engines = json.loads(json.dumps(engines).replace("cairn-engine-tls", "test-engine-tls"))
    nodes = {"cache": {"replicas": 2, "disk": {"enabled": False}}}
    nodes = merged(CERTIFICATES, {**nodes, "connection": {"settings": {"lookup_timeout": 2}}})

    def without_nodes(docs):
        return [find(docs, "ConfigMap", "test-connection"), *engines]

    release.apply(nodes, change=without_nodes)
    cluster.wait_settled()
    one, other = pods_of(cluster, "engine")
    assert [generate(cluster, pod, 1) for pod in (one, other)] == [0, 0]
    release.apply(nodes, change=lambda docs: [*docs, *engines])
    cluster.wait_settled()
    wait_loaded(cluster, one, 2)
    # What one engine stored, the other finds, whichever node it uses.
    wait_loaded(cluster, other, 2)
    seen = [Seen(cluster, pod) for pod in pods_of(cluster, "test-cache")]
    assert generate(cluster, one, 3) == 0
    wait_loaded(cluster, one, 3)
    local, calls = (sum(parts) for parts in zip(*(s.bytes() for s in seen), strict=True))
    assert local == 0 and calls >= 2 * BLOCKS * BLOCK
    release.apply(nodes, change=without_nodes)
    wait_gone(cluster, "test-cache")
    assert [generate(cluster, pod, 4) for pod in (one, other)] == [0, 0]
    assert [p.container("engine").restarts for p in (one, other)] == [0, 0]


def test_an_engine_in_the_pod_of_a_release_uses_the_memory_of_its_node(cluster, chart):
    """The chart's values can say so: containers of the pod, and users that may connect."""
    docs = manifest(SIDECAR)
    spec = pod_of(docs, "Deployment", "engine")
    (engine,) = spec["containers"]
    transfer = find(docs, "ConfigMap", "engine-node")["data"]["vllm.json"]
    engine["env"][0] = {"name": "CAIRN_VLLM", "value": transfer}
    engine["volumeMounts"] = [m for m in engine["volumeMounts"] if m["name"] != "shared-memory"]
    volumes = [v for v in spec["volumes"] if v["name"] in ("client", "node-socket")]
    cache = {
        "config": {"local": {"socket": "/run/cairn/node.sock", "allow_uids": ["2000"]}},
        "disk": {"enabled": False},
        "extraVolumes": volumes,
        "extraVolumeMounts": [{"name": "node-socket", "mountPath": "/run/cairn"}],
        "extraInitContainers": spec["initContainers"][:1],
        "extraContainers": [engine],
    }
    Release(chart, cluster).upgrade(PLAINTEXT, {"cache": cache})
    (pod,) = cluster.pods()
    wait_memory_is_shared(cluster, pod, pod, 100)


# ---- A node per machine ----


def test_engines_of_a_machine_share_its_node(cluster):
    docs = manifest(PRIVILEGED)
    without_nodes = [doc for doc in docs if doc["kind"] != "DaemonSet"]
    cluster.apply(without_nodes)
    cluster.wait_settled()
    engines = pods_of(cluster, "engine")
    assert [pod.machine for pod in engines] == cluster.machines
    # They made the folder, which is root's until the node of the machine comes.
    assert [generate(cluster, pod, 1) for pod in engines] == [0, 0]
    cluster.apply(docs)
    cluster.wait_settled()
    nodes = pods_of(cluster, "node-per-machine")
    for engine, node in zip(engines, nodes, strict=True):
        assert engine.machine == node.machine
        wait_memory_is_shared(cluster, engine, node, 100)
    # A node that is killed leaves its sockets in the folder.
    nodes[0].container("cache").process.send_signal(signal.SIGKILL)
    assert generate(cluster, engines[0], 4) == 0
    wait_loaded(cluster, engines[0], 5)
    cluster.apply(without_nodes)
    wait_gone(cluster, "node-per-machine")
    assert [generate(cluster, pod, 6) for pod in engines] == [0, 0]
    assert [pod.container("engine").restarts for pod in engines] == [0, 0]


def test_a_namespace_that_is_restricted_refuses_them(cluster):
    docs = [doc for doc in manifest(PRIVILEGED) if doc["kind"] != "Namespace"]
    with pytest.raises(Refused, match="node-per-machine: violates PodSecurity restricted: .*host"):
        cluster.apply(docs)
