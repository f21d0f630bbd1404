"""The adverse conditions of tools/stress_tests.py: what a program under test is put through.

A run is a process and all that it starts. Where cgroups can be written, a run is a cgroup: its
processes cannot leave it, and freezing it does not show in a test's own SIGSTOP, SIGCONT and
waitpid. Elsewhere a run is found in /proc (same session, descendants, or a mark in the
environment), and is paused by SIGSTOP.
"""

import ctypes
import os
import pathlib
import random
import select
import shutil
import signal
import subprocess
import sys
import time

# Each process of a run has this variable: the run's folder.
MARK = "CAIRN_STRESS_RUN"
# The share of one processor that condition `fifth` leaves, and the period of its quota.
SHARE = 0.2
PERIOD_S = 0.1
# Condition `bursts`: how long a run goes on, and is stopped, in seconds.
RUNS_S = (0.3, 2.0)
STOPPED_S = (0.05, 0.5)
# Condition `disk`: a cheap network disk.
DISK_BYTES_PER_S = 8 << 20
DISK_OPERATIONS_PER_S = 40
# A disk that is less than this slower than without the condition tests nothing.
LEAST_SLOWDOWN = 2.0
# A killed process that a disk or a quota holds needs a moment to end.
KILL_S = 20.0


class CannotRun(Exception):
    """The reason why the tool cannot run, in one line: the field, its value, what was expected."""


def wait_a_moment():
    """Between two looks at processes that were killed: /proc has no event to wait on."""
    select.select([], [], [], 0.01)


class Process:
    """A line of /proc: `start` tells a process from a later one with its number."""

    def __init__(self, pid):
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
        self.name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.start = int(fields[19])

    def ended(self):
        return self.state in "ZX"

    def marked(self, mark):
        """Whether its environment says that it belongs to the run (or base) folder `mark`."""
        try:
            environment = pathlib.Path(f"/proc/{self.pid}/environ").read_bytes()
        except OSError:
            return False
        wanted = f"{MARK}={mark}".encode()
        return any(
            entry == wanted or entry.startswith(wanted + b"/") for entry in environment.split(b"\0")
        )


def process(pid):
    """None: it ended."""
    try:
        return Process(pid)
    except (OSError, ValueError, IndexError):
        return None


def processes():
    found = (process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [p for p in found if p is not None]


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def marked_processes(mark):
    return [p for p in processes() if p.pid != os.getpid() and not p.ended() and p.marked(mark)]


# cgroups


def write(path, text):
    path.write_text(text)


def mounts():
    """(folder, file system, its options) of each mount of cgroups."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            yield pathlib.Path(left.split()[4]), kind, options.split(",")


class Cgroups:
    """The cgroups of this call: a folder `name` in each hierarchy that can be written, and in it
    one for each run."""

    # Ours: (version 1's controller, version 2's controller, a file that must be there in version 2)
    KINDS = {
        "freeze": ("freezer", None, "cgroup.freeze"),
        "cpu": ("cpu", "cpu", "cpu.max"),
        "disk": ("blkio", "io", "io.max"),
    }

    def __init__(self, name, allowed=True):
        self.folders = {}  # by kind
        self.versions = {}
        found = list(mounts()) if allowed else []
        for kind, (old, new, file) in self.KINDS.items():
            for mount, system, options in found:
                if system == "cgroup" and old not in options:
                    continue
                folder = mount / name
                if self._prepare(mount, folder, system, new, file):
                    self.folders[kind] = folder
                    self.versions[kind] = 1 if system == "cgroup" else 2
                    break

    @staticmethod
    def _prepare(mount, folder, system, controller, file):
        try:
            folder.mkdir(exist_ok=True)
            if system == "cgroup2":
                for parent in (mount, folder) if controller else ():
                    write(parent / "cgroup.subtree_control", f"+{controller}")
                trial = folder / "trial"
                trial.mkdir(exist_ok=True)
                usable = (trial / file).exists()
                trial.rmdir()
                return usable
            return os.access(folder / "cgroup.procs", os.W_OK)
        except OSError:
            return False

    def group(self, name):
        return Group({kind: f / name for kind, f in self.folders.items()}, self.versions)

    def remove(self):
        """Ends all that is left in any of them."""
        for folder in set(self.folders.values()):
            for inner in folder.iterdir() if folder.is_dir() else ():
                if inner.is_dir():
                    self.group(inner.name).kill()
        for folder in set(self.folders.values()):
            try:
                folder.rmdir()
            except OSError:
                pass


class Group:
    """One run's cgroup. Without any hierarchy it does nothing."""

    def __init__(self, folders, versions):
        self.folders, self.versions = folders, versions
        for folder in set(folders.values()):
            folder.mkdir(exist_ok=True)

    def can(self, kind):
        return kind in self.folders

    def entries(self):
        """The files into which a process writes its number to be in it."""
        return sorted({str(f / "cgroup.procs") for f in self.folders.values()})

    def freeze(self, frozen):
        if self.versions["freeze"] == 1:
            write(self.folders["freeze"] / "freezer.state", "FROZEN" if frozen else "THAWED")
        else:
            write(self.folders["freeze"] / "cgroup.freeze", "1" if frozen else "0")

    def limit_cpu(self, share):
        """A share of one processor; None: no limit."""
        period = int(PERIOD_S * 1e6)
        folder = self.folders["cpu"]
        if self.versions["cpu"] == 1:
            if share is not None:
                write(folder / "cpu.cfs_period_us", str(period))
            quota = -1 if share is None else int(period * share)
            write(folder / "cpu.cfs_quota_us", str(quota))
        else:
            quota = "max" if share is None else int(period * share)
            write(folder / "cpu.max", f"{quota} {period}")

    def limit_disk(self, device, per_second=None):
        """`device`: "major:minor" of a whole disk. per_second: (bytes, operations); None: no
        limit."""
        folder = self.folders["disk"]
        size, count = per_second or (0, 0)
        if self.versions["disk"] == 1:
            for way in ("read", "write"):
                write(folder / f"blkio.throttle.{way}_bps_device", f"{device} {size}")
                write(folder / f"blkio.throttle.{way}_iops_device", f"{device} {count}")
        else:
            size, count = size or "max", count or "max"
            limits = f"rbps={size} wbps={size} riops={count} wiops={count}"
            write(folder / "io.max", f"{device} {limits}")

    def members(self):
        found = set()
        for entry in self.entries():
            try:
                found |= set(map(int, pathlib.Path(entry).read_text().split()))
            except OSError:
                pass
        return [p for p in map(process, found) if p is not None and not p.ended()]

    def kill(self):
        """Ends its processes and removes it. False: some did not end."""
        if self.can("cpu"):
            self.limit_cpu(None)
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline:
            if self.can("freeze"):
                self.freeze(False)
            members = self.members()
            for member in members:
                send(member.pid, signal.SIGKILL)
            if not members and self._remove():
                return True
            wait_a_moment()
        return False

    def _remove(self):
        try:
            for folder in set(self.folders.values()):
                if folder.is_dir():
                    folder.rmdir()
        except OSError:
            return False
        return True


# A run


# Enters cgroups, then becomes the command: only then its children are in them from the start.
ENTER = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 126; shift; n=$((n-1)); done;'
    ' exec "$@"'
)


class Run:
    """A started command with all its processes."""

    def __init__(self, command, group, mark, environment, cwd, output, before=()):
        self.group, self.mark = group, str(mark)
        self.stopped = {}  # by us: number to start
        self.seen = {}
        entries = group.entries()
        self.main = subprocess.Popen(
            [*before, "/bin/sh", "-c", ENTER, "sh", str(len(entries)), *entries, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**environment, MARK: self.mark},
            start_new_session=True,
        )

    def members(self):
        """Its living processes."""
        if self.group.can("freeze"):
            return self.group.members()
        found = {p.pid: p for p in processes()}
        own = {
            p.pid
            for p in found.values()
            if p.session == self.main.pid or self.seen.get(p.pid) == p.start or p.marked(self.mark)
        }
        grew = True
        while grew:
            more = {p.pid for p in found.values() if p.parent in own and p.pid not in own}
            own |= more
            grew = bool(more)
        self.seen = {pid: found[pid].start for pid in own}
        return [found[pid] for pid in own if not found[pid].ended() and pid != os.getpid()]

    def pause(self):
        if self.group.can("freeze"):
            self.group.freeze(True)
            return
        # Those that appear meanwhile are stopped by the next look. Processes that the test itself
        # had stopped (state T) are the test's to continue.
        for _ in range(10):
            new = [p for p in self.members() if p.state not in "Tt" and p.pid not in self.stopped]
            if not new:
                break
            for p in new:
                self.stopped[p.pid] = p.start
                send(p.pid, signal.SIGSTOP)

    def resume(self):
        if self.group.can("freeze"):
            self.group.freeze(False)
            return
        for pid, start in self.stopped.items():
            now = process(pid)
            if now is not None and now.start == start:
                send(pid, signal.SIGCONT)
        self.stopped = {}

    def wait(self, timeout_s, schedule=None, wake=None):
        """Until its first process ended: "ended", "timeout", or "stopped" when `wake` (a file)
        can be read. schedule: pairs of seconds, how long it runs and is then paused."""
        deadline = time.monotonic() + timeout_s
        watch = os.pidfd_open(self.main.pid)
        paused, change = False, float("inf")
        if schedule is not None:
            runs, pauses = next(schedule)
            change = time.monotonic() + runs
        try:
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return "timeout"
                if now >= change:
                    if paused:
                        self.resume()
                        runs, pauses = next(schedule)
                    else:
                        self.pause()
                    paused = not paused
                    change = time.monotonic() + (pauses if paused else runs)
                files = [watch] if wake is None else [watch, wake]
                ready, _, _ = select.select(files, [], [], min(deadline, change) - now)
                if wake in ready:
                    return "stopped"
                if watch in ready:
                    return "ended"
        finally:
            os.close(watch)

    def kill(self):
        """Ends all of it. Returns the names of the processes that outlived the first one, and
        whether all ended."""
        first_ended = self.main.poll() is not None
        left = [p.name for p in self.members()] if first_ended else []
        if self.group.folders:
            gone = self.group.kill()
        else:
            deadline = time.monotonic() + KILL_S
            while members := self.members():
                if time.monotonic() > deadline:
                    break
                for p in members:
                    send(p.pid, signal.SIGKILL)
                wait_a_moment()
            gone = not members
        if gone:
            self.main.wait()
        return sorted(left), gone


# Conditions


class Condition:
    """Does nothing to a run."""

    name = ""
    how = ""
    timeout_factor = 1.0

    def __init__(self, base, cgroups):
        """base: a folder of this call. Raises CannotRun."""
        self.base, self.cgroups = base, cgroups

    def check(self):
        """Before all runs of all conditions. Returns what it measured. Raises CannotRun unless the
        condition really does what it says."""
        return ""

    def begin(self):
        """Before its runs: what is done to the machine."""

    def end(self):
        """After its runs."""

    def prepare(self, group):
        """Before a run starts."""

    def environment(self, environment):
        """A run's environment, from the one that it would have without the condition."""
        return environment

    def before(self):
        """A command that runs the run's command."""
        return ()

    def schedule(self, seed):
        """The schedule of a run: pairs of seconds, how long it runs and is then paused. None: never
        paused."""
        return None


# As many processors as it may use.
def processors():
    return len(os.sched_getaffinity(0))


def die_with_parent():
    """In a new process: the kernel kills it when the thread that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Busy(Condition):
    name = "busy"

    def __init__(self, base, cgroups):
        super().__init__(base, cgroups)
        self.loops = []
        self.how = f"{processors() + 1} busy loops next to it, for {processors()} processors"

    def begin(self):
        for _ in range(processors() + 1):
            self.loops.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", "while :; do :; done"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, MARK: f"{self.base}/busy"},
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )

    def end(self):
        for loop in self.loops:
            loop.kill()
        for loop in self.loops:
            loop.wait()
        self.loops = []


class Fifth(Condition):
    name = "fifth"
    timeout_factor = 3.0

    def __init__(self, base, cgroups):
        super().__init__(base, cgroups)
        self.quota = "cpu" in cgroups.folders
        if self.quota:
            self.how = (
                f"cgroup v{cgroups.versions['cpu']} quota: "
                f"{SHARE * PERIOD_S * 1e3:.0f} of each {PERIOD_S * 1e3:.0f} ms of one processor"
            )
            return
        way = "cgroup freezer" if "freeze" in cgroups.folders else "SIGSTOP and SIGCONT"
        self.pin = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
        if shutil.which("taskset") is None:
            raise CannotRun("mode: fifth needs a cgroup with a cpu quota, or taskset (util-linux)")
        self.how = (
            f"{way}: on one processor, runs {SHARE * PERIOD_S * 1e3:.0f} of each "
            f"{PERIOD_S * 1e3:.0f} ms"
        )

    def prepare(self, group):
        if self.quota:
            group.limit_cpu(SHARE)

    def before(self):
        return () if self.quota else self.pin

    def schedule(self, seed):
        if self.quota:
            return None
        return iter(lambda: (SHARE * PERIOD_S, (1 - SHARE) * PERIOD_S), None)


class Bursts(Condition):
    name = "bursts"

    def __init__(self, base, cgroups):
        super().__init__(base, cgroups)
        if "freeze" in cgroups.folders:
            way = f"cgroup v{cgroups.versions['freeze']} freezer"
        else:
            way = "SIGSTOP and SIGCONT"
        self.how = (
            f"{way}: stopped {STOPPED_S[0] * 1e3:.0f} to {STOPPED_S[1] * 1e3:.0f} ms every "
            f"{RUNS_S[0]} to {RUNS_S[1]} s"
        )

    def schedule(self, seed):
        numbers = random.Random(seed)
        return iter(lambda: (numbers.uniform(*RUNS_S), numbers.uniform(*STOPPED_S)), None)


# Prints the mean milliseconds of a small write with fsync, and of a direct write of 64 KiB
# (nan: this file system has none).
PROBE = f"""
import mmap, os, sys, time
count = {DISK_OPERATIONS_PER_S // 4}
def mean(operation):
    begin = time.monotonic()
    for i in range(count):
        operation(i)
    return (time.monotonic() - begin) / count * 1e3
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
def synced(i):
    os.pwrite(file, os.urandom(4096), i * 4096)
    os.fsync(file)
fsync = mean(synced)
try:
    file = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
    memory = mmap.mmap(-1, 65536)
    direct = mean(lambda i: os.pwrite(file, memory, i * 65536))
except OSError:
    direct = float("nan")
print(fsync, direct)
"""


def disk_of(folder):
    """ "major:minor" of the whole disk under a folder; None: it is on none (tmpfs, overlay)."""
    number = os.stat(folder).st_dev
    device = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        return None
    if (device / "partition").exists():
        device = device.resolve().parent
    return (device / "dev").read_text().strip()


# Where no cgroup throttles the disk: a library that is loaded before others. It does not see
# io_uring, nor programs that are linked statically.
SHIM = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <time.h>
static void delay(void) {{
  struct timespec left = {{0, {1000000000 // DISK_OPERATIONS_PER_S}}};
  const int before = errno;
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {{
  }}
  errno = before;
}}
static int always(int fd) {{ return 1; }}
static int direct(int fd) {{ return (fcntl(fd, F_GETFL) & O_DIRECT) != 0; }}
#define SLOW(type, name, when, parameters, ...) \\
  type name parameters {{ \\
    type (*next) parameters = (type(*) parameters)dlsym(RTLD_NEXT, #name); \\
    if (when(fd)) delay(); \\
    return next(__VA_ARGS__); \\
  }}
SLOW(int, fsync, always, (int fd), fd)
SLOW(int, fdatasync, always, (int fd), fd)
SLOW(ssize_t, pread, direct, (int fd, void* to, size_t n, off_t at), fd, to, n, at)
SLOW(ssize_t, pread64, direct, (int fd, void* to, size_t n, off_t at), fd, to, n, at)
SLOW(ssize_t, pwrite, direct, (int fd, const void* from, size_t n, off_t at), fd, from, n, at)
SLOW(ssize_t, pwrite64, direct, (int fd, const void* from, size_t n, off_t at), fd, from, n, at)
SLOW(ssize_t, preadv, direct, (int fd, const struct iovec* v, int n, off_t at), fd, v, n, at)
SLOW(ssize_t, preadv64, direct, (int fd, const struct iovec* v, int n, off_t at), fd, v, n, at)
SLOW(ssize_t, pwritev, direct, (int fd, const struct iovec* v, int n, off_t at), fd, v, n, at)
SLOW(ssize_t, pwritev64, direct, (int fd, const struct iovec* v, int n, off_t at), fd, v, n, at)
"""


class SlowDisk(Condition):
    name = "disk"

    def __init__(self, base, cgroups):
        super().__init__(base, cgroups)
        self.device = disk_of(base) if "disk" in cgroups.folders else None
        self.shim = None
        if self.device is None:
            self._build_shim()
            return
        self.how = (
            f"cgroup v{cgroups.versions['disk']} throttle of disk {self.device}: "
            f"{DISK_BYTES_PER_S >> 20} MiB and {DISK_OPERATIONS_PER_S} operations a second"
        )

    def _build_shim(self):
        self.shim = self.base / "slow_disk.so"
        compiler = shutil.which("cc")
        if compiler is None:
            raise CannotRun("mode: disk: expected root and a TMPDIR on a disk, or a C compiler")
        command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(self.shim)]
        built = subprocess.run(command, input=SHIM, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise CannotRun(f"mode: disk: {compiler}: {built.stderr.strip().splitlines()[0]}")
        self.how = (
            f"preloaded library: {1000 // DISK_OPERATIONS_PER_S} ms more for each fsync, fdatasync "
            "and direct read or write, but not by io_uring"
        )

    def prepare(self, group):
        if self.shim is None:
            group.limit_disk(self.device, (DISK_BYTES_PER_S, DISK_OPERATIONS_PER_S))

    def environment(self, environment):
        if self.shim is None:
            return environment
        # ASan otherwise refuses to start after another library.
        more = {
            "LD_PRELOAD": (str(self.shim), " "),
            "ASAN_OPTIONS": ("verify_asan_link_order=0", ":"),
        }
        return environment | {
            name: value + (between + environment[name] if environment.get(name) else "")
            for name, (value, between) in more.items()
        }

    def check(self):
        usual, slow = self._probe("usual", False), self._probe("slow", True)
        texts = [
            f"{what} {before:.1f} -> {after:.1f} ms"
            for what, before, after in zip(("write+fsync", "direct write"), usual, slow)
        ]
        measured = ", ".join(texts)
        if slow[0] < LEAST_SLOWDOWN * usual[0] and not slow[1] >= LEAST_SLOWDOWN * usual[1]:
            raise CannotRun(
                f"mode: disk: {self.how} does not slow it ({measured}; expected "
                f"{LEAST_SLOWDOWN} times)"
            )
        return measured

    def _probe(self, name, slowed):
        group = self.cgroups.group(name)
        if slowed:
            self.prepare(group)
        output = self.base / f"{name}.out"
        with output.open("w") as file:
            usual = dict(os.environ)
            environment = self.environment(usual) if slowed else usual
            command = [sys.executable, "-c", PROBE, str(self.base / f"{name}.probe")]
            run = Run(command, group, self.base / name, environment, self.base, file)
        run.wait(60)
        run.kill()
        words = output.read_text().split()
        if len(words) != 2:
            raise CannotRun(f"mode: disk: its probe printed {' '.join(words)!r}")
        return float(words[0]), float(words[1])


CONDITIONS = {c.name: c for c in (Busy, Fifth, Bursts, SlowDisk)}
