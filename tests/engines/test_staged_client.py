"""The client as an init container stages it, in the real vLLM: a folder in PYTHONPATH, and nothing
installed (docs/operate/engines-in-pods.md)."""

import os
import pathlib
import subprocess
import sys

from conftest import ALONE, ENGINE, ROOT, A, Counts, Engine

sys.path.insert(0, str(ROOT / "deploy/docker"))
from client_files import unpack  # noqa: E402  (needs the path)


def stage(folder):
    """What goes into PYTHONPATH."""
    unpack(ROOT / "build/wheels", folder / "client")
    volume = folder / "volume"
    volume.mkdir()
    subprocess.run(
        ["sh", ROOT / "deploy/docker/stage-client", volume],
        env={**os.environ, "CAIRN_CLIENT": str(folder / "client")},
        check=True,
    )
    return volume / "python"


def test_vllm_stores_and_loads_with_a_staged_client(tiny, engine_log, start_node, tmp_path):
    python = stage(tmp_path)
    node = start_node()
    options = {"environment": {"PYTHONPATH": str(python)}, "connector": {"address": node.grpc}}
    with Counts(node) as counts:
        with Engine(tiny, engine_log(), **options, **ENGINE, **ALONE) as engine:
            first = engine.ask(A)
            maps = pathlib.Path(f"/proc/{engine.pid}/maps").read_text()
        found = {pathlib.Path(line.split()[-1]) for line in maps.splitlines() if "/_native" in line}
        assert {path.parent.parent for path in found} == {python.resolve()}
        assert counts.blocks() == 31
        with Engine(tiny, engine_log(), **options, **ENGINE, **ALONE) as engine:
            second = engine.ask(A)
        assert (first[0]["cached"], second[0]["cached"]) == (0, 960)
        assert counts.since()["fetched_bytes"] > 0
