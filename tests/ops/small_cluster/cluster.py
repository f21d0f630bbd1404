"""The small cluster itself: README.md says what it is, and what it is not."""

import collections
import itertools
import socket
import threading
import time

from small_cluster import autoscaler, controllers, view, workloads
from small_cluster.name_server import NameServer
from small_cluster.network import NAME_SERVER, Network, enter, run_in
from small_cluster.objects import Objects, Refused
from small_cluster.pod import Image, Pod
from small_cluster.volumes import Claims

STEP = 0.05  # Seconds between two steps of the controllers.


def name_sockets():
    """For datagrams, and one that listens; both at the name server's address."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((NAME_SERVER, 53))
    return datagrams, socket.create_server((NAME_SERVER, 53))


class SmallCluster:
    """Starts real programs as pods of the manifests that are applied.

    `folder`: for volumes and logs. `programs`: a folder that containers find in their PATH.
    `lag`: seconds after which the address of a Service follows a change of its pods, as kube-proxy
    does on a busy machine; names follow at once. `drivers`: for each CSI driver, what makes the
    files of a volume of its attributes and its pod's name. `images`: the `Image` of containers by
    the name of their image; all others have the machine's files and the programs. `haste`: how many
    times as fast as Kubernetes' the clock of autoscalers is. Use it in a `with`. Thread-safe.
    """

    def __init__(
        self,
        folder,
        programs,
        namespace="kv",
        lag=0.0,
        machines=3,
        drivers=None,
        images=None,
        haste=60,
    ):
        self.folder, self.programs, self.namespace, self.lag = folder, programs, namespace, lag
        self._haste = haste
        self.drivers = {} if drivers is None else drivers
        self.images = {} if images is None else images
        self.objects = Objects()
        self.claims = Claims(folder / "claims")
        self.network = Network()
        self.spoil_names = None  # Makes of a Zone what DNS knows instead.
        self.notes = []  # What went wrong and did not stop anything.
        self.machines = [f"machine-{i}" for i in range(machines)]
        self.cordoned = frozenset()  # Machines that get no pods.
        self.finished_jobs = {}  # uid: Complete or Failed.
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._pods = {}
        self._late = collections.deque()  # (when, rules)
        self._rules = {}
        self._policies = {}
        self._kept = frozenset()  # Objects that no release owns.
        self._going = frozenset()  # Claims that are to be removed.
        self._state = None  # What watchers of the API have been told.
        self._evictions = threading.Lock()
        self._steps = threading.Lock()  # Held during a step of the controllers.
        self._error = None
        self._ended = threading.Event()
        self._client, self.client_address = self.network.add_pod()
        # Calls of the test come from a pod, and look names up as pods do.
        self._names = NameServer(*run_in(self.network.machine, name_sockets))
        targets = (self._run, self._autoscale)
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def number(self):
        return next(self._numbers)

    def note(self, text):
        self.notes.append(text)

    # What people do -------------------------------------------------------------------------------

    def apply(self, docs):
        """What `helm upgrade` does with the manifests: raises Refused, with what came before the
        refused object already changed. What is no longer among them is removed. Hooks wait."""
        docs = [d for d in docs if "helm.sh/hook" not in (d["metadata"].get("annotations") or {})]
        before = {k for k in self.objects.keys() if k not in self._kept}
        for doc in docs:
            self.objects.put(doc)
        for kind, name in before - {(d["kind"], d["metadata"]["name"]) for d in docs}:
            self.objects.remove(kind, name)

    def add(self, doc):
        """An object that no release owns, such as a Secret."""
        self._kept = self._kept | {(doc["kind"], doc["metadata"]["name"])}
        self.objects.put(doc)

    def evict(self, name):
        """As `kubectl drain` does. False: a PodDisruptionBudget refuses it now."""
        pod = self.pod(name)
        with self._evictions:
            if not controllers.may_be_evicted(self, pod):
                return False
            pod.delete()
        return True

    def cordon(self, machine, cordoned=True):
        self.cordoned = self.cordoned | {machine} if cordoned else self.cordoned - {machine}

    def orphan(self, kind, name):
        """Removes a workload, and leaves its pods."""
        with self._steps:
            self.objects.remove(kind, name)
            for pod in self.pods():
                if pod.owner == (kind, name):
                    pod.owner, pod.orphan = None, True

    def remove_claim(self, name):
        """The claim goes with its volume, when no pod uses it any more."""
        self._going = self._going | {name}

    def claim_goes(self, name):
        return name in self._going

    def run_hook(self, doc, patience=180):
        """Runs a pod of `helm test` to its end, and returns it."""
        meta = {"name": doc["metadata"]["name"], "labels": doc["metadata"].get("labels") or {}}
        pod = self.add_pod(meta, doc["spec"])
        self.wait(lambda: pod.phase in ("Succeeded", "Failed"), f"end of {pod.name}", patience)
        pod.delete()
        return pod

    # What tests see -------------------------------------------------------------------------------

    def pods(self):
        with self._lock:
            return list(self._pods.values())

    def pod(self, name):
        with self._lock:
            return self._pods[name]

    def service_address(self, name):
        return self.objects.find("Service", name)["spec"]["clusterIP"]

    def in_client(self, function):
        """What `function` returns, run in a thread in the network of a pod."""
        return run_in(self._client, function)

    def enter_client(self):
        """Moves the calling thread into that network."""
        enter(self._client)

    def settled(self):
        """All workloads have the pods that they ask for, of the newest revision, and ready;
        Services lead to them; and Jobs are done."""
        for kind in workloads.KINDS:
            if not all(workloads.settled(self, w) for w in self.objects.all(kind)):
                return False
        return not self._late and controllers.services(self)[0] == self._rules

    def wait_settled(self, patience=180):
        self.wait(self.settled, "all pods ready", patience)

    def wait(self, done, what, patience=180):
        end = time.monotonic() + patience
        while not done():
            if self._error is not None:
                raise self._error
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {patience} s\n{self.report()}")
            time.sleep(STEP)

    def report(self):
        """What the pods do, and the ends of their logs."""
        lines = []
        for pod in self.pods():
            lines.append(f"{pod.name}: {pod.phase}, ready {pod.ready}, {pod.error or 'no error'}")
            for container in pod.inits + pod.containers:
                text = container.log.read_text(errors="replace") if container.log.exists() else ""
                lines.append(f"  {container.spec['name']}: {container.restarts} restarts")
                lines += [f"    {line[:300]}" for line in text.splitlines()[-8:]]
        return "\n".join(lines)

    def close(self):
        """Ends all pods at once."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for pod in self.pods():
            pod.delete(grace=0)
        for pod in self.pods():
            pod.ended.wait(20)
        self._names.close()
        self.network.close()

    # What the controllers use ---------------------------------------------------------------------

    def add_pod(self, meta, spec):
        pod = Pod(self, {"machine": self._machine(meta.get("owner")), **meta}, spec)
        with self._lock:
            self._pods[pod.name] = pod
        pod.start()
        return pod

    def _machine(self, owner):
        """The machine with the fewest pods of the workload."""
        used = collections.Counter(p.machine for p in self.pods() if p.owner == owner)
        free = [m for m in self.machines if m not in self.cordoned]
        return min(free or self.machines, key=lambda m: used[m])

    def _remove_claims(self):
        used = {
            volume["persistentVolumeClaim"]["claimName"]
            for pod in self.pods()
            for volume in pod.spec.get("volumes") or []
            if "persistentVolumeClaim" in volume
        }
        for name in self._going - used:
            self.objects.remove("PersistentVolumeClaim", name)
            self.claims.remove(name)
            self._going = self._going - {name}

    def _run(self):
        while not self._ended.is_set():
            try:
                with self._steps:
                    self._step()
            except Exception as error:  # The test that waits raises it.
                self._error = error
                return
            self._ended.wait(STEP)

    def _autoscale(self):
        """Apart from the other controllers: it waits for what pods answer."""
        enter(self.network.machine)
        known = {}
        while not self._ended.wait(autoscaler.SYNC / self._haste):
            try:
                for obj in self.objects.all("HorizontalPodAutoscaler"):
                    name = obj["metadata"]["name"]
                    if name not in known or known[name].spec != obj["spec"]:
                        known[name] = autoscaler.Autoscaler(obj["spec"], self._haste)
                    self._scale(known[name])
            except Exception as error:  # The test that waits raises it.
                self._error = error
                return

    def _scale(self, scaler):
        owner = (scaler.spec["scaleTargetRef"]["kind"], scaler.spec["scaleTargetRef"]["name"])
        workload = self.objects.find(*owner)
        if workload is None:
            return
        pods = [p for p in self.pods() if p.owner == owner and not p.deleted.is_set()]
        now = workload["spec"].get("replicas", 1)
        wanted = scaler.pods(now, pods)
        if wanted != now:
            self.objects.scale(*owner, wanted)

    def _step(self):
        with self._lock:
            self._pods = {n: p for n, p in self._pods.items() if not p.ended.is_set()}
        for kind, controller in workloads.KINDS.items():
            for workload in self.objects.all(kind):
                controller(self, workload)
        for pod in self.pods():
            if pod.owner and self.objects.find(*pod.owner) is None:
                pod.delete()
        self._remove_claims()
        policies = controllers.policies(self)
        if policies != self._policies:
            self._policies = policies
            self.network.set_policies(policies)
        rules, zone = controllers.services(self)
        self._names.zone = self.spoil_names(zone) if self.spoil_names else zone
        if rules != self._rules:
            self._rules = rules
            self._late.append((time.monotonic() + self.lag, rules))
        while self._late and self._late[0][0] <= time.monotonic():
            self.network.set_services(self._late[0][1])
            self._late.popleft()
        state = view.state(self)
        if state != self._state:
            self._state = state
            self.objects.news.tell()


__all__ = ["Image", "Refused", "SmallCluster"]
