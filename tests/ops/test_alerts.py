"""Real faults of real programs, from the metric to the notification: Prometheus evaluates the rules
that the chart renders, in a hurry, and Alertmanager calls a webhook."""

import contextlib
import itertools
import json
import os
import signal
import struct
import sys
import threading

import grpc
import pytest
import yaml

from cairn_cluster import MODEL, Authority
from conftest import ROOT
from monitoring import Alertmanager, Prometheus, Receiver, hurried
from rendered_chart import TLS, find, render

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "tests/support"))
# Need the paths above.
from ports import free_port  # noqa: E402
from rows.processes import (  # noqa: E402
    Server,
    cairn,
    node_command,
    router_command,
    worker_command,
)
from waiting import wait_until  # noqa: E402

RUNBOOKS = "https://runbooks.example"
PODS = ["cache-0", "cache-1", "cache-2", "cache-3", "worker-0", "worker-1", "router-0", "router-1"]
# (alert, pod, whether it ends when the fault is over) of what _Stage.break_things does,
FAULTS = [
    ("CairnProcessDown", "cache-0", True),
    ("CairnWorkerWithoutCache", "worker-0", True),
    ("CairnRouterIndexBlind", "router-0", True),
    ("CairnRouterMissesWorkers", "router-0", True),
    ("CairnRouterKeysStale", "router-0", True),
    ("CairnRouterWithoutWorkers", "router-1", False),
    ("CairnRouterLosesEngineEvents", "router-1", False),
    ("CairnProcessNotReady", "router-1", False),
    ("CairnDiskFails", "cache-1", True),
    ("CairnDiskCopiesFail", "cache-1", True),
    ("CairnCertificateEnds", "cache-1", True),
    ("CairnTlsFilesRefused", "cache-1", True),
    ("CairnMemberAbsent", "cache-2", True),
    ("CairnMemoryRefused", "cache-2", True),
    ("CairnLogLinesLost", "cache-2", True),
]
# and of what `break_more` does.
MORE_FAULTS = [
    ("CairnDrainHangs", "cache-1", True),
    ("CairnClusterViewsDiffer", "cache-2", False),
    ("CairnCallsRefused", "cache-3", True),
    ("CairnDiscoveryDown", "cache-3", False),
    ("CairnGpuLost", "cache-3", False),
]
ALL_FAULTS = FAULTS + MORE_FAULTS


class _FaultDevice:
    """The modes of tests/support/fault_device.h, for a program that starts with `prefix`."""

    NORMAL, HANGS, FAILS = 0, 1, 3

    def __init__(self, programs, directory):
        directory.mkdir()
        self._control = directory.with_suffix(".control")
        self._control.write_bytes(bytes(4096))
        self.prefix = [
            "env",
            f"LD_PRELOAD={programs / 'libcairn_fault_device.so'}",
            f"CAIRN_FAULT_DEVICE_DIRECTORY={directory.resolve()}",
            f"CAIRN_FAULT_DEVICE_CONTROL={self._control}",
        ]

    def set(self, mode):
        with open(self._control, "r+b") as control:
            control.write(struct.pack("=I", mode))


class _Sessions(threading.Thread):
    """Opens sessions at a node again and again, and keeps those that it gets. The first `burst`
    calls follow each other without a pause."""

    def __init__(self, address, burst=0):
        super().__init__(daemon=True)
        self._address, self._burst = address, burst
        self._ended = threading.Event()
        self.start()

    def run(self):
        held = []
        with grpc.insecure_channel(self._address) as channel:
            open_session = channel.unary_stream("/cairn.v1.Cache/OpenSession")
            for number in itertools.count():
                if self._ended.wait(0 if number < self._burst else 0.05):
                    return
                with contextlib.suppress(grpc.RpcError):
                    call = open_session(b"")
                    next(call)
                    held.append(call)

    def stop(self):
        self._ended.set()
        self.join()


class _Stage:
    """All programs. They are as good as they can be until `break_things`, and some of them again
    after `repair`."""

    def __init__(self, programs, folder, stack):
        self._programs, self._folder, self._stack = programs, folder, stack
        self._build = programs.parent
        self._ports = {pod: (free_port(), free_port()) for pod in PODS}
        self._running = {}
        self._loads = []
        self._device = _FaultDevice(programs, folder / "cache-1")
        self._authority = Authority(folder / "tls")
        self._authority.make(["node"])
        self._keys = folder / "keys"
        self._keys.write_text(f"tenant {'0' * 64}\n", encoding="ascii")
        # stderr that nobody reads.
        os.mkfifo(folder / "cache-2.log")
        reader = os.open(folder / "cache-2.log", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, reader)

    def targets(self):
        return [
            {"targets": [f"127.0.0.1:{admin}"], "labels": {"namespace": "kv", "pod": pod}}
            for pod, (_, admin) in self._ports.items()
        ]

    def _grpc(self, pod):
        return f"127.0.0.1:{self._ports[pod][0]}"

    def _start(self, pod, command, prefix=()):
        listen, admin = (f"127.0.0.1:{port}" for port in self._ports[pod])
        server = Server(
            [*prefix, *command, "--listen", listen, "--admin.listen", admin],
            self._folder / f"{pod}.log",
        )
        self._running[pod] = self._stack.enter_context(server)

    def _start_node(self, pod, *flags, prefix=()):
        self._start(pod, node_command(self._build, "--host.capacity", "64MiB", *flags), prefix)

    def start(self):
        self._start_node("cache-0")
        self._start_node(
            "cache-1",
            *("--disk.path", self._folder / "cache-1/disk", "--disk.io_backend", "threads"),
            *("--disk.capacity", "64MiB", "--disk.min_free", "0", "--disk.flush_after", "50ms"),
            *("--drain.flush_timeout", "10m", "--tls.cert", self._folder / "tls/tls.crt"),
            *("--tls.key", self._folder / "tls/tls.key", "--tls.reload_interval", "1s"),
            prefix=self._device.prefix,
        )
        self._start_node(
            "cache-2",
            *("--limits.session_memory", "1MiB", "--log.level", "debug", "--log.format", "json"),
            *("--cluster.discovery", "static", "--cluster.members", self._grpc("cache-3")),
        )
        self._start_worker("worker-0")
        workers = f"{self._grpc('worker-0')},{self._grpc('worker-1')}"
        cache = self._grpc("cache-0")
        self._start(
            "router-0",
            router_command(
                self._build,
                MODEL,
                *("--workers", workers, "--cache", cache, "--http.api_keys", self._keys),
            ),
        )

    def _start_worker(self, pod):
        cache = self._grpc("cache-0")
        self._start(pod, worker_command(self._build, MODEL, "--cache", cache, "--threads", "1"))

    def _store_blocks(self, pod, first):
        """Again until blocks arrive: a busy machine makes `cairn generate` go on without a node."""
        node, commits = self._running[pod], "cairn_commits_total"
        prompt = self._folder / "prompt.txt"
        prompt.write_text(" ".join(map(str, range(first, first + 200))), encoding="ascii")
        flags = ["--model", MODEL, "--prompt-file", prompt, "--raw", "--max-tokens", 1]
        tls = ["--tls-ca", self._folder / "tls/ca.crt", "--tls-server-name", "node"]
        before = node.metric(commits)

        def stored():
            cairn(self._build, "generate", *flags, "--cache", self._grpc(pod), *tls)
            return node.metric(commits) > before

        wait_until(stored, "blocks are stored")

    def running(self):
        return set(self._running)

    def break_things(self):
        engine = f"http://127.0.0.1:{free_port()}"
        events = f"{engine}=tcp://127.0.0.1:{free_port()}"
        self._store_blocks("cache-1", 1)
        unwritten = "cairn_unflushed_bytes"
        wait_until(lambda: self._running["cache-1"].metric(unwritten) == 0, "blocks are on disk")
        self._device.set(_FaultDevice.FAILS)
        self._store_blocks("cache-1", 500)
        self._running["cache-0"].kill()
        self._keys.write_text("no key\n", encoding="ascii")
        (self._folder / "tls/tls.key").write_text("no key\n", encoding="ascii")
        self._start(
            "router-1",
            router_command(self._build, MODEL, "--workers", engine, "--engines.events", events),
        )
        # Each refusal is a line of the log, of which 1 MiB may wait.
        self._loads.append(_Sessions(self._grpc("cache-2"), burst=6000))

    def break_more(self):
        """What would hide faults of `break_things` before they were told."""
        self._start_node(
            "cache-3",
            *("--limits.sessions", "2", "--device.capacity", "64MiB"),
            *("--device.library", self._folder / "no-driver.so", "--cluster.discovery", "dns"),
            *("--cluster.dns_names", "cache.example", "--cluster.dns_interval", "1s"),
            *("--cluster.dns_servers", f"127.0.0.1:{free_port()}"),
        )
        self._loads.append(_Sessions(self._grpc("cache-3")))
        self._authority.make(["node"], days=60)
        # The last flush tries again what could not be written.
        self._device.set(_FaultDevice.HANGS)
        os.kill(self._running["cache-1"].pid, signal.SIGTERM)

    def repair(self):
        for load in self._loads:
            load.stop()
        self._device.set(_FaultDevice.NORMAL)
        self._start_node("cache-0")
        self._keys.write_text(f"tenant {'1' * 64}\n", encoding="ascii")
        self._start_worker("worker-1")


def _await(receiver, faults):
    """Until Alertmanager has told of all faults, or for `PATIENCE`: each that is missing then fails
    a test of its own."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: all(receiver.told(alert, pod) for alert, pod, _ in faults), "all alerts")


@pytest.fixture(scope="module")
def stage(programs, chart, tmp_path_factory):
    """(programs, receiver) before anything is broken."""
    folder = tmp_path_factory.mktemp("alerts")
    docs = render(chart, {**TLS, "alerts": {"enabled": True, "runbookUrl": RUNBOOKS}})
    groups = hurried(find(docs, "PrometheusRule", "test")["spec"]["groups"])
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        receiver = Receiver()
        stack.callback(receiver.stop)
        alertmanager = Alertmanager(folder, receiver)
        stack.callback(alertmanager.stop)
        made = _Stage(programs, folder, stack)
        host = alertmanager.url.removeprefix("http://")
        prometheus = Prometheus(
            folder,
            {
                "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [host]}]}]},
                "scrape_configs": [{"job_name": "cairn", "static_configs": made.targets()}],
            },
        )
        stack.callback(prometheus.stop)
        made.start()
        # Rules ask how values grew since they were right.
        wait_until(lambda: prometheus.up() == made.running(), "all are scraped")
        yield made, receiver


@pytest.fixture(scope="module")
def fired(stage):
    made, receiver = stage
    made.break_things()
    _await(receiver, FAULTS)
    made.break_more()
    _await(receiver, MORE_FAULTS)
    return receiver


@pytest.mark.parametrize("alert, pod", [fault[:2] for fault in ALL_FAULTS])
def test_a_fault_is_told_with_its_pod_and_its_page(fired, alert, pod):
    told = fired.told(alert, pod)
    assert told and told[0]["status"] == "firing"
    assert told[0]["labels"]["namespace"] == "kv"
    assert told[0]["annotations"]["runbook_url"] == f"{RUNBOOKS}/{alert}.md"
    assert "<no value>" not in json.dumps(told[0]["annotations"])


@pytest.fixture(scope="module")
def repaired(stage, fired):
    stage[0].repair()
    return fired


@pytest.mark.parametrize("alert, pod", [fault[:2] for fault in ALL_FAULTS if fault[2]])
def test_the_end_of_a_fault_is_told(repaired, alert, pod):
    assert repaired.told(alert, pod)
    wait_until(lambda: repaired.told(alert, pod)[-1]["status"] == "resolved", f"{alert} ends")
