"""One pod, as a kubelet runs it: containers in order, probes, restarts, and an orderly end."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
import pathlib
import uuid
from typing import NamedTuple

from small_cluster import memory, name_server
from small_cluster.network import NAME_SERVER, enter, run_in
from small_cluster.volumes import Volumes

STEP = 0.05  # Seconds between two looks.
# Probes are asked so many times as often as the manifests say, since tests wait for them. A pod has
# all of its time nevertheless: it takes as many times the failures.
HASTE = 4
LAUNCHER = pathlib.Path(__file__).with_name("container.py")


class Image(NamedTuple):
    """What containers find."""

    root: pathlib.Path | None = None  # In place of the machine's files and the cluster's programs.
    files: dict = {}  # {path: folder}, in addition.


def is_sidecar(container):
    return container.get("restartPolicy") == "Always"


def _expanded(text, env):
    """With the values of the $(NAME) that are known."""
    return re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), text)


class Probe:
    """When it is to be asked, and what it has said."""

    def __init__(self, spec):
        self.spec = spec
        self.passed = False
        self.failures = 0
        self.next = time.monotonic() + spec.get("initialDelaySeconds", 0)

    def ask(self, address, ports):
        """None: it is not its time. Else whether it has failed too often."""
        if time.monotonic() < self.next:
            return None
        self.next = time.monotonic() + self.spec.get("periodSeconds", 10) / HASTE
        if self._answers(address, ports):
            self.passed, self.failures = True, 0
        else:
            self.failures += 1
            if self.failures >= HASTE * self.spec.get("failureThreshold", 3):
                self.passed = False
                return True
        return False

    def _answers(self, address, ports):
        get = self.spec["httpGet"]
        port = ports.get(get["port"], get["port"])
        timeout = self.spec.get("timeoutSeconds", 1)
        try:
            connection = http.client.HTTPConnection(address, port, timeout=timeout)
            connection.request("GET", get.get("path", "/"))
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False


class Container:
    """One program of a pod: it is started, asked, and started again."""

    def __init__(self, pod, spec):
        self.pod, self.spec = pod, spec
        self.process = None
        self.restarts = -1
        self.exit_code = None
        self.started = False  # Its startup probe has passed.
        self.ready = False
        self.probes = {}
        self.group = None  # Its limit of memory.
        self._next_start = 0.0
        self._ports = {
            p["name"]: p["containerPort"] for p in spec.get("ports") or [] if "name" in p
        }

    @property
    def log(self):
        return self.pod.folder / f"{self.spec['name']}.log"

    def running(self):
        return self.process is not None and self.process.poll() is None

    def start(self):
        self.restarts += 1
        self.started = self.ready = False
        kinds = ["startupProbe", "livenessProbe", "readinessProbe"]
        self.probes = {kind: Probe(self.spec[kind]) for kind in kinds if kind in self.spec}
        self.process = self.pod.launch(self)

    def step(self):
        """Probes, and a new start after an exit or too many failures."""
        if not self.running():
            self._after_exit()
            return
        if not self._ask("startupProbe", wait=True):
            return
        self.started = True
        if self._ask("livenessProbe") is False:
            self.process.kill()
        self.ready = self._ask("readinessProbe", wait=True) is not False

    def _after_exit(self):
        self.started = self.ready = False
        if self.process is not None:
            self.exit_code = self.process.returncode
            self.process = None
            self.leave_group()
            # A kubelet waits 10 s, 20 s, 40 s ... A small cluster waits a tenth.
            self._next_start = time.monotonic() + min(2**self.restarts, 30)
            if self.restarts == 0:
                self._next_start = 0.0
        if time.monotonic() >= self._next_start:
            self.start()

    def _ask(self, kind, wait=False):
        """True: all is well. False: too many failures, or, with `wait`, not passed yet."""
        probe = self.probes.get(kind)
        if probe is None or (kind == "startupProbe" and self.started):
            return True
        failed = probe.ask(self.pod.address, self._ports)
        if kind == "startupProbe" and failed:
            self.process.kill()
        return probe.passed if wait else not failed

    def leave_group(self):
        if self.group is not None and self.group.close():
            self.pod.cluster.note(f"{self.pod.name}/{self.spec['name']}: out of memory")
        self.group = None

    def terminate(self):
        if self.running():
            self.process.send_signal(signal.SIGTERM)

    def kill(self):
        if self.running():
            self.process.kill()


class Pod:
    """Runs from `start` until it has ended after `delete`, in a thread of its own."""

    def __init__(self, cluster, meta, spec):
        self.cluster, self.spec = cluster, spec
        self.name, self.labels = meta["name"], meta.get("labels") or {}
        self.owner, self.revision = meta.get("owner"), meta.get("revision")
        self.orphan = False  # Its workload was removed, and it was left.
        self.uid = str(uuid.uuid4())
        self.machine = meta["machine"]
        self.folder = cluster.folder / "pods" / f"{self.name}-{cluster.number()}"
        self.folder.mkdir(parents=True)
        self.address = None
        self.error = None  # Why it cannot start.
        self.phase = "Pending"
        self.ended_at = None  # When its containers had run to their end, if they do that.
        self.ready_since = None
        self.deletion_time = None
        self.deleted = threading.Event()
        self.ended = threading.Event()
        self.inits = [Container(self, c) for c in spec.get("initContainers") or []]
        self.containers = [Container(self, c) for c in spec["containers"]]
        self._volumes = None
        self._network = None
        self._grace = spec.get("terminationGracePeriodSeconds", 30)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    @property
    def ready(self):
        return self.ready_since is not None and not self.deleted.is_set()

    @property
    def host(self):
        """Its hostname in a headless Service, of pods that a StatefulSet made."""
        return self.spec.get("hostname", "")

    def container(self, name):
        (found,) = [c for c in self.inits + self.containers if c.spec["name"] == name]
        return found

    def in_network(self, function):
        """What `function` returns, run in a thread in the pod's network."""
        return run_in(self._network, function)

    def delete(self, grace=None):
        if grace is not None:
            self._grace = grace
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.deletion_time = self.deletion_time or now
        self.deleted.set()

    def _run(self):
        try:
            enter(self.cluster.network.machine)
            self._network, self.address = self.cluster.network.add_pod()
            self._volumes = self._wait_for_volumes()
            if self._volumes is not None and self._initialise():
                self._serve()
        except Exception as error:  # A bug of the test's cluster: tests must see it.
            self.error = f"{type(error).__name__}: {error}"
            self.deleted.wait()
        self._end()

    def _wait_for_volumes(self):
        while not self.deleted.is_set():
            try:
                return Volumes(
                    self.folder / f"volumes-{time.time_ns()}",
                    self.spec,
                    self.cluster.objects,
                    self.cluster.claims,
                    self.name,
                    self.cluster.drivers,
                    self.cluster.folder / "machines" / self.machine,
                )
            except LookupError as error:
                self.error = str(error)
                self.deleted.wait(STEP * 4)
        return None

    def _initialise(self):
        """Init containers one after the other. A sidecar goes on beside what follows it."""
        self.error = None
        for container in self.inits:
            container.start()
            while not self.deleted.is_set():
                if is_sidecar(container.spec):
                    container.step()
                    if container.started:
                        break
                elif not container.running():
                    if container.process.returncode == 0:
                        break
                    container.step()
                self.deleted.wait(STEP)
        return not self.deleted.is_set()

    def _serve(self):
        self.phase = "Running"
        once = self.spec.get("restartPolicy", "Always") == "Never"
        serving = [c for c in self.inits if is_sidecar(c.spec)] + self.containers
        for container in self.containers:
            container.start()
        while not self.deleted.is_set():
            if once and not any(c.running() for c in self.containers):
                failed = any(c.process.returncode != 0 for c in self.containers)
                self.ended_at = time.monotonic()
                self.phase = "Failed" if failed else "Succeeded"
                self.deleted.wait()
                return
            if not once:
                for container in serving:
                    container.step()
                self._volumes.refresh()
                if all(c.ready for c in serving):
                    self.ready_since = self.ready_since or time.monotonic()
                else:
                    self.ready_since = None
            self.deleted.wait(STEP)

    def _end(self):
        """Hooks, SIGTERM, grace, SIGKILL; sidecars after the containers, the last one first."""
        self.ready_since = None
        end = time.monotonic() + self._grace
        groups = [self.containers] + [[c] for c in reversed(self.inits) if is_sidecar(c.spec)]
        # Hooks of all containers run beside each other, before the first SIGTERM.
        pauses = [self._pause(c) for group in groups for c in group if c.running()]
        self._wait_while(
            lambda: any(c.running() for g in groups for c in g), max([0, *pauses]), end
        )
        for group in groups:
            for container in group:
                container.terminate()
            self._wait_while(lambda g=group: any(c.running() for c in g), self._grace, end)
            for container in group:
                if container.running():
                    self.cluster.note(f"{self.name}/{container.spec['name']} did not end in time")
                container.kill()
        for container in self.inits + self.containers:
            if container.process is not None:
                container.exit_code = container.process.wait()
                container.leave_group()
        if self._network is not None:
            self.cluster.network.remove_pod(self._network)
        self.ended.set()

    def _pause(self, container):
        hook = (container.spec.get("lifecycle") or {}).get("preStop") or {}
        if set(hook) - {"sleep"}:
            raise NotImplementedError(f"preStop: {sorted(hook)}")
        return hook["sleep"]["seconds"] if hook else 0

    def _wait_while(self, condition, seconds, end):
        stop = min(time.monotonic() + seconds, end)
        while condition() and time.monotonic() < stop:
            time.sleep(STEP)

    def environment(self, container):
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": self.cluster.namespace,
            "spec.nodeName": self.machine,
            "status.podIP": self.address,
        }
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": self.name}
        for item in container.spec.get("env") or []:
            source = item.get("valueFrom")
            if source and "configMapKeyRef" in source:
                wanted = source["configMapKeyRef"]
                found = self.cluster.objects.find("ConfigMap", wanted["name"])
                env[item["name"]] = found["data"][wanted["key"]]
            elif source:
                env[item["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:
                env[item["name"]] = _expanded(item["value"], env)
        return env

    def words_inside(self, container, command):
        """A command that runs another one in a container that runs."""
        user = {**(self.spec.get("securityContext") or {}), **container.spec["securityContext"]}
        variables = [f"{k}={v}" for k, v in self.environment(container).items()]
        return [
            *("nsenter", f"--target={container.process.pid}", "--mount", "--net", "--root"),
            f"--setuid={user.get('runAsUser', 10001)}",
            f"--setgid={user.get('runAsGroup', 10001)}",
            *("env", "--chdir=/", "--ignore-environment", *variables, *command),
        ]

    def launch(self, container):
        env = self.environment(container)
        words = (container.spec.get("command") or []) + (container.spec.get("args") or [])
        command = [_expanded(str(word), env) for word in words]
        context = {
            **(self.spec.get("securityContext") or {}),
            **(container.spec.get("securityContext") or {}),
        }
        pod = self.spec.get("securityContext", {})
        groups = [
            *([pod["fsGroup"]] if "fsGroup" in pod else []),
            *pod.get("supplementalGroups", []),
        ]
        image = self.cluster.images.get(container.spec.get("image"), Image())
        root = self.folder / f"root-{container.spec['name']}"
        root.mkdir(exist_ok=True)
        spec = self.folder / f"{container.spec['name']}.json"
        hosts = f"127.0.0.1 localhost\n{self.address} {self.name}\n"
        resolver = name_server.resolv_conf(NAME_SERVER, self.cluster.namespace)
        limit = ((container.spec.get("resources") or {}).get("limits") or {}).get("memory")
        if limit:
            name = f"{self.name}-{container.spec['name']}-{self.cluster.number()}"
            container.group = memory.Group(name, memory.bytes_of(limit))
        spec.write_text(
            json.dumps(
                {
                    "network": self._network,
                    "group": container.group and container.group.members,
                    "root": str(root),
                    "programs": str(self.cluster.programs),
                    "mounts": self._volumes.mounts(container.spec),
                    "etc": {"resolv.conf": resolver, "hosts": hosts, "hostname": self.name},
                    "uid": context.get("runAsUser", 10001),
                    "gid": context.get("runAsGroup", 10001),
                    "groups": groups,
                    "image": image.root and str(image.root),
                    "files": {path: str(folder) for path, folder in image.files.items()},
                    "command": command,
                    "env": env,
                }
            )
        )
        with open(container.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-S", str(LAUNCHER), str(spec)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[self._network],
                cwd="/",
            )
