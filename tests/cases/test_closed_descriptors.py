"""Programs that are started with stdin, stdout or stderr closed: the next file that is opened gets
the number, and what is meant for stderr is written into it. And descriptors that are inherited by
mistake stay open as long as the program lives.

Sources: Mithril-mine/libmdbx #144; monero-project/monero #6147; rsyslog #1526.
"""

import os
import socket
import subprocess

import pytest
from programs import BIN, ask, wait_until


def descriptors(program):
    """The descriptors of a process."""
    folder = f"/proc/{program.process.pid}/fd"
    found = {}
    for number in os.listdir(folder):
        try:
            found[int(number)] = os.readlink(f"{folder}/{number}")
        except OSError:
            pass  # It has been closed meanwhile.
    return found


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2), (1, 2), (0,)])
def test_0_to_2_are_open_before_anything_else(programs, tmp_path, closed):
    # The ready line may have no reader: the admin port is known before.
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin = f"127.0.0.1:{free.getsockname()[1]}"
    words = " ".join(f"{n}>&-" if n else "0<&-" for n in closed)
    disk = ("--disk.path", tmp_path / "disk", "--disk.capacity", "64MiB", "--disk.min_free", "1MiB")
    node = programs.node(
        *disk,
        *("--admin.listen", admin, "--log.level", "debug"),
        prefix=("bash", "-c", f'exec "$@" {words}', "x"),
    )
    wait_until(lambda: ask(f"http://{admin}/readyz")[0] == 200, node.stderr())
    found = descriptors(node)
    for number in closed:
        assert found[number] == "/dev/null"
    assert node.stop() == 0
    for path in (tmp_path / "disk").rglob("*"):
        if path.is_file():
            text = path.read_bytes()
            assert b"Z info " not in text and b"ready grpc=" not in text, path


@pytest.mark.parametrize("name", ["cairn-cache", "cairn-router"])
def test_inherited_ones_are_closed(programs, tmp_path, name):
    settings = tmp_path / "settings"
    settings.write_text("log: {level: debug}\n")
    with open(tmp_path / "lock", "w") as lock, open(settings) as config:
        kept = (lock.fileno(), config.fileno())
        args = ("--config", f"/dev/fd/{config.fileno()}")
        if name == "cairn-cache":
            program = programs.node(*args, pass_fds=kept)
        else:
            program = programs.router("http://127.0.0.1:1", *args, model=None, pass_fds=kept)
    assert program.ready(), program.stderr()
    found = descriptors(program).values()
    assert str(tmp_path / "lock") not in found
    assert str(settings) in found  # A word of the command line names it.


def test_the_tool_keeps_what_it_was_given(programs, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text('{"timestamp": 1, "input_length": 1024, "hash_ids": [1, 2]}\n')
    done = subprocess.run(
        ["bash", "-c", f"{BIN}/cairn replay <(cat {trace}) --capacity-tokens 4096 --json"],
        check=False,
        env=programs.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
