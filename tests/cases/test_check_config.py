"""`--check-config` refuses what a start would refuse, and names the same setting: otherwise a wrong
file is found out when the old process has gone.

Sources: those of test_windows_files.py and test_small_control_group.py, where it was noticed.
"""

import pytest
from programs import MODEL

ENGINE = ("--workers", "http://127.0.0.1:1")
CASES = {
    "no such key file": ("cairn-router", *ENGINE, "--http.api_keys", "/none"),
    "no such key for engines": ("cairn-router", *ENGINE, "--engines.api_key_file", "/none"),
    "no such authorities": ("cairn-router", *ENGINE, "--engines.ca", "/none"),
    "no such model": ("cairn-router", "--workers", "127.0.0.1:1", "--model", "/none"),
    "half of a certificate": (
        *("cairn-router", "--workers", "127.0.0.1:1", "--model", MODEL),
        *("--workers_tls.cert", "/none"),
    ),
    "no such certificate": ("cairn-router", *ENGINE, "--tls.cert", "/none", "--tls.key", "/none"),
    "HTTP at a socket": ("cairn-router", *ENGINE, "--http.listen", "unix:/tmp/x"),
    "admin at a socket": ("cairn-router", *ENGINE, "--admin.listen", "unix:/tmp/x"),
    "one port twice": ("cairn-router", *ENGINE, "--http.listen", "127.0.0.1:7601"),
    "a worker twice": (
        "cairn-router",
        "--workers",
        "http://a:80,HTTP://A/".replace("HTTP", "http"),
    ),
    "worker: no such certificate": (
        *("cairn-worker", "--model", MODEL, "--tls.cert", "/none", "--tls.key", "/none"),
    ),
    "worker: admin at a socket": ("cairn-worker", "--model", MODEL, "--admin.listen", "unix:/x"),
    "worker: one port twice": ("cairn-worker", "--model", MODEL, "--listen", "127.0.0.1:7501"),
    "worker: no such salt": ("cairn-worker", "--model", MODEL, "--tenant_salt_file", "/none"),
    "node: one port twice": ("cairn-cache", "--listen", "0.0.0.0:7401"),
    "node: relative socket": ("cairn-cache", "--local.socket", "x.sock"),
    "node: long socket": ("cairn-cache", "--admin.socket", "/" + "x" * 99 + "/" + "x" * 20),
    "node: a file as folder": ("cairn-cache", "--disk.path", f"{MODEL}/x"),
    "node: a folder in /proc": ("cairn-cache", "--disk.path", "/proc/cairn"),
    "two documents": ("cairn-cache", "--config", "TWO"),
}


def said(program):
    return program.stderr().splitlines()[-1].split(":")


@pytest.mark.parametrize("name", CASES)
def test_the_check_says_what_a_start_says(programs, tmp_path, name):
    (tmp_path / "two").write_text("log: {level: info}\n---\nlog: {level: debug}\n")
    program, *words = (tmp_path / "two" if word == "TWO" else word for word in CASES[name])
    checked = programs.start(program, *words, "--check-config")
    assert checked.wait() in (1, 2), checked.out.read_text()
    started = programs.start(program, *words)
    assert started.wait() in (1, 2)
    # The program, and the setting that is wrong.
    assert said(started)[:2] == said(checked)[:2]
