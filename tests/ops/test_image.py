"""The image has a package for every library that the programs are linked with."""

import re
import shutil
import subprocess

import pytest

from conftest import ROOT


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def installed_by_the_image():
    """Packages that the Dockerfile's last stage names, and those that they depend on directly."""
    last_stage = (
        (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[-1]
    )
    named = (
        re.search(r"--no-install-recommends(.*?)&&", last_stage, flags=re.S)[1]
        .replace("\\", " ")
        .split()
    )
    depends = run("dpkg-query", "-W", "-f=${Depends}, ", *named)
    return set(named) | set(re.findall(r"(?:^|[,|] ?)([a-z0-9.+-]+)", depends))


@pytest.mark.parametrize("program", ["cairn", "cairn-cache", "cairn-worker", "cairn-router"])
def test_every_library_has_its_package(programs, program):
    if shutil.which("dpkg-query") is None:
        pytest.skip("this machine has no dpkg-query")
    if "12" not in re.findall(
        r'VERSION_ID="?(\d+)', open("/etc/os-release", encoding="utf-8").read()
    ):
        pytest.skip("the image is Debian 12, this machine is not")
    # Only what the program itself names: the rest comes with the packages of the libraries.
    libraries = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", str(programs / program)))
    assert libraries
    owners = {library: set() for library in libraries}
    for package, path in re.findall(
        r"^([a-z0-9.+-]+).*: (\S+)$",
        run("dpkg-query", "-S", *[f"*/{library}" for library in libraries]),
        flags=re.M,
    ):
        owners[path.rsplit("/", 1)[1]].add(package)
    packages = installed_by_the_image()
    missing = [
        f"{library} of {sorted(packs)}" for library, packs in owners.items() if not packs & packages
    ]
    assert not missing, "\n".join(missing)
