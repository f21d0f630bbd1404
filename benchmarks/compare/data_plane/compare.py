"""Cairn next to Redis, Mooncake Store and LMCache, in turns on this machine: same bytes, same
batch, every byte read compared.

    benchmarks/compare/data_plane/run.sh BUILD_DIR [--repeat 5] [--out rows.json] [--only
    redis,mooncake,lmcache]

The better of a peer's variants counts. A peer that is not installed is left out, and said so;
exit status 3 when none is left. A round in which other processes used more than a fifth of a core
is dropped and repeated, at most as often as there are rounds. Prints rows as benchmarks/run.py has
them.
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
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1]))

from child import Peer  # noqa: E402
from rows import row  # noqa: E402
from rows.load import ForeignLoad, MAX_FOREIGN_CORES  # noqa: E402
from rows.peers import not_installed  # noqa: E402
from rows.processes import Server, node_command  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20

# (row of the get, bytes of a block, blocks a call, floor and goal over gRPC)
MOONCAKE = [
    ("mooncake_get_64k_x1", 64 * KIB, 1, None, None),
    ("mooncake_get_64k_x16", 64 * KIB, 16, 1.5, 3.0),
    ("mooncake_get_1m_x16", MIB, 16, 1.2, 1.5),
    ("mooncake_get_4m_x16", 4 * MIB, 16, 1.0, 1.3),
]
LOCAL_GOAL_MOONCAKE, LOCAL_GOAL_REDIS = 6.0, 4.0
REDIS = ("redis_get_1m_x8", MIB, 8)
LMCACHE = [("64k_x16", 64 * KIB, 16), ("1m_x16", MIB, 16), ("4m_x16", 4 * MIB, 16)]
KEYS_A_CALL = 1024
ENVIRONMENTS = {
    "redis": "compare/data_plane",
    "mooncake": "compare/data_plane",
    "lmcache": "engines/venv",
}


class Contenders:
    """Everybody who takes part in one comparison, and their samples of each round."""

    def __init__(self, node, build, seconds):
        self._node, self._build, self._seconds = node, build, seconds

    def cairn(self, path, what, size=0, batch=1):
        """One trial: {"get": GB/s} or {"put": ...} or {"exists": keys/s}."""
        command = [
            self._build / "bin/cairn",
            "bench",
            what,
            "--path",
            path,
            "--json",
            "--repeat",
            "1",
            "--seconds",
            str(self._seconds),
            "--batch",
            str(batch),
            "--depth",
            "1" if size else "4",
        ]
        if what != "put":  # Each run of it stores the same keys: in a node of its own they are new.
            command += ["--cache", self._node.grpc]
        if size:
            command += ["--size", str(size)]
        if what == "get":
            command += ["--lookup"]  # Peers look a key up in each call too.
        done = subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, timeout=300, check=False
        )
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


def start(stack, args, part, kinds):
    """{name: Peer} of a peer's variants."""
    python = ROOT / "build" / ENVIRONMENTS[part] / "bin/python"
    return {
        f"{part} ({kind})": stack.enter_context(
            Peer(
                f"{part} {kind}",
                [python, HERE / f"{part}_peer.py", kind],
                args.logs / f"{part}-{kind}.log",
            )
        )
        for kind in kinds
    }


def transfers(args, contenders, node, peers, size, batch, ours):
    """Two dicts, of gets and of puts: {name: samples}. `ours`: Cairn's trials, as (path, "get" or
    "put")."""
    pids = [node.pid] + [pid for peer in peers.values() for pid in peer.pids]
    samples = rounds(
        args.repeat,
        pids,
        {
            **{
                peer: lambda peer=peer: peers[peer].ask(
                    what="transfer", size=size, batch=batch, seconds=args.seconds
                )
                for peer in peers
            },
            **{
                f"cairn {path} {what}": lambda path=path, what=what: contenders.cairn(
                    path, what, size, batch
                )
                for path, what in ours
            },
        },
    )
    return (
        {**samples, **{peer: [both[what] for both in samples[peer]] for peer in peers}}
        for what in ("get", "put")
    )


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
        peers = start(stack, args, "mooncake", ("default", "pooled"))
        for name, size, batch, floor, goal in MOONCAKE:
            gets, puts = transfers(
                args,
                contenders,
                node,
                peers,
                size,
                batch,
                [("grpc", "get"), ("local", "get"), ("grpc", "put")],
            )
            out.append(against(f"{name}_grpc", gets, "cairn grpc get", peers, "GB/s", floor, goal))
            out.append(
                against(
                    f"{name}_local",
                    gets,
                    "cairn local get",
                    peers,
                    "GB/s",
                    None,
                    LOCAL_GOAL_MOONCAKE,
                )
            )
            out.append(
                against(
                    f"{name.replace('_get_', '_put_')}_grpc",
                    puts,
                    "cairn grpc put",
                    peers,
                    "GB/s",
                    None,
                    None,
                )
            )
        pids = [node.pid] + [pid for peer in peers.values() for pid in peer.pids]
        samples = rounds(
            args.repeat,
            pids,
            {
                **{
                    peer: lambda peer=peer: peers[peer].ask(
                        what="exists", batch=KEYS_A_CALL, seconds=args.seconds
                    )["exists"]
                    for peer in peers
                },
                "cairn grpc": lambda: contenders.cairn("grpc", "exists", batch=KEYS_A_CALL),
            },
        )
        out.append(
            against("mooncake_exists_grpc", samples, "cairn grpc", peers, "keys/s", 1.0, 2.0)
        )
    return out


def redis(args, contenders, node):
    name, size, batch = REDIS
    with contextlib.ExitStack() as stack:
        peers = start(stack, args, "redis", ("raw", "hiredis"))
        gets, _ = transfers(
            args, contenders, node, peers, size, batch, [("grpc", "get"), ("local", "get")]
        )
    return [
        against(f"{name}_grpc", gets, "cairn grpc get", peers, "GB/s", None, 1.0),
        against(f"{name}_local", gets, "cairn local get", peers, "GB/s", None, LOCAL_GOAL_REDIS),
    ]


def lmcache(args, contenders, node):
    out = []
    with contextlib.ExitStack() as stack:
        peers = start(stack, args, "lmcache", ("remote", "daemon"))
        for name, size, batch in LMCACHE:
            ours = [(path, what) for what in ("get", "put") for path in ("grpc", "local")]
            for what, samples in zip(
                ("get", "put"), transfers(args, contenders, node, peers, size, batch, ours)
            ):
                # A wire is compared with a wire: the daemon's memory is the same machine's.
                out.append(
                    against(
                        f"lmcache_{what}_{name}_grpc",
                        samples,
                        f"cairn grpc {what}",
                        ["lmcache (remote)"],
                        "GB/s",
                        None,
                        1.0,
                    )
                )
                out.append(
                    against(
                        f"lmcache_{what}_{name}_local",
                        samples,
                        f"cairn local {what}",
                        peers,
                        "GB/s",
                        None,
                        None,
                    )
                )
    return out


PARTS = {"redis": redis, "mooncake": mooncake, "lmcache": lmcache}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    absent = {part: text for part in chosen if (text := not_installed(part))}
    for part, text in absent.items():
        print(f"NOT COMPARED  {part}: {text}", file=sys.stderr)
    chosen = [part for part in chosen if part not in absent]
    if not chosen:
        return 3
    started = time.monotonic()
    rows = []
    with tempfile.TemporaryDirectory(prefix="cairn-compare-") as logs:
        args.logs = pathlib.Path(logs)
        command = node_command(args.build.resolve(), "--host.capacity", "1536MiB")
        with Server(command, args.logs / "node.log") as node:
            contenders = Contenders(node, args.build.resolve(), args.seconds)
            # Only from its first session on this machine on does a tenant get memory that such
            # sessions can read.
            contenders.cairn("local", "get", MIB, 1)
            for part in chosen:
                rows += PARTS[part](args, contenders, node)
    print(f"compared in {time.monotonic() - started:.0f} s", file=sys.stderr)
    text = json.dumps(rows, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
