"""The share of the machine that other processes take while something is measured."""

import os
import resource
import time

MAX_FOREIGN_CORES = 0.2
TICKS = os.sysconf("SC_CLK_TCK")


class ForeignLoad:
    """Cores that others used since it was made. `pids`: processes that are ours, besides this one
    and its ended children."""

    def __init__(self, pids):
        self._pids = list(pids) + [os.getpid()]
        self._begin = self._snapshot()

    def _snapshot(self):
        with open("/proc/stat", encoding="utf-8") as stat:
            v = [int(x) for x in stat.readline().split()[1:9]]
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = sum(_cpu_seconds(pid) for pid in self._pids) + children.ru_utime + children.ru_stime
        # User, nice and system time; what the hypervisor took away.
        return time.monotonic(), (v[0] + v[1] + v[2]) / TICKS, v[7] / TICKS, own

    def read(self):
        seconds, busy, stolen, own = (b - a for a, b in zip(self._begin, self._snapshot()))
        return (max(0.0, busy - own) + max(0.0, stolen)) / seconds


def _cpu_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            v = stat.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / TICKS
    except OSError:
        return 0.0
