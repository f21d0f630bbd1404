"""A container with less memory than the machine: all programs see their group's limit, and refuse
at the start what could not fit.

Sources: rethinkdb/rethinkdb #5498; risingwavelabs/risingwave #6536; Comfy-Org/ComfyUI #14938.
"""

import os
import pathlib

import pytest
from programs import wait_until

GROUPS = pathlib.Path("/sys/fs/cgroup")


@pytest.fixture
def group():
    """The beginning of a command line that runs in a group of 700 MiB."""
    second = (GROUPS / "cgroup.subtree_control").exists()
    folder = (GROUPS if second else GROUPS / "memory") / f"cairn_cases_{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.max" if second else "memory.limit_in_bytes"
        (folder / limit).write_text(str(700 << 20))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no cgroup for memory can be written: {error}")
    yield ("bash", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "x")
    wait_until(lambda: not (folder / "cgroup.procs").read_text().split(), "the group is empty")
    folder.rmdir()


def test_programs_know_the_group(programs, group, tmp_path):
    try:
        node = programs.start("cairn-cache", prefix=group)  # Its defaults are 2 GiB.
        assert node.wait() in (1, 2)
        assert "the control group has left; lower host.capacity" in node.stderr()

        worker = programs.worker("--kv_pool", "4GiB", prefix=group)
        assert worker.wait() in (1, 2)
        assert "kv_pool: got 4GiB" in worker.stderr()
        assert "the control group has left" in worker.stderr()

        router = programs.router("http://127.0.0.1:1", "--index", "4GiB", model=None, prefix=group)
        assert router.wait() in (1, 2)
        assert "the control group has left" in router.stderr()

        doctor = programs.start("cairn", "doctor", prefix=group)
        doctor.wait()
        (line,) = [x for x in doctor.out.read_text().splitlines() if x.split()[1:2] == ["memory"]]
        assert "of 700 MiB, the limit of the control group" in line

        worker = programs.worker(prefix=group)
        assert worker.ready(), worker.stderr()
    finally:
        programs.stop()


@pytest.mark.parametrize("size", ["8TiB", "16TiB"])
def test_more_than_any_machine_has(programs, size):
    for program in (
        programs.node("--host.capacity", size, "--check-config"),
        programs.worker("--kv_pool", size, "--check-config"),
        programs.router("http://127.0.0.1:1", "--index", size, "--check-config", model=None),
    ):
        assert program.wait() in (1, 2)
        assert "expected at most the" in program.stderr()
