"""The network of the small cluster: one machine that routes, and a namespace for each pod.

    pod eth0 10.99.0.N/32 ── veth ── machine 10.99.255.1, routes, nftables: Service address -> pod
                                     10.96.0.10: name server

Namespaces have no names: an open descriptor holds each of them, so a test that is killed leaves
none behind. What is done here needs the rights of root.
"""

import ctypes
import os
import subprocess
import threading

CLONE_NEWNET = 0x40000000
GATEWAY = "10.99.255.1"
NAME_SERVER = "10.96.0.10"
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(namespace):
    """Moves the calling thread, and what it starts from now on, into the namespace."""
    _check(_libc.setns(namespace, CLONE_NEWNET), "setns")


def run_in(namespace, function):
    """Runs `function` in a thread inside the namespace, and returns what it returned."""
    results = []

    def work():
        try:
            enter(namespace)
            results.append((True, function()))
        except BaseException as error:
            results.append((False, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    ((done, result),) = results
    if not done:
        raise result
    return result


def make_namespace():
    """A new network namespace, as a descriptor."""
    made = []

    def work():
        try:
            _check(_libc.unshare(CLONE_NEWNET), "unshare of the network")
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _command(*words, text=None):
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class Network:
    """Thread-safe, but for `close`."""

    def __init__(self):
        self.machine = make_namespace()
        self._lock = threading.Lock()
        self._next = 1

        def prepare():
            _command("ip", "link", "set", "lo", "up")
            _command("ip", "address", "add", f"{NAME_SERVER}/32", "dev", "lo")
            with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
                file.write("1")

        run_in(self.machine, prepare)
        self.set_services({})

    def add_pod(self):
        """(namespace, address) of a new pod. No address is ever given twice."""
        with self._lock:
            number = self._next
            self._next += 1
        address = f"10.99.{number // 250}.{number % 250 + 1}"
        pod = make_namespace()
        path = f"/proc/{os.getpid()}/fd/{pod}"
        link = f"pod{number}"

        def on_machine():
            _command(
                *("ip", "link", "add", link, "type", "veth"),
                *("peer", "name", "eth0", "netns", path),
            )
            _command("ip", "address", "add", f"{GATEWAY}/32", "dev", link)
            _command("ip", "link", "set", link, "up")
            _command("ip", "route", "add", f"{address}/32", "dev", link)

        def in_pod():
            _command("ip", "link", "set", "lo", "up")
            _command("ip", "address", "add", f"{address}/32", "dev", "eth0")
            _command("ip", "link", "set", "eth0", "up")
            _command("ip", "route", "add", GATEWAY, "dev", "eth0")
            _command("ip", "route", "add", "default", "via", GATEWAY)

        run_in(self.machine, on_machine)
        run_in(pod, in_pod)
        return pod, address

    def remove_pod(self, namespace):
        """Its address is unreachable from now on, also if a process still runs in it."""
        run_in(namespace, lambda: _command("ip", "link", "delete", "eth0"))
        os.close(namespace)

    def set_services(self, services):
        """{(address, port): (stays, [(address of a pod, port), ...])}, in place of what was known.
        `stays`: all connections of a client go to one pod, as long as the pods stay the same.
        Connections that exist stay where they are, as with kube-proxy."""
        rules = []
        for (address, port), (stays, ends) in sorted(services.items()):
            if not ends:
                continue
            places = ", ".join(f"{i} : {end[0]}" for i, end in enumerate(ends))
            choice = "jhash ip saddr" if stays else "numgen random"
            rules.append(
                f"    ip daddr {address} tcp dport {port} dnat to"
                f" {choice} mod {len(ends)} map {{ {places} }}:{ends[0][1]}"
            )
        text = "\n".join(
            [
                "table ip services",
                "delete table ip services",
                "table ip services {",
                "  chain arrive {",
                "    type nat hook prerouting priority dstnat;",
                *rules,
                "  }",
                "  chain leave {",
                "    type nat hook postrouting priority srcnat;",
                "    ct status dnat masquerade",
                "  }",
                # A Service without endpoints.
                "  chain forward {",
                "    type filter hook forward priority filter;",
                "    ip daddr 10.96.0.0/16 reject with tcp reset",
                "  }",
                "}",
                "",
            ]
        )
        run_in(self.machine, lambda: _command("nft", "-f", "-", text=text))

    def set_policies(self, policies):
        """{address of a pod: [(ports, sources or None for everybody)]}, in place of what was known:
        others cannot connect. Pods that are not named here are open."""
        rules = []
        for address, allowed in sorted(policies.items()):
            for ports, sources in allowed:
                if not ports or (sources is not None and not sources):
                    continue
                where = f"tcp dport {{ {', '.join(map(str, sorted(ports)))} }}"
                who = "" if sources is None else f"ip saddr {{ {', '.join(sorted(sources))} }} "
                rules.append(f"    ip daddr {address} {who}{where} accept")
            rules.append(f"    ip daddr {address} reject with tcp reset")
        text = "\n".join(
            [
                "table ip policies",
                "delete table ip policies",
                "table ip policies {",
                "  chain forward {",
                "    type filter hook forward priority filter + 10;",
                "    ct state established,related accept",
                *rules,
                "  }",
                "}",
                "",
            ]
        )
        run_in(self.machine, lambda: _command("nft", "-f", "-", text=text))

    def close(self):
        os.close(self.machine)
