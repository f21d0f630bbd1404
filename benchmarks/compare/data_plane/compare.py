"""Cairn beside Redis and Mooncake Store over TCP, in turns on this machine: same bytes, same batch, every byte read compared.

    benchmarks/compare/data_plane/run.sh BUILD_DIR [--repeat 5] [--out rows.json] [--only redis,mooncake]

Of a peer's variants the better one counts. A round in which other processes used more than a fifth of a core is dropped and repeated,
at most as often as there are rounds. Prints rows as benchmarks/run.py has them.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from child import Peer  # noqa: E402
from rows import row  # noqa: E402
from rows.load import ForeignLoad, MAX_FOREIGN_CORES  # noqa: E402
from rows.processes import Server, node_command  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20

# (row of the get, bytes of a block, blocks a call, floor and goal over gRPC)
MOONCAKE = [("mooncake_get_64k_x1", 64 * KIB, 1, None, None), ("mooncake_get_64k_x16", 64 * KIB, 16, 1.5, 3.0),
            ("mooncake_get_1m_x16", MIB, 16, 1.2, 1.5), ("mooncake_get_4m_x16", 4 * MIB, 16, 1.0, 1.3)]
LOCAL_GOAL_MOONCAKE, LOCAL_GOAL_REDIS = 6.0, 4.0
REDIS = ("redis_get_1m_x8", MIB, 8)
KEYS_A_CALL = 1024


class Contenders:
    """Everybody who takes part in one comparison, and their samples of each round."""

    def __init__(self, node, build, seconds):
        self._node, self._build, self._seconds = node, build, seconds

    def cairn(self, path, what, size=0, batch=1):
        """One trial: {"get": GB/s} or {"put": ...} or {"exists": keys/s}."""
        command = [self._build / "bin/cairn", "bench", what, "--cache", self._node.grpc, "--path", path, "--json", "--repeat", "1",
                   "--seconds", str(self._seconds), "--batch", str(batch), "--depth", "1" if size else "4"]
        if size:
            command += ["--size", str(size)]
        if what == "get":
            command += ["--lookup"]  # Peers look a key up in each call too.
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"cairn bench {what}: {done.stderr.strip()}")
        metrics = json.loads(done.stdout)["metrics"]
        return metrics["keys" if what == "exists" else "throughput"]["median"]


def rounds(count, pids, contenders):
    """{name: samples} of contenders {name: trial()}, one after the other in each round."""
    samples = {name: [] for name in contenders}
    spare = count
    done = 0
    while done < count:
        load = ForeignLoad(pids)
        measured = {name: trial() for name, trial in contenders.items()}
        foreign = load.read()
        if foreign > MAX_FOREIGN_CORES and spare > 0:
            spare -= 1
            print(f"a round was dropped: others used {foreign:.2f} cores", file=sys.stderr)
            continue
        done += 1
        for name, value in measured.items():
            samples[name].append(value)
    return samples


def better(samples, names):
    return max(names, key=lambda name: statistics.median(samples[name]))


def against(name, samples, ours, theirs, unit, floor, goal):
    """The row of `ours`, a contender, over the better of `theirs`."""
    best = better(samples, theirs)
    ratio = statistics.median(a / b for a, b in zip(samples[ours], samples[best]))
    value = statistics.median(samples[best])
    shown = f"{value:.2f} {unit}" if unit == "GB/s" else f"{value / 1e6:.2f} M {unit}"
    return row(name, samples[ours], unit, f"{best} {shown}", ratio, floor, goal)


def mooncake(args, contenders, node):
    out = []
    with contextlib.ExitStack() as stack:
        peers = {f"mooncake ({kind})": stack.enter_context(
            Peer(f"mooncake {kind}", [sys.executable, HERE / "mooncake_peer.py", kind], args.logs / f"mooncake-{kind}.log"))
            for kind in ("default", "pooled")}
        pids = [node.pid] + [pid for peer in peers.values() for pid in peer.pids]
        for name, size, batch, floor, goal in MOONCAKE:
            puts = {peer: [] for peer in peers}

            def transfer(peer, size=size, batch=batch, puts=puts):
                answer = peers[peer].ask(what="transfer", size=size, batch=batch, seconds=args.seconds)
                puts[peer].append(answer["put"])
                return answer["get"]

            samples = rounds(args.repeat, pids, {
                **{peer: lambda peer=peer: transfer(peer) for peer in peers},
                "cairn grpc": lambda: contenders.cairn("grpc", "get", size, batch),
                "cairn local": lambda: contenders.cairn("local", "get", size, batch),
                "cairn grpc put": lambda: contenders.cairn("grpc", "put", size, batch)})
            out.append(against(f"{name}_grpc", samples, "cairn grpc", peers, "GB/s", floor, goal))
            out.append(against(f"{name}_local", samples, "cairn local", peers, "GB/s", None, LOCAL_GOAL_MOONCAKE))
            # Rounds that were dropped have their puts in the list too: the last ones count.
            for peer in peers:
                samples[peer] = puts[peer][-args.repeat:]
            out.append(against(f"{name.replace('_get_', '_put_')}_grpc", samples, "cairn grpc put", peers, "GB/s", None, None))
        samples = rounds(args.repeat, pids, {
            **{peer: lambda peer=peer: peers[peer].ask(what="exists", batch=KEYS_A_CALL, seconds=args.seconds)["exists"]
               for peer in peers},
            "cairn grpc": lambda: contenders.cairn("grpc", "exists", batch=KEYS_A_CALL)})
        out.append(against("mooncake_exists_grpc", samples, "cairn grpc", peers, "keys/s", 1.0, 2.0))
    return out


def redis(args, contenders, node):
    name, size, batch = REDIS
    with contextlib.ExitStack() as stack:
        peers = {f"redis ({kind})": stack.enter_context(
            Peer(f"redis {kind}", [sys.executable, HERE / "redis_peer.py", kind], args.logs / f"redis-{kind}.log"))
            for kind in ("raw", "hiredis")}
        pids = [node.pid] + [pid for peer in peers.values() for pid in peer.pids]
        samples = rounds(args.repeat, pids, {
            **{peer: lambda peer=peer: peers[peer].ask(what="transfer", size=size, batch=batch, seconds=args.seconds)["get"]
               for peer in peers},
            "cairn grpc": lambda: contenders.cairn("grpc", "get", size, batch),
            "cairn local": lambda: contenders.cairn("local", "get", size, batch)})
    return [against(f"{name}_grpc", samples, "cairn grpc", peers, "GB/s", None, 1.0),
            against(f"{name}_local", samples, "cairn local", peers, "GB/s", None, LOCAL_GOAL_REDIS)]


PARTS = {"redis": redis, "mooncake": mooncake}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="measured time of a trial")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    args = parser.parse_args()
    chosen = args.only.split(",")
    for part in chosen:
        if part not in PARTS:
            parser.error(f"--only: got {part!r}, expected some of {', '.join(PARTS)}")
    started = time.monotonic()
    rows = []
    with tempfile.TemporaryDirectory(prefix="cairn-compare-") as logs:
        args.logs = pathlib.Path(logs)
        command = node_command(args.build.resolve(), "--host.capacity", "1536MiB")
        with Server(command, args.logs / "node.log") as node:
            contenders = Contenders(node, args.build.resolve(), args.seconds)
            # Only from its first session on this machine on does a tenant get memory that such sessions can read.
            contenders.cairn("local", "get", MIB, 1)
            for part in chosen:
                rows += PARTS[part](args, contenders, node)
    print(f"compared in {time.monotonic() - started:.0f} s", file=sys.stderr)
    text = json.dumps(rows, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
