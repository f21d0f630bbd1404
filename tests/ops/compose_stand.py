"""Runs the services of compose.yaml that are Cairn's as Compose would, without Docker: each
container in runc, in a network of its own or in that of another one, with a name server as Docker
has it.
Prometheus and Grafana, which are images of others, are left out."""

import contextlib
import os
import re
import urllib.request

from compose_file import FOLDER, address_of, mounts
from container import UID
from rows.processes import Server
from small_cluster.cluster import name_sockets
from small_cluster.name_server import NameServer, Zone
from small_cluster.network import NAME_SERVER, Network, run_in

_SIZE = {"m": 1 << 20, "g": 1 << 30}


class ComposeStand:
    """Use as a context manager. One thread."""

    def __init__(self, file, image, folder):
        self._file, self._image, self._folder = file, image, folder
        self._stack = contextlib.ExitStack()
        self._network = Network()
        self._stack.callback(self._network.close)
        self._names = NameServer(*run_in(self._network.machine, name_sockets))
        self._stack.callback(self._names.close)
        self._places = {}  # {service: (namespace, address)}
        self.servers = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def up(self):
        """Starts all, in the order of the file."""
        names = [name for name in self._file["services"] if self._is_cairns(name)]
        for name in names:
            if address_of(self._file, name) == name:
                self._places[name] = self._network.add_pod()
        zone = Zone()
        for name, (_, address) in self._places.items():
            zone.add_address(name, address)
        self._names.zone = zone
        resolver = self._folder / "resolv.conf"
        resolver.write_text(f"nameserver {NAME_SERVER}\n")
        resolver.chmod(0o644)
        for name in names:
            self._start(name, resolver)

    def get(self, name, port, path, data=None):
        """The answer of a service's HTTP port, asked from the machine."""
        _, address = self._places[address_of(self._file, name)]
        request = urllib.request.Request(
            f"http://{address}:{port}{path}", data, {"Content-Type": "application/json"}
        )

        def ask():
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.read().decode()

        return run_in(self._network.machine, ask)

    def _is_cairns(self, name):
        return self._file["services"][name].get("command", [""])[0].startswith("cairn-")

    def _bind(self, source, target, options):
        if not source.startswith((".", "/")):
            # A volume that is empty has the owner of the image's folder.
            path = self._folder / source
            path.mkdir(exist_ok=True)
            os.chown(path, UID, UID)
        else:
            path = (FOLDER / source).resolve()
        return path, target, options != "ro"

    def _start(self, name, resolver):
        service = self._file["services"][name]
        namespace, _ = self._places[address_of(self._file, name)]
        number, unit = re.fullmatch(r"(\d+)([mg])", service["mem_limit"]).groups()
        words, remove = self._image.command(
            service["command"],
            binds=[self._bind(*mount) for mount in mounts(service)]
            + [(resolver, "/etc/resolv.conf", False)],
            memory=int(number) * _SIZE[unit],
            environment=service.get("environment"),
            network=f"/proc/{os.getpid()}/fd/{namespace}",
        )
        self._stack.callback(remove)
        self.servers[name] = self._stack.enter_context(
            Server(words, self._folder / f"{name}.log", ready_seconds=120)
        )
