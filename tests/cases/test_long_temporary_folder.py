"""TMPDIR or XDG_RUNTIME_DIR longer than a Unix socket's path may be (107 bytes): continuous
integration, Nix, Bazel. Sockets that nobody asked for are a convenience: the node serves without
them.

Sources: mozilla/sccache #1309; python/cpython #93852; meteor/meteor #3591;
broadinstitute/cromwell #3647.
"""

import pytest
from programs import wait_until


@pytest.mark.parametrize("name", ["TMPDIR", "XDG_RUNTIME_DIR"])
def test_the_node_serves_without_its_own_sockets(programs, tmp_path, name):
    deep = tmp_path / ("long-folder-name-of-a-job-" + "x" * 90)
    deep.mkdir(mode=0o700)
    env = {k: v for k, v in programs.env.items() if k != "XDG_RUNTIME_DIR"}
    node = programs.node(env={**env, name: str(deep)})
    ready = node.ready()
    assert ready, node.stderr()
    wait_until(lambda: "no_local_socket" in node.stderr(), "a line in the log")
    told = programs.cairn("stat", "--cache", ready["grpc"], env={**env, name: str(deep)})
    assert told.returncode == 0, told.stderr
    assert node.stop() == 0
