"""Containers whose user is in no passwd, with group 0 and without HOME.

Sources: phusion/passenger; docker-library/postgres #359; linagora/openrag.
"""

import os

import pytest


@pytest.mark.skipif(os.getuid() != 0, reason="it needs a user of its own, which only root can take")
def test_programs_need_no_name(programs, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o711)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1000650000, 0)
    gone = ("XDG_RUNTIME_DIR", "HOME", "USER", "LOGNAME")
    env = {k: v for k, v in programs.env.items() if k not in gone} | {"TMPDIR": str(home)}
    prefix = ("setpriv", "--reuid", "1000650000", "--regid", "0", "--clear-groups")
    more = {"env": env, "prefix": prefix, "cwd": "/"}
    disk = ("--disk.path", home / "d", "--disk.capacity", "64MiB", "--disk.min_free", "1MiB")
    node = programs.node(*disk, **more)
    ready = node.ready()
    assert ready, node.stderr()
    worker = programs.worker("--cache", ready["grpc"], **more)
    assert worker.ready(), worker.stderr()
    tool = programs.start("cairn", "stat", "--cache", ready["grpc"], **more)
    assert tool.wait() == 0, tool.stderr()
