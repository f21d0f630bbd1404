"""DNS as Kubernetes answers it: A and SRV of Services and of the pods behind headless ones.

It speaks UDP, and answers what fits a datagram. It knows `cluster.local` only.
"""

import socket
import struct
import threading

DOMAIN = "cluster.local"
A, SOA, AAAA, SRV = 1, 6, 28, 33
TTL = 5


def resolv_conf(server, namespace):
    search = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
    return f"nameserver {server}\nsearch {search}\noptions ndots:5\n"


class Zone:
    """What the name server knows at one moment."""

    def __init__(self):
        self.addresses = {}  # name: [address]
        self.services = {}  # _port._tcp.name: [(port, target)]
        self._names = set()

    def add_address(self, name, address):
        self.addresses.setdefault(name, []).append(address)
        self._add_name(name)

    def add_service(self, name, port, target):
        self.services.setdefault(name, []).append((port, target))
        self._add_name(name)

    def _add_name(self, name):
        labels = name.split(".")
        self._names.update(".".join(labels[i:]) for i in range(len(labels)))

    def has(self, name):
        return name in self._names

    def add(self, service, namespace, endpoints):
        """A Service, and its endpoints: [(address, the pod's name, hostname or "")]."""
        name = f"{service['metadata']['name']}.{namespace}.svc.{DOMAIN}"
        spec = service["spec"]
        headless = spec["clusterIP"] == "None"
        targets = [] if headless else [(name, spec["clusterIP"])]
        for address, host in endpoints if headless else ():
            targets.append((f"{host or address.replace('.', '-')}.{name}", address))
        for target, address in targets:
            self.add_address(name, address)
            if target != name:
                self.add_address(target, address)
            for port in spec["ports"]:
                self.add_service(f"_{port['name']}._tcp.{name}", port["port"], target)


def _encode(name):
    return b"".join(bytes([len(p)]) + p.encode() for p in name.split(".") if p) + b"\0"


def _question(query):
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += query[at] + 1
    kind, _ = struct.unpack_from("!HH", query, at + 1)
    return ".".join(labels).lower(), kind, query[12 : at + 5]


def _record(name, kind, data, ttl=TTL):
    return name + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data


def answer(query, zone):
    """The datagram for a query."""
    name, kind, question = _question(query)
    pointer = b"\xc0\x0c"  # The name of the question.
    answers, more = [], []
    if kind == A:
        answers = [_record(pointer, A, socket.inet_aton(a)) for a in zone.addresses.get(name, ())]
    elif kind == SRV:
        for port, target in zone.services.get(name, ()):
            data = struct.pack("!HHH", 0, 100, port) + _encode(target)
            answers.append(_record(pointer, SRV, data))
            more += [
                _record(_encode(target), A, socket.inet_aton(a)) for a in zone.addresses[target]
            ]
    code = 0 if zone.has(name) else 3
    authority = []
    if not answers:
        data = _encode(f"ns.dns.{DOMAIN}") + _encode(f"hostmaster.{DOMAIN}")
        authority.append(
            _record(_encode(DOMAIN), SOA, data + struct.pack("!5I", 1, 60, 60, 60, TTL))
        )
    size = len(query) + sum(map(len, answers + authority))
    if size + sum(map(len, more)) > 1232:
        more = []
    flags = 0x8580 | code  # An answer, with authority and recursion.
    counts = struct.pack("!HHHH", 1, len(answers), len(authority), len(more))
    records = b"".join(answers + authority + more)
    return query[:2] + struct.pack("!H", flags) + counts + question + records


class NameServer:
    """Answers on `sock` until `close`. `zone` may be replaced at any time."""

    def __init__(self, sock):
        self.zone = Zone()
        self._socket = sock
        self._socket.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while not self._ended.is_set():
            try:
                query, sender = self._socket.recvfrom(4096)
                self._socket.sendto(answer(query, self.zone), sender)
            except (OSError, IndexError, struct.error):
                continue  # Nobody asked for a while, or a query that is none.

    def close(self):
        self._ended.set()
        self._thread.join()
        self._socket.close()
