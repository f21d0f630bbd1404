"""ConfigMaps and Secrets that change while pods run. The kubelet swaps all files of a volume by a
link. A program goes on with what it has read; what it reads again is used if it is right, and
refused with a line in the log if it is not."""

import copy
import hashlib
import http.client
import json
import socket
import ssl

from cairn_cluster import PLAINTEXT, Authority, Load, engine_script, metric, secret, start
from rendered_chart import merged
from test_cluster_router import ENGINES

# Answers with the key that it was called with.
ENGINE = engine_script('self.headers.get("Authorization", "")')
KEYS = merged(
    PLAINTEXT,
    {
        "cache": {"enabled": False},
        "router": {
            "enabled": True,
            "workers": ["dns:http://engine.kv.svc:8000"],
            "http": {"apiKeysSecret": "keys"},
            "engines": {"apiKeySecret": "engine"},
        },
        "extraObjects": ENGINES,
    },
)
TLS = {
    "tls": {"existingSecret": "cairn-tls"},
    "cache": {"replicas": 2, "config": {"tls": {"reload_interval": "1s"}}},
}
NAMES = ["test-cache.kv.svc"]
POD_0 = "test-cache-0.test-cache-peers.kv.svc:7400"


def change(cluster, kind, name, data):
    """As `kubectl edit` does: no release knows of it."""
    obj = copy.deepcopy(cluster.objects.find(kind, name))
    obj.pop("data", None)
    obj["stringData" if kind == "Secret" else "data"] = data
    cluster.objects.put(obj)


def events(container, name):
    lines = container.log.read_text(errors="replace").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line["event"] == name]


def test_a_node_goes_on_when_its_configuration_changes(release):
    release.upgrade(PLAINTEXT)
    cluster, pod = release.cluster, release.cluster.pod("test-cache-0")
    node = pod.container("cache")
    right = cluster.objects.find("ConfigMap", "test-cache")["data"]
    wrong = right["cache.yaml"].replace("capacity: 64MiB", "capacity: much")
    assert wrong != right["cache.yaml"]
    change(cluster, "ConfigMap", "test-cache", {"cache.yaml": wrong})
    (file,) = pod.folder.glob("volumes-*/config/cache.yaml")
    cluster.wait(lambda: file.read_text() == wrong, "the new file")
    done, said = release.test()
    assert done, said
    assert node.restarts == 0 and pod.ready
    # Whatever ends the process, the next one reads the file, and says what is wrong with it.
    node.kill()
    cluster.wait(lambda: node.restarts > 1, "a node that refuses the file")
    said = node.log.read_text(errors="replace")
    assert "capacity: got 'much'" in said, said[-2000:]
    change(cluster, "ConfigMap", "test-cache", right)
    cluster.wait_settled()
    assert cluster.pod("test-cache-0") is pod
    done, said = release.test()
    assert done, said


def line_of(tenant, key):
    return f"{tenant} {hashlib.sha256(key.encode()).hexdigest()}\n"


def test_keys_change_under_a_running_router(networks, chart, programs, tmp_path):
    release = start(chart, tmp_path, programs, {"engine": ENGINE})
    with release.cluster as cluster:
        cluster.add(secret("keys", {"keys": line_of("a", "first")}))
        cluster.add(secret("engine", {"key": "one"}))
        release.upgrade(KEYS)
        (pod,) = [p for p in cluster.pods() if "router" in p.name]
        router = pod.container("router")
        address = cluster.service_address("test-router")

        def ask(key):
            """(status, the key that the engine got) of a request with the key."""
            head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            connection = http.client.HTTPConnection(address, 8000, timeout=10)
            connection.request("POST", "/v1/completions", '{"model":"m","prompt":"x"}', head)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            connection.close()
            return answer.status, body["choices"][0]["text"] if answer.status == 200 else None

        def asked(key):
            return cluster.in_client(lambda: ask(key))

        def stale():
            return metric(release, pod, 7601, "cairn_router_keys_stale")

        def honest():
            status, _ = ask("first")
            assert status == 200, status

        assert asked("first") == (200, "Bearer one") and asked("second")[0] == 401
        load = Load(cluster, honest)
        # Another tenant, and another key for the engines.
        both = line_of("a", "first") + line_of("b", "second")
        change(cluster, "Secret", "keys", {"keys": both})
        change(cluster, "Secret", "engine", {"key": "two"})
        cluster.wait(lambda: asked("second") == (200, "Bearer two"), "the new keys", 20)
        assert stale() == 0
        # A line without a hash, and a key of two words.
        change(cluster, "Secret", "keys", {"keys": both + "c third\n"})
        change(cluster, "Secret", "engine", {"key": "no key"})
        cluster.wait(lambda: stale() == 2, "both files refused", 20)
        assert asked("second") == (200, "Bearer two")
        (said,) = events(router, "http_api_keys_reload_failed")
        assert "line 3" in said["error"] and "third" not in said["error"]
        assert (
            "/etc/cairn-engines/key" in events(router, "router_engine_key_unreadable")[0]["error"]
        )
        load.stop()
        assert load.failures == [] and load.done > 10
        # The first tenant has to go.
        change(cluster, "Secret", "keys", {"keys": line_of("b", "second")})
        change(cluster, "Secret", "engine", {"key": "three"})
        cluster.wait(lambda: asked("first")[0] == 401, "the old key refused", 20)
        cluster.wait(lambda: asked("second") == (200, "Bearer three"), "the third key", 20)
        assert stale() == 0 and router.restarts == 0


def shown(cluster, pod):
    """The certificate that the pod's node shows to a new connection."""

    def connect():
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((pod.address, 7400), timeout=10) as plain:
            with context.wrap_socket(plain) as connection:
                return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True))

    return cluster.in_client(connect)


def certificate(data):
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(data["tls.crt"]))


def test_certificates_change_under_running_nodes(release, tmp_path):
    authority = Authority(tmp_path / "tls")
    first, second, third = (authority.make(NAMES) for _ in range(3))
    cluster = release.cluster
    cluster.add(secret("cairn-tls", first))
    release.upgrade(TLS)
    release.wait_whole(POD_0)
    pods = [cluster.pod(f"test-cache-{n}") for n in range(2)]

    def show(data):
        return all(shown(cluster, pod) == certificate(data) for pod in pods)

    def refused(reason):
        lines = [events(p.container("cache"), "tls_reload_failed") for p in pods]
        return all(any(reason in line["error"] for line in found) for found in lines)

    assert show(first)
    change(cluster, "Secret", "cairn-tls", second)
    cluster.wait(lambda: show(second), "the second certificate", 30)
    wrong = [
        ({"tls.key": first["tls.key"]}, "tls.key' does not belong to"),
        ({"tls.key": ""}, "tls.key' holds no unencrypted PEM key"),
        ({"ca.crt": ""}, "ca.crt' holds no PEM certificates"),
    ]
    for data, reason in wrong:
        change(cluster, "Secret", "cairn-tls", {**third, **data})
        cluster.wait(lambda r=reason: refused(r), f"a line that says: {reason}", 30)
        assert show(second)
    change(cluster, "Secret", "cairn-tls", third)
    cluster.wait(lambda: show(third), "the third certificate", 30)
    release.wait_whole(POD_0)
    assert all(p.container("cache").restarts == 0 for p in pods)
