"""Ports for servers of tests that have to know theirs before they listen."""

import pathlib
import random
import socket

_reserved = []  # Kept until this process ends.


def _candidates():
    """Ports that the kernel gives to nobody who asks for any, or connects without one."""
    text = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    low, high = map(int, text.split())
    every = range(10_000, 65_536)
    return [port for port in every if not low <= port <= high] or list(every)


def free_port():
    """A port of loopback on which nobody listens now, and nobody else will as long as this process
    runs. FreePort in etcd_cluster.cc does the same, and both keep out of each other's way."""
    candidates = _candidates()
    for _ in range(10_000):
        port = random.choice(candidates)
        name = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name, which only one process can have.
            name.bind(f"\0cairn-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            name.close()
            continue
        _reserved.append(name)
        return port
    raise RuntimeError("no port is free")
