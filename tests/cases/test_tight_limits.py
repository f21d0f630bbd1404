"""Limits of containers, schedulers and shells: few descriptors or threads, small files, no locked
memory, little address space. A program serves, or one line says which limit is in its way and its
exit code is 1. It never ends by a signal.

Sources: ShaneIsrael/fireshare #572; mattermost/mattermost #19123; containers/podman #17647;
moby/moby #20096, #45060.
"""

import os
import resource

import pytest
from programs import ask

FILES, ADDRESSES, THREADS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_AS,
    resource.RLIMIT_NPROC,
)
MIB = 1 << 20


def limited(what, value):
    return {"preexec_fn": lambda: resource.setrlimit(what, (value, value))}


def disk(folder):
    return ("--disk.path", folder / "d", "--disk.capacity", "256MiB", "--disk.min_free", "1MiB")


def serves_or_says(program, *words):
    ready = program.ready()
    if ready:
        assert ask(f"http://{ready['admin']}/livez")[0] == 200
        assert program.stop() == 0, program.stderr()
        return True
    assert program.wait() == 1, program.stderr()
    last = program.stderr().splitlines()[-1]
    assert any(word in last.lower() for word in words), program.stderr()
    return False


@pytest.mark.parametrize("most", [32, 64, 128])
def test_descriptors(programs, tmp_path, most):
    serves_or_says(programs.node(*disk(tmp_path), **limited(FILES, most)), "descriptors")


def test_files_that_may_not_grow(programs, tmp_path):
    """SIGXFSZ would end the process without a word."""
    node = programs.node(*disk(tmp_path), **limited(resource.RLIMIT_FSIZE, 4 * MIB))
    assert not serves_or_says(node, "file too large")
    assert "ulimit -f" in node.stderr()


def test_locked_memory(programs, tmp_path):
    assert serves_or_says(programs.node(*disk(tmp_path), **limited(resource.RLIMIT_MEMLOCK, 0)))


@pytest.mark.parametrize("most", [256 * MIB, 512 * MIB, 1024 * MIB])
def test_address_space(programs, most):
    limit = limited(ADDRESSES, most)
    serves_or_says(programs.node(**limit), "memory", "address")
    serves_or_says(programs.worker(**limit), "memory", "address")
    serves_or_says(programs.router("http://127.0.0.1:1", model=None, **limit), "memory", "address")


@pytest.fixture
def lonely(programs):
    """Threads count for each user: one that has no other processes."""
    if os.getuid() != 0:
        pytest.skip("it needs a user of its own, which only root can take")
    for folder in (programs.folder, *programs.folder.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o711)
    uid = str(50000 + os.getpid() % 10000)
    env = {k: v for k, v in programs.env.items() if k != "XDG_RUNTIME_DIR"}
    prefix = ("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups")
    return {"prefix": prefix, "env": env, "cwd": "/"}


@pytest.mark.parametrize("most", [3, 8, 16, 40])
def test_threads(programs, lonely, most):
    more = {**lonely, **limited(THREADS, most)}
    for program in (
        programs.node(**more),
        programs.worker(**more),
        programs.router("http://127.0.0.1:1", model=None, **more),
    ):
        if not serves_or_says(program, "threads"):
            assert f"ulimit -u: {most}" in program.stderr()


@pytest.mark.parametrize("name", ["node", "worker", "router"])
def test_a_start_asks_for_the_threads_that_it_has_when_it_is_ready(programs, lonely, name):
    """Else a library could get none in the middle of the start, and not all of them say so."""

    def start(**more):
        if name == "router":
            return programs.router("http://127.0.0.1:1", model=None, **lonely, **more)
        return getattr(programs, name)(**lonely, **more)

    free = start()
    assert free.ready(), free.stderr()
    most = len(os.listdir(f"/proc/{free.process.pid}/task"))
    assert free.stop() == 0
    few = start(**limited(THREADS, most - 1))
    assert few.wait() == 1
    assert few.stderr().startswith(f"cairn-{'cache' if name == 'node' else name}: threads: got ")
