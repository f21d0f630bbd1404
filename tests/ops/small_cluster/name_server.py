"""DNS as Kubernetes answers it: A and SRV of Services and of the pods behind headless ones.

It speaks UDP and TCP: what does not fit the datagram that a client takes is cut, and the client
asks again over TCP. It knows `cluster.local` only.
"""

import socket
import struct
import threading

DOMAIN = "cluster.local"
A, SOA, AAAA, SRV, OPT = 1, 6, 28, 33, 41
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

    def of_first(self):
        """What is left when each name has its first record only."""
        made = Zone()
        for name, (address, *_) in self.addresses.items():
            made.add_address(name, address)
        for name, (first, *_) in self.services.items():
            made.add_service(name, *first)
        return made

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


def _room(query, question):
    """Bytes of the largest datagram that the client takes."""
    rest = query[12 + len(question) :]
    if rest[:1] == b"\0" and len(rest) >= 5 and struct.unpack_from("!H", rest, 1)[0] == OPT:
        return max(512, struct.unpack_from("!H", rest, 3)[0])
    return 512


def answer(query, zone, datagram=True):
    """The answer to a query."""
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
    flags = 0x8580 | code  # An answer, with authority and recursion.
    room = _room(query, question) if datagram else 65535
    size = 12 + len(question) + sum(map(len, answers + authority))
    if size + sum(map(len, more)) > room:
        more = []
    if size > room:
        answers, authority, flags = [], [], flags | 0x0200
    counts = struct.pack("!HHHH", 1, len(answers), len(authority), len(more))
    records = b"".join(answers + authority + more)
    return query[:2] + struct.pack("!H", flags) + counts + question + records


class NameServer:
    """Answers on a socket for datagrams, and one that listens, until `close`. `zone` may be
    replaced at any time."""

    def __init__(self, datagrams, listener):
        self.zone = Zone()
        self._socket, self._listener = datagrams, listener
        self._ended = threading.Event()
        self._threads = []
        for sock, serve in [(datagrams, self._serve), (listener, self._serve_connections)]:
            sock.settimeout(0.2)
            self._threads.append(threading.Thread(target=serve, daemon=True))
            self._threads[-1].start()

    def _serve(self):
        while not self._ended.is_set():
            try:
                query, sender = self._socket.recvfrom(4096)
                self._socket.sendto(answer(query, self.zone), sender)
            except (OSError, IndexError, struct.error):
                continue  # Nobody asked for a while, or a query that is none.

    def _serve_connections(self):
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue  # Nobody came for a while.
            threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection):
        """Each message has its length before it."""
        with connection, connection.makefile("rb") as stream:
            connection.settimeout(10)
            try:
                while len(head := stream.read(2)) == 2:
                    text = answer(stream.read(struct.unpack("!H", head)[0]), self.zone, False)
                    connection.sendall(struct.pack("!H", len(text)) + text)
            except (OSError, IndexError, struct.error):
                return

    def close(self):
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()
        self._listener.close()
