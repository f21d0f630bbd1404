"""The units of deploy/systemd: systemd accepts them, they leave a program little, and the programs
take the settings next to them and work under the list of system calls that they name."""

import configparser
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest
import yaml

from conftest import ROOT
from container import OUT, TAG, Image, allowed_calls, built_line

sys.path.insert(0, str(ROOT / "benchmarks"))
# Needs the path above.
from rows.processes import Server  # noqa: E402

FOLDER = ROOT / "deploy/systemd"
ROLES = ("cache", "worker", "router")
UNITS = [f"cairn-{role}.service" for role in ROLES]
MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
# Of ten, as systemd-analyze counts them: a unit without any hardening has 9.6.
MOST_EXPOSURE = 2.0


class Repeated(dict):
    """What a section has: a key may come several times."""

    def __setitem__(self, key, value):
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def service(name):
    """{key: values} of the section Service of a unit."""
    parser = configparser.ConfigParser(
        dict_type=Repeated, strict=False, interpolation=None, delimiters=("=",)
    )
    parser.optionxform = str
    parser.read(FOLDER / name)
    return {key: value.split("\n") for key, value in parser["Service"].items()}


def analyze(*words):
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root folder with the units, the system's own units, and programs that are none."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    made = tmp_path_factory.mktemp("root")
    shutil.copytree(
        "/usr/lib/systemd/system",
        made / "usr/lib/systemd/system",
        symlinks=True,
        ignore_dangling_symlinks=True,
    )
    units = made / "etc/systemd/system"
    units.mkdir(parents=True)
    programs = made / "usr/local/bin"
    programs.mkdir(parents=True)
    for role in ROLES:
        shutil.copy(FOLDER / f"cairn-{role}.service", units)
        (programs / f"cairn-{role}").write_text("#!/bin/sh\n")
        (programs / f"cairn-{role}").chmod(0o755)
    return made


def test_systemd_accepts_the_units(root):
    done = analyze("verify", f"--root={root}", "--man=no", *UNITS)
    about_ours = [line for line in done.stderr.splitlines() if "cairn-" in line]
    assert (done.returncode, about_ours) == (0, []), done.stderr


def test_systemd_would_say_what_is_wrong(root, tmp_path):
    """The check above sees a misspelt key."""
    broken = tmp_path / "root"
    shutil.copytree(root, broken, symlinks=True)
    unit = broken / "etc/systemd/system/cairn-cache.service"
    unit.write_text(unit.read_text().replace("MemoryMax=", "MemoryMaximum="))
    done = analyze("verify", f"--root={broken}", "--man=no", unit.name)
    assert "Unknown key 'MemoryMaximum' in section [Service]" in done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_leaves_its_program_little(root, name):
    done = analyze("security", "--offline=true", f"--root={root}", name)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found and float(found[1]) <= MOST_EXPOSURE, done.stdout


@pytest.mark.parametrize("role", ROLES)
def test_the_settings_next_to_the_units_are_valid(programs, role, tmp_path):
    """Within the unit's MemoryMax, which the program reads from its control group."""
    unit = service(f"cairn-{role}.service")
    (command,) = unit["ExecStart"]
    assert command == f"/usr/local/bin/cairn-{role} --config /etc/cairn/{role}.yaml"
    settings = yaml.safe_load((FOLDER / f"etc/{role}.yaml").read_text())
    if role == "cache":
        assert settings["disk"]["path"].startswith("/var/lib/cairn/"), unit["StateDirectory"]
        settings["disk"]["path"] = str(tmp_path / "disk")
    else:
        settings["model"] = str(MODEL)
    path = tmp_path / f"{role}.yaml"
    path.write_text(yaml.safe_dump(settings))
    limit = unit["MemoryMax"][0].replace("G", "GiB")
    done = subprocess.run(
        [programs / f"cairn-{role}", "--config", path, "--memory.limit", limit, "--check-config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def seconds(text):
    return sum(
        int(number) * {"s": 1, "min": 60, "m": 60}[unit]
        for number, unit in re.findall(r"(\d+)(s|min|m)", text)
    )


def test_a_unit_waits_for_the_drain_of_its_program(programs):
    """Calls that end twice wait for drain.timeout; others of drain.* come once."""
    for role, least in [("cache", 1 + 10 + 60 + 2 * 15), ("worker", 20 + 15), ("router", 20 + 15)]:
        assert seconds(service(f"cairn-{role}.service")["TimeoutStopSec"][0]) >= least


def test_only_programs_that_compile_patterns_may_write_code():
    """PCRE2 compiles the tokenizer's patterns to machine code: model/pre_tokenizer.cc."""
    has = {name: "MemoryDenyWriteExecute" in service(name) for name in UNITS}
    assert has == {
        "cairn-cache.service": True,
        "cairn-worker.service": False,
        "cairn-router.service": False,
    }
    assert "pcre2_jit_compile" in (ROOT / "model/pre_tokenizer.cc").read_text()


def listed_calls(name, known=None):
    """The system calls of a set of systemd, such as @system-service."""
    if known is None:
        known = {}
        for line in analyze("syscall-filter").stdout.splitlines():
            if line.startswith("@"):
                current = known.setdefault(line.strip(), [])
            elif line.startswith("    ") and not line.strip().startswith("#"):
                current.append(line.strip())
    calls = set()
    for entry in known[name]:
        calls |= listed_calls(entry, known) if entry.startswith("@") else {entry}
    return calls


def test_a_node_works_under_the_units_list_of_system_calls(programs, root, tmp_path):
    """In runc, since no systemd runs where tests do. Others fail with EPERM, as the unit says."""
    unit = service("cairn-cache.service")
    assert (unit["SystemCallFilter"], unit["SystemCallErrorNumber"]) == (
        ["@system-service"],
        ["EPERM"],
    )
    built_line(programs)
    image = Image(OUT / "oci", TAG, tmp_path)
    # runc itself ends with these, after the list is in force.
    calls = listed_calls("@system-service") | {"execve", "exit_group"}
    words, remove = image.command(
        ["cairn-cache", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"]
        + ["--host.capacity", "64MiB", "--disk.path", "/tmp/disk", "--disk.capacity", "16MiB"]
        + ["--disk.min_free", "1MiB"],
        seccomp=allowed_calls(calls),
    )
    try:
        with Server(words, tmp_path / "log", ready_seconds=120) as node:
            with urllib.request.urlopen(f"http://{node.admin}/readyz", timeout=60) as answer:
                assert answer.status == 200
            assert node.terminate() == 0
    finally:
        remove()
