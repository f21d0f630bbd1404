"""A program that could not write its output has not done its work: `tool > file` on a full disk.

Sources: coreutils/coreutils #145; uutils/coreutils #7029; sharkdp/fd #737;
Backblaze/B2_Command_Line_Tool #1071.
"""

import subprocess

import pytest
from programs import BIN, MODEL, PATIENCE

COMMANDS = {
    "version": "cairn --version",
    "help": "cairn --help",
    "help of a command": "cairn stat --help",
    "completion": "cairn completion bash",
    "doctor": "cairn doctor --json",
    "size": f"cairn size {MODEL} --recipe raw --json",
    "replay": "cairn replay TRACE --capacity-tokens 4096 --json",
    "stat": "cairn stat --cache NODE",
    "stat --json": "cairn stat --cache NODE --json",
    "top": "cairn top --cache NODE --count 1 --json",
    "cluster members": "cairn cluster members --cache NODE --json",
    "settings": "cairn-cache --print-config",
    "table of settings": "cairn-router --print-config-docs",
    "check": f"cairn-worker --check-config --model {MODEL}",
    "version of a server": "cairn-worker --version",
    "health": "cairn-cache health --admin.listen ADMIN",
}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    from programs import Programs

    folder = tmp_path_factory.mktemp("node")
    programs = Programs(folder)
    (folder / "trace").write_text('{"timestamp": 1, "input_length": 1024, "hash_ids": [1, 2]}\n')
    ready = programs.node().ready()
    yield {"TRACE": str(folder / "trace"), "NODE": ready["grpc"], "ADMIN": ready["admin"]}
    programs.stop()


def run(programs, command, output):
    with open(output, "w") as out:
        return subprocess.run(
            command,
            check=False,
            cwd=programs.folder,
            env=programs.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_output_to_a_full_disk_is_a_failure(programs, words, name):
    command = [words.get(word, word) for word in COMMANDS[name].split()]
    command[0] = BIN / command[0]
    plain = run(programs, command, "/dev/null")
    if name != "doctor":  # Its exit code is about the machine.
        assert plain.returncode == 0, plain.stderr
    full = run(programs, command, "/dev/full")
    assert full.returncode == 1, (full.returncode, full.stderr)
    if plain.returncode == 0:
        assert "standard output" in full.stderr


@pytest.mark.parametrize("command", ["cairn --version", "cairn-cache --print-config"])
def test_output_to_nobody_is_a_failure(programs, command):
    done = subprocess.run(
        ["bash", "-c", f"exec {BIN}/{command} >&-"],
        check=False,
        env=programs.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert "standard output" in done.stderr


def test_what_was_started_is_named_when_the_answer_is_lost(programs, tmp_path):
    up = [BIN / "cairn", "up", "--nodes", "1", "--workers", "1", "--json"]
    up += ["--dir", tmp_path / "up", "--model", MODEL]
    done = run(programs, up, "/dev/full")
    try:
        assert done.returncode == 1, done.stderr
        assert f"cairn down --dir {tmp_path / 'up'}" in done.stderr
    finally:
        down = programs.cairn("down", "--dir", tmp_path / "up")
    assert down.returncode == 0, down.stderr
