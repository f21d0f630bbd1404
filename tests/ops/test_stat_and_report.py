"""What `cairn stat` and `cairn report` say to administrators and to others, with a real node."""

import json
import os
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/support"))
from programs import Programs  # noqa: E402  (needs the path)
from waiting import wait_until  # noqa: E402


@pytest.fixture
def started(tmp_path):
    programs = Programs(tmp_path)
    yield programs
    programs.stop()


def stranger(started):
    """The environment of a user who has another folder of sockets than the node's."""
    folder = started.folder / "stranger"
    folder.mkdir(mode=0o700, exist_ok=True)
    return {**started.env, "XDG_RUNTIME_DIR": str(folder)}


def test_the_nodes_own_user_sees_namespaces_and_the_audit_sees_him(started):
    node = started.node("--log.format", "json")
    address = node.ready()["grpc"]
    told = started.cairn("stat", "--cache", address, "--json")
    assert told.returncode == 0 and "left out" not in told.stderr
    assert json.loads(told.stdout)["namespaces"] == []
    wait_until(lambda: '"admin_call"' in node.stderr(), "a line of the audit")
    (line,) = [
        json.loads(text) for text in node.stderr().splitlines() if '"event":"admin_call"' in text
    ]
    assert line["method"] == "ListNamespaces"
    uid, pid = line["identity"].split(", ")
    assert uid == f"uid {os.getuid()}" and int(pid.removeprefix("pid ")) > 1


def test_others_are_told_what_they_do_not_see_and_the_node_is_not_asked(started):
    node = started.node()
    address = node.ready()["grpc"]
    for words in (["stat"], ["stat", "--json"]):
        told = started.cairn(*words, "--cache", address, env=stranger(started))
        assert told.returncode == 0
        (line,) = [text for text in told.stderr.splitlines() if "namespaces left out" in text]
        assert "admin.socket" in line
    answer = json.loads(told.stdout)
    assert answer["namespaces"] is None and answer["tenants"] is None
    assert "admin.socket" in answer["namespaces_left_out"]
    assert "admin_refused" not in node.stderr()


def report(started, *args, **more):
    told = started.cairn("report", "--out", "-", "--timeout", "5", *args, **more)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_a_report_asks_where_stat_does_or_says_why_not(started):
    address = started.node().ready()["grpc"]
    assert '"namespaces": []' in report(started, "--cache", address)
    other = report(started, "--cache", address, env=stranger(started))
    assert '"namespaces": null' in other and '"namespaces_left_out": "' in other


def test_a_dead_process_is_missing_in_all_its_parts(started):
    node = started.node()
    ready = node.ready()
    alive = report(started, "--admin", ready["admin"])
    assert f"admin port at {ready['admin']}: state: 1 lines" in alive
    assert "==== admin port at" in alive and "\n200 " in alive
    node.stop()
    dead = report(started, "--cache", ready["grpc"], "--admin", ready["admin"])
    for part in (
        f"node at {ready['grpc']}: stat",
        f"node at {ready['grpc']}: members",
        f"admin port at {ready['admin']}: state",
        f"admin port at {ready['admin']}: metrics",
    ):
        assert f"{part}: missing: " in dead


def test_a_file_that_cannot_be_made_is_an_error_before_anything_is_asked(started):
    there = started.folder / "there"
    there.write_text("mine", encoding="ascii")
    for path in (there, started.folder / "no/folder/report"):
        told = started.cairn("report", "--out", path, "--cache", "127.0.0.1:1")
        assert told.returncode != 0 and "--out" in told.stderr
        assert "machine" not in told.stderr, "it asked first"
    assert there.read_text(encoding="ascii") == "mine"
