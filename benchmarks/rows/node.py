"""Memory of an empty node beyond its arena."""

import re
import shutil

from . import row
from .processes import Server, node_command

NAMES = ["empty_node_rss"]
ARENA_MIB = 256


def run(build, _model, repeat, work):
    samples = []
    for i in range(repeat):
        disk = work / f"rss-disk-{i}"
        shutil.rmtree(disk, ignore_errors=True)
        command = node_command(build, "--host.capacity", f"{ARENA_MIB}MiB", "--disk.path", disk)
        with Server(command, work / "node.log") as server:
            samples.append(_rss_without_arena_mib(server.pid))
    return [
        row(
            "empty_node_rss",
            samples,
            "MiB",
            "budget 100 MiB beyond the arena",
            100 / max(samples),
            1.0,
            None,
        )
    ]


def _rss_without_arena_mib(pid):
    """Resident memory less the pages of the arena's memfd mappings."""
    total = arena = 0
    in_arena = False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as smaps:
        for line in smaps:
            if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
                in_arena = "memfd:" in line
            elif line.startswith("Rss:"):
                kib = int(line.split()[1])
                total += kib
                arena += kib if in_arena else 0
    return (total - arena) / 1024
