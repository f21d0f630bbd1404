"""Limits of memory, by control groups of either version. Where none can be written there are none:
a container may then take what the machine has."""

import os
import pathlib
import re

_ROOT = pathlib.Path("/sys/fs/cgroup")
_SECOND = (_ROOT / "cgroup.subtree_control").exists()
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)([KMG]i)?", quantity).groups()
    return int(number) * UNITS[unit or ""]


class Group:
    """A container's, from its start to its end. `limit`: bytes."""

    def __init__(self, name, limit):
        folder = (_ROOT if _SECOND else _ROOT / "memory") / f"cairn_pods_{os.getpid()}_{name}"
        self._folder = None
        try:
            folder.mkdir()
            self._folder = folder
            setting = "memory.max" if _SECOND else "memory.limit_in_bytes"
            (folder / setting).write_text(str(limit))
        except OSError:
            self.close()

    @property
    def members(self):
        """The file that takes process ids; None: there is no limit."""
        return None if self._folder is None else str(self._folder / "cgroup.procs")

    def close(self):
        """Whether a process was killed because it wanted more."""
        if self._folder is None:
            return False
        events = self._folder / ("memory.events" if _SECOND else "memory.oom_control")
        found = re.search(r"^oom_kill (\d+)", events.read_text(), flags=re.M)
        try:
            self._folder.rmdir()
        except OSError:
            return False  # Not empty: something else of the container still runs.
        self._folder = None
        return found is not None and int(found[1]) > 0
