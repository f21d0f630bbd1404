"""A second node that is started by mistake with the same sockets is refused, and the first one
stays reachable.

Source: redis/redis #15537.
"""

import json
import signal

import pytest


def settings(folder):
    return (
        *("--listen_unix", f"unix:{folder}/data.sock"),
        *("--local.socket", folder / "local.sock", "--admin.socket", folder / "admin.sock"),
        *("--events.zmq", f"ipc://{folder}/events.sock"),
        *("--events.zmq_replay", f"ipc://{folder}/replay.sock"),
    )


def works(programs, folder, node_id=None):
    """The node's id, which answers at both sockets."""
    ids = set()
    for name in ("data", "admin"):
        told = programs.cairn("stat", "--cache", f"unix:{folder}/{name}.sock", "--json")
        assert told.returncode == 0, told.stderr
        ids.add(json.loads(told.stdout)["node_id"])
    assert len(ids) == 1
    names = sorted(path.name for path in folder.glob("*.sock"))
    assert names == [f"{name}.sock" for name in ("admin", "data", "events", "local", "replay")]
    return ids.pop()


def test_all_sockets_stay_the_first_nodes(programs, tmp_path):
    first = programs.node(*settings(tmp_path))
    ready = first.ready()
    assert ready, first.stderr()
    node_id = works(programs, tmp_path)
    same_ports = ("--listen", ready["grpc"], "--admin.listen", ready["admin"])
    for more in ((), same_ports):
        second = programs.node(*settings(tmp_path), *more)
        assert second.wait() == 1
        assert works(programs, tmp_path) == node_id
    # Each socket alone.
    for own in ("data", "local", "admin", "events", "replay"):
        folder = tmp_path / f"only-{own}"
        folder.mkdir()
        words = [str(word) for word in settings(folder)]
        words = [w.replace(f"{folder}/{own}.sock", f"{tmp_path}/{own}.sock") for w in words]
        second = programs.node(*words)
        assert second.wait() == 1
        assert "another process listens" in second.stderr()
        assert works(programs, tmp_path) == node_id


@pytest.mark.parametrize("program", ["node", "worker", "router"])
def test_a_data_port_that_is_a_socket(programs, tmp_path, program):
    address = f"unix:{tmp_path}/only.sock"

    def start():
        if program == "router":
            return programs.router("http://127.0.0.1:1", "--listen", address, model=None)
        return getattr(programs, program)("--listen", address)

    first = start()
    assert first.ready(), first.stderr()
    second = start()
    assert second.wait() == 1
    assert f"listen: another process listens at '{tmp_path}/only.sock'" in second.stderr()
    assert (tmp_path / "only.sock").exists()
    assert first.process.poll() is None


def test_sockets_of_a_node_that_was_killed(programs, tmp_path):
    first = programs.node(*settings(tmp_path))
    assert first.ready(), first.stderr()
    first.stop(signal.SIGKILL)
    again = programs.node(*settings(tmp_path))
    assert again.ready(), again.stderr()
    works(programs, tmp_path)
    # A file that is no socket is not ours to remove.
    (tmp_path / "file.sock").write_text("text")
    other = programs.node("--listen_unix", f"unix:{tmp_path}/file.sock")
    assert other.wait() == 1
    assert (tmp_path / "file.sock").read_text() == "text"
