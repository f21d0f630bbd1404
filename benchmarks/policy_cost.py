#!/usr/bin/env python3
"""The cost of a policy and of limits of tenants: two nodes with mutual TLS, one with a policy,
asked in turn by `cairn bench`.

    python3 benchmarks/policy_cost.py --build build/release --rounds 9 --out report.json

get     64 KiB over gRPC, one at a time
match   keys a second, in calls of 1,024
"""

import argparse
import json
import pathlib
import shlex
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/support")]

from authority import Authority
from rows.processes import Server, cairn, node_command
from run import commit, machine

CALLS = {
    "get": ("get", "--size", "64KiB", "--batch", 1, "--depth", 1, "--data", "64MiB"),
    "match": ("match", "--batch", 1024, "--depth", 1),
}
POLICY = {
    # The last of many rules names the caller, and the last of many entries its tenant.
    "rules": [
        *(
            {"identity": f"uri:spiffe://test/{i}/*", "role": "reader", "tenants": [f"t{i}"]}
            for i in range(500)
        ),
        {"identity": "uri:spiffe://test/bench", "role": "writer", "tenants": ["*"]},
    ],
    "limits": [
        *({"tenants": [f"t{i}"], "memory": "1GiB"} for i in range(500)),
        {"tenants": ["*"], "memory": "1GiB", "bytes_per_second": "1000GiB", "sessions": 1000},
    ],
}


def speed_of(report):
    """Bytes or keys a second."""
    return report["metrics"][{"get": "throughput", "match": "keys"}[report["workload"]]]["median"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        report = measure(args, pathlib.Path(made))
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)


def measure(args, folder):
    authority = Authority(folder / "authority")
    files = {}
    for name, names in (("node", (["localhost"],)), ("bench", ([], ["spiffe://test/bench"]))):
        for file, text in authority.make(*names).items():
            files[name, file] = folder / f"{name}-{file}"
            files[name, file].write_text(text, encoding="ascii")
    (folder / "policy").write_text(json.dumps(POLICY), encoding="ascii")
    tls = (
        *("--tls.cert", files["node", "tls.crt"], "--tls.key", files["node", "tls.key"]),
        *("--tls.client_ca", files["node", "ca.crt"], "--host.capacity", "512MiB"),
    )
    caller = (
        *("--tls-ca", files["bench", "ca.crt"], "--tls-cert", files["bench", "tls.crt"]),
        *("--tls-key", files["bench", "tls.key"], "--tls-server-name", "localhost"),
    )
    log = folder / "log"
    with (
        Server(node_command(args.build, *tls), log) as plain,
        Server(node_command(args.build, *tls, "--auth.policy", folder / "policy"), log) as ruled,
    ):
        rounds = []
        for n in range(args.rounds):
            one = {}
            for kind, call in CALLS.items():
                # In turn, so that neither is always the first.
                for name, node in (("plain", plain), ("policy", ruled))[:: 1 if n % 2 else -1]:
                    done = cairn(
                        args.build,
                        *("bench", *call, "--cache", node.grpc, "--path", "grpc", *caller),
                        *("--seconds", args.seconds, "--repeat", 1),
                    )
                    one[f"{kind}_{name}"] = speed_of(done)
            rounds.append(one)
            print(f"round {n + 1} of {args.rounds}: {one}", file=sys.stderr)
    ratios = {
        kind: statistics.median(one[f"{kind}_policy"] / one[f"{kind}_plain"] for one in rounds)
        for kind in CALLS
    }
    command = shlex.join(["benchmarks/policy_cost.py", "--rounds", str(args.rounds)])
    return {
        "machine": machine(),
        "commit": commit(),
        "command": command,
        "speed_with_a_policy": ratios,
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
