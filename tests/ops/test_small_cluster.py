"""The small cluster does what Kubernetes does where Cairn depends on it. Its programs here are
small scripts; test_cluster_*.py start Cairn's own."""

import http.client
import stat
import textwrap
import threading

import pytest

import pod_security
from small_cluster import memory
from small_cluster.cluster import Refused, SmallCluster
from small_cluster.objects import Objects
from small_cluster.view import View

SCRIPTS = {
    # Answers its name, and what a file says; tells in /shared when it was asked to end.
    "serve": """
        #!/usr/bin/python3
        import http.server, os, signal, sys, threading
        name = sys.argv[1]
        def end(*_):
            with open("/shared/ends", "a") as file:
                file.write(name + "\\n")
            os._exit(0)
        signal.signal(signal.SIGTERM, end)
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = open(self.path).read() if self.path.startswith("/etc") else name
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())
            def log_message(self, *_): pass
        http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), Handler).serve_forever()
        """,
    "lookup": """
        #!/usr/bin/python3
        import socket, sys
        for name in sys.argv[1:]:
            print(name, sorted({a[4][0] for a in socket.getaddrinfo(name, 1)}))
        """,
}
CONTEXT = {**pod_security.CONTAINER_CONTEXT, "readOnlyRootFilesystem": True}
POD_CONTEXT = {**pod_security.POD_CONTEXT, "runAsGroup": 10001, "fsGroup": 10001}


@pytest.fixture
def cluster(networks, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    tmp_path.chmod(0o755)
    for name, text in SCRIPTS.items():
        path = programs / name
        path.write_text(textwrap.dedent(text).lstrip())
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    with SmallCluster(tmp_path / "cluster", programs) as made:
        yield made


def container(name, port, **more):
    probe = {"httpGet": {"path": "/", "port": port}, "periodSeconds": 1}
    return {
        "name": name,
        "image": "none",
        "command": ["serve", "$(POD)/" + name, str(port)],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": name, "containerPort": port}],
        "readinessProbe": probe,
        "startupProbe": probe,
        "securityContext": CONTEXT,
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        **more,
    }


def workload(kind, replicas, containers, inits=(), volumes=(), **spec):
    labels = {"app": "x"}
    pod = {
        "securityContext": POD_CONTEXT,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 10,
        "containers": containers,
        "initContainers": list(inits),
        "volumes": [{"name": "shared", "emptyDir": {}}, *volumes],
    }
    if kind == "StatefulSet":
        spec = {"serviceName": "peers", "podManagementPolicy": "Parallel", **spec}
    if kind != "DaemonSet":
        spec["replicas"] = replicas
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "x"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            **spec,
        },
    }


def job(script, limit):
    """A Job whose pods run a shell's script and share the folder /kept."""
    pod = workload("Deployment", 1, [])["spec"]["template"]["spec"]
    kept = {"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}
    mount = {"name": "kept", "mountPath": "/kept"}
    run = {"name": "run", "command": ["sh", "-c", script], "image": "none"}
    run.update(securityContext=CONTEXT, volumeMounts=[mount])
    pod.update(restartPolicy="Never", volumes=[kept], containers=[run])
    spec = {"backoffLimit": limit, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}


def service(name, headless=False):
    spec = {"selector": {"app": "x"}, "ports": [{"name": "web", "port": 80, "targetPort": "web"}]}
    if headless:
        spec.update(clusterIP="None")
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def get(cluster, address, path="/", port=80):
    def call():
        connection = http.client.HTTPConnection(address, port, timeout=5)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    return cluster.in_client(call)


def test_pods_have_names_as_kubernetes_gives_them(cluster):
    cluster.apply(
        [
            workload("StatefulSet", 2, [container("web", 8080)]),
            service("peers", headless=True),
            service("all"),
        ]
    )
    cluster.wait_settled()
    addresses = sorted(p.address for p in cluster.pods())
    one = cluster.pod("x-0").address
    names = ["x-0.peers", "peers.kv.svc", "x-0.peers.kv.svc.cluster.local", "all"]
    hook = workload("Deployment", 1, [])["spec"]["template"]["spec"]
    hook.update(restartPolicy="Never", containers=[{"name": "c", "command": ["lookup", *names]}])
    pod = cluster.run_hook({"metadata": {"name": "test"}, "spec": hook})
    found = dict(line.split(" ", 1) for line in pod.container("c").log.read_text().splitlines())
    assert found == {
        "x-0.peers": str([one]),
        "peers.kv.svc": str(addresses),
        "x-0.peers.kv.svc.cluster.local": str([one]),
        "all": str([cluster.service_address("all")]),
    }


def test_a_service_follows_its_pods_late(cluster):
    cluster.lag = 2.0
    cluster.apply([workload("Deployment", 1, [container("web", 8080)]), service("all")])
    cluster.wait_settled()
    (pod,) = cluster.pods()
    address = cluster.service_address("all")
    assert get(cluster, address) == f"{pod.name}/web"
    pod.delete()
    pod.ended.wait(20)
    # Its Service still sends calls to the address that nobody has.
    with pytest.raises(OSError):
        get(cluster, address)
    cluster.wait_settled()
    assert get(cluster, address) == f"{cluster.pods()[0].name}/web"


def test_sidecars_start_first_and_end_last(cluster):
    side = container("side", 8081, restartPolicy="Always")
    cluster.apply([workload("StatefulSet", 1, [container("web", 8080)], inits=[side])])
    cluster.wait_settled()
    pod = cluster.pod("x-0")
    pod.delete()
    pod.ended.wait(20)
    (ends,) = pod.folder.glob("volumes-*/shared/ends")
    assert ends.read_text().split() == ["x-0/web", "x-0/side"]
    assert cluster.notes == []


def test_a_changed_secret_arrives_without_a_restart(cluster):
    def secret(text):
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s"},
            "stringData": {"file": text},
        }

    web = container("web", 8080)
    web["volumeMounts"].append({"name": "secret", "mountPath": "/etc/secret", "readOnly": True})
    volume = {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o440}}
    cluster.add(secret("old"))
    cluster.apply([workload("Deployment", 1, [web], volumes=[volume]), service("all")])
    cluster.wait_settled()
    address = cluster.service_address("all")
    assert get(cluster, address, "/etc/secret/file") == "old"
    cluster.add(secret("new"))
    cluster.wait(lambda: get(cluster, address, "/etc/secret/file") == "new", "the new secret")
    assert cluster.pods()[0].container("web").restarts == 0


def test_a_container_that_takes_too_much_is_killed(cluster):
    eater = container("web", 8080, resources={"limits": {"memory": "64Mi"}})
    eater["command"] = ["sh", "-c", "sleep 1; head -c 1G /dev/zero | tail -c 1G"]
    del eater["readinessProbe"], eater["startupProbe"]
    group = memory.Group("probe", 64 << 20)
    if group.members is None:
        pytest.skip("no cgroup for memory can be written")
    group.close()
    cluster.apply([workload("Deployment", 1, [eater])])
    cluster.wait(lambda: cluster.notes, "a note that says why it ended")
    assert "web: out of memory" in cluster.notes[0]
    (pod,) = cluster.pods()
    assert pod.container("web").restarts >= 0 and not pod.deleted.is_set()


def test_what_kubernetes_refuses_is_refused(cluster):
    cluster.apply([workload("StatefulSet", 1, [container("web", 8080)])])
    with pytest.raises(Refused, match="serviceName"):
        cluster.apply([workload("StatefulSet", 1, [container("web", 8080)], serviceName="other")])
    root = container("web", 8080, securityContext={**CONTEXT, "runAsUser": 0})
    with pytest.raises(Refused, match="runAsUser is 0"):
        cluster.apply([workload("Deployment", 1, [root])])


def test_a_daemon_set_has_a_pod_on_each_machine(cluster):
    cluster.apply([workload("DaemonSet", None, [container("web", 8080)])])
    cluster.wait_settled()
    assert sorted(p.machine for p in cluster.pods()) == cluster.machines
    # No other pod may go to this machine.
    pod = next(p for p in cluster.pods() if p.machine == cluster.machines[1])
    cluster.cordon(pod.machine)
    pod.delete()
    pod.ended.wait(20)
    cluster.wait_settled()
    assert sorted(p.machine for p in cluster.pods()) == cluster.machines
    before = {p.name for p in cluster.pods()}
    cluster.apply([workload("DaemonSet", None, [container("web", 8080, image="newer")])])

    def updated():
        assert sum(p.ready for p in cluster.pods()) >= 2, "more than one machine has no pod"
        return cluster.settled()

    cluster.wait(updated, "new pods on all machines")
    assert not before & {p.name for p in cluster.pods()}


def test_a_job_runs_until_a_pod_of_it_succeeds(cluster):
    cluster.add(job("test -e /kept/tried || { touch /kept/tried; exit 1; }", 1))
    cluster.wait_settled()
    assert sorted(p.phase for p in cluster.pods()) == ["Failed", "Succeeded"]
    cluster.objects.remove("Job", "j")
    cluster.wait(lambda: not cluster.pods(), "the pods go with the Job")


def test_a_job_that_fails_too_often_is_left(cluster):
    cluster.add(job("exit 1", 0))
    cluster.wait(lambda: cluster.finished_jobs, "the end of the Job")
    assert list(cluster.finished_jobs.values()) == ["Failed"] and not cluster.settled()
    assert [p.phase for p in cluster.pods()] == ["Failed"]


def test_a_watch_wakes_when_something_changes():
    view = View(Objects())
    since, _ = view.list("ConfigMap")
    assert view.changes("ConfigMap", since, 0) == (since, [])
    events = []
    watch = threading.Thread(target=lambda: events.extend(view.changes("ConfigMap", since, 60)[1]))
    watch.start()
    view.objects.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    watch.join(30)
    assert not watch.is_alive()
    assert [(what, obj["metadata"]["name"]) for what, obj in events] == [("ADDED", "c")]
