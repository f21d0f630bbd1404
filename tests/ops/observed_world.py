"""A cluster of three cache nodes, two workers and a router under a small load, and a real
Prometheus that scrapes them. test_observability.py looks at the dashboards in it, and
docs/images/dashboard_svg.py draws one."""

import contextlib
import hashlib
import itertools
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import yaml

from conftest import ROOT
from monitoring import Prometheus

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "tests/support"))
# Need the paths above.
from ports import free_port  # noqa: E402
from rows.processes import (  # noqa: E402
    Server,
    cairn,
    node_command,
    router_command,
    wait_until,
    worker_command,
)

MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
# Limit for waiting, in seconds: the machine may be busy with other things.
PATIENCE = 300
KEY = "a key of a test"
# Prometheus sees rates of these when all programs have served.
SERVED = (
    "cairn_tokens_saved_total",
    "cairn_cluster_read_blocks_total",
    "cairn_worker_ttft_seconds_count",
    "cairn_router_ttft_seconds_count",
    'cairn_router_http_answers_total{code="401"}',
)


def start_prometheus(folder, targets):
    """With the shipped configuration pointed at our ports. `targets`: HOST:PORT of the admin ports,
    by job."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"]["scrape_interval"] = "1s"
    for job in config["scrape_configs"]:
        job["static_configs"][0]["targets"] = targets[job["job_name"]]
    return Prometheus(folder, config)


class World:
    """All processes, by the job of deploy/prometheus: `services`. `start`: of the load, in seconds
    since 1970."""

    def __init__(self, build, folder, programs):
        self._build, self._folder, self._programs = build, folder, programs
        self._log = folder / "services.log"
        self._make_secrets()
        self._text = (ROOT / "examples/demo/system.txt").read_text() * 3
        self._rounds = itertools.count()
        nodes = self._start_nodes()
        workers = [
            self._start_worker(node, path)
            for node, path in zip(nodes, ("grpc", "auto"), strict=False)
        ]
        router = self._start_router(workers, nodes)
        self.services = {
            "cairn-cache": [*nodes, self._start_node_with_tls()],
            "cairn-worker": workers,
            "cairn-router": [router, self._start_picker()],
        }
        self.prometheus = start_prometheus(
            folder, {job: [one.admin for one in some] for job, some in self.services.items()}
        )
        programs.callback(self.prometheus.stop)
        self.start = time.time()

    def serve(self):
        """Until the load reached everything and Prometheus has seen it."""
        wait_until(self.prometheus.ready, PATIENCE, "prometheus scrapes all")
        *nodes, _ = self.services["cairn-cache"]
        workers = self.services["cairn-worker"]
        router, _ = self.services["cairn-router"]
        for node in nodes:
            wait_until(
                lambda n=node: n.metric('cairn_cluster_members{state="live"}') == 2,
                PATIENCE,
                "the nodes find each other",
            )
        for worker in workers:
            wait_until(
                lambda w=worker: w.metric("cairn_worker_cache_connected") == 1,
                PATIENCE,
                "workers connect",
            )
        wait_until(lambda: is_ready(router), PATIENCE, "the router sees its workers")
        self._fill_node_with_tls()
        for counter in SERVED:
            wait_until(
                lambda c=counter: self._rate_is_seen(c), PATIENCE, f"prometheus sees {counter} grow"
            )

    def load(self):
        """A little of everything: prompts, an answer over HTTP, and a wrong key."""
        self._ask_all()
        assert self.chat() == 200
        assert self.chat(key="a wrong one") == 401

    def chat(self, key=KEY):
        """The HTTP status of one chat over the router."""
        router, _ = self.services["cairn-router"]
        body = {
            "messages": [{"role": "user", "content": self._text}],
            "max_tokens": 8,
            "temperature": 0,
        }
        request = urllib.request.Request(
            f"http://{router.http}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def _make_secrets(self):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-days", "90", "-subj", "/CN=test"),
                *("-keyout", self._folder / "tls.key", "-out", self._folder / "tls.crt"),
            ],
            check=True,
            capture_output=True,
        )
        key = hashlib.sha256(KEY.encode()).hexdigest()
        (self._folder / "keys").write_text(f"default {key}\n", encoding="ascii")
        policy = {
            "rules": [{"identity": "cn:test", "role": "writer", "tenants": ["*"]}],
            "limits": [{"tenants": ["*"], "memory": "32MiB"}],
        }
        (self._folder / "policy").write_text(json.dumps(policy), encoding="ascii")

    def _run(self, command):
        return self._programs.enter_context(Server(command, self._log, PATIENCE))

    def _start_nodes(self):
        """The first one has a GPU, which is a fake one, and publishes events."""
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        own = [
            (
                *("--device.capacity", "64MiB"),
                *("--device.library", self._build / "bin/libcairn_fake_device.so"),
                *("--link.enabled", "true"),
                *("--link.library", self._build / "bin/libfakenccl.so"),
                *("--events.zmq", f"ipc://{self._folder}/events"),
            ),
            (),
            (),
        ]
        return [
            self._run(
                node_command(
                    self._build,
                    *("--listen", address, "--node.id", f"node-{i}"),
                    *("--host.capacity", "128MiB", "--eviction.policy", "cairn"),
                    *("--disk.path", self._folder / f"disk-{i}", "--disk.capacity", "256MiB"),
                    *("--disk.min_free", "1MiB"),
                    *("--cluster.discovery", "static", "--cluster.members", ",".join(addresses)),
                    *more,
                )
            )
            for i, (address, more) in enumerate(zip(addresses, own, strict=True))
        ]

    def _start_node_with_tls(self):
        """Outside of the cluster, whose members would all need certificates."""
        return self._run(
            node_command(
                self._build,
                *("--host.capacity", "64MiB"),
                *("--tls.cert", self._folder / "tls.crt", "--tls.key", self._folder / "tls.key"),
                *("--tls.client_ca", self._folder / "tls.crt"),
                *("--auth.policy", self._folder / "policy"),
            )
        )

    def _fill_node_with_tls(self):
        """So that there is a tenant with limits."""
        certificate = self._folder / "tls.crt"
        cairn(
            self._build,
            *("bench", "put", "--cache", self.services["cairn-cache"][-1].grpc),
            *("--size", "64KiB", "--data", "4MiB", "--seconds", 1, "--path", "grpc"),
            *("--tls-ca", certificate, "--tls-cert", certificate),
            *("--tls-key", self._folder / "tls.key", "--tls-server-name", "test"),
        )

    def _start_worker(self, node, path):
        return self._run(
            worker_command(
                self._build,
                MODEL,
                *("--cache", node.grpc, "--cache.path", path, "--threads", 1),
                *("--cache.match_deadline", "2s", "--cache.stall_deadline", "2s"),
            )
        )

    def _start_router(self, workers, nodes):
        return self._run(
            router_command(
                self._build,
                MODEL,
                *("--workers", ",".join(one.grpc for one in workers)),
                *("--cache", ",".join(one.grpc for one in nodes)),
                *("--http.api_keys", self._folder / "keys"),
            )
        )

    def _start_picker(self):
        """A router of a gateway, before an engine that is not there."""
        engine, events = (f"127.0.0.1:{free_port()}" for _ in range(2))
        return self._run(
            router_command(
                self._build,
                MODEL,
                *(
                    "--workers",
                    f"http://{engine}",
                    "--engines.events",
                    f"http://{engine}=tcp://{events}",
                ),
                *("--picker.listen", "127.0.0.1:0"),
                *("--tls.cert", self._folder / "tls.crt", "--tls.key", self._folder / "tls.key"),
            )
        )

    def _ask_all(self):
        """A prompt that no worker has seen to its end: the second worker's node finds the last
        blocks at the first one's."""
        prompt = self._folder / "prompt.txt"
        prompt.write_text(self._text + f"\nNumber {next(self._rounds)} counts. " * 40)
        for worker in self.services["cairn-worker"]:
            cairn(
                self._build,
                *("generate", "--worker", worker.grpc, "--raw", "--prompt-file", prompt),
                *("--max-tokens", 8, "--temperature", 0),
            )
            wait_until(
                lambda w=worker: w.metric("cairn_worker_push_queue_blocks") == 0,
                PATIENCE,
                "blocks are pushed",
            )

    def _rate_is_seen(self, counter):
        self.load()
        rates = self.prometheus.values(f"sum(rate({counter}[10s]))", self.start)
        return max(rates, default=0) > 0


def is_ready(server):
    try:
        with urllib.request.urlopen(f"http://{server.admin}/readyz", timeout=PATIENCE) as answer:
            return answer.status == 200
    except OSError:
        return False


@contextlib.contextmanager
def observed_world(build, folder):
    """A World that has served. `build`: the folder of the build."""
    with contextlib.ExitStack() as programs:
        world = World(build, folder, programs)
        world.serve()
        yield world
