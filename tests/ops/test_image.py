"""The image has a package for every library that the programs are linked with."""

import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

PROGRAMS = ["cairn", "cairn-cache", "cairn-worker", "cairn-router", "libcairn_cuda.so"]
DEBIAN = platform.freedesktop_os_release().get("VERSION_ID")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_hadolint_finds_nothing():
    """What it may find is named in the Dockerfile, with the reason."""
    program = pathlib.Path(sys.prefix) / "bin/hadolint"
    words = [program, "--no-color", ROOT / "deploy/docker/Dockerfile"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def stages():
    """{name: lines} of the Dockerfile's stages; the one without a name is "", and built last."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    return {
        (re.match(r"\S+ AS (\S+)", stage) or ["", ""])[1]: stage
        for stage in text.split("\nFROM ")[1:]
    }


def libraries_of(program):
    """Only what the program itself names: the rest comes with the packages of the libraries."""
    return re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", str(program)))


@pytest.fixture(scope="module")
def owners(programs):
    """{library: packages of Debian that have it}; one question, which reads what all packages
    have."""
    named = {lib for p in PROGRAMS if (programs / p).exists() for lib in libraries_of(programs / p)}
    found = {library: set() for library in named}
    answer = run("dpkg-query", "-S", *[f"*/{library}" for library in sorted(named)])
    for package, path in re.findall(r"^([a-z0-9.+-]+).*: (\S+)$", answer, flags=re.M):
        found[path.rsplit("/", 1)[1]].add(package)
    return found


def installed_by_the_image():
    """Packages that the image's stage names, and those that they depend on directly."""
    named = (
        re.search(r"--no-install-recommends(.*?)&&", stages()["plain"], flags=re.S)[1]
        .replace("\\", " ")
        .split()
    )
    depends = run("dpkg-query", "-W", "-f=${Depends}, ", *named)
    return set(named) | set(re.findall(r"(?:^|[,|] ?)([a-z0-9.+-]+)", depends))


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg-query on this machine")
@pytest.mark.skipif(DEBIAN != "12", reason="the image is Debian 12, this machine is not")
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_library_has_its_package(programs, owners, program):
    if program.endswith(".so") and not (programs / program).exists():
        pytest.skip("nvcc did not compile the kernels: no library either")
    libraries = libraries_of(programs / program)
    assert libraries
    packages = installed_by_the_image()
    missing = [
        f"{library} of {sorted(owners[library])}"
        for library in libraries
        if not owners[library] & packages
    ]
    assert not missing, "\n".join(missing)


def test_the_image_has_the_library_for_gpus_next_to_the_programs():
    """Programs look there first; a base without nvcc builds the target all the same."""
    plain = stages()["plain"]
    assert "cairn_device_libraries" in stages()["build"]
    assert "cp -r build/image/bin /opt/cairn/bin" in stages()["build"]
    assert "COPY --from=programs /opt/cairn/bin/ /usr/local/bin/" in plain
    assert re.search(r"NVIDIA_DRIVER_CAPABILITIES=(\S+)", plain)[1] == "compute,utility"


def test_the_variant_has_nccl_where_the_linker_looks_and_nobody_gets_it_by_default():
    variant, default = stages()["with-nccl"], stages()[""]
    assert "COPY --from=build /opt/nccl/libnccl.so.2 /usr/local/lib/" in variant
    # Whoever runs it is no more than in the plain image.
    assert re.findall(r"^USER (.*)$", variant, flags=re.M) == ["0:0", "10001:10001"]
    assert "RUN ldconfig" in variant
    assert default.strip() == "plain"


def test_a_base_is_named_by_whoever_builds_and_by_digest():
    """A tag in the file would be another base tomorrow."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    given = dict(re.findall(r"^ARG (\w+)(?:=(.*))?$", text.split("\nFROM ")[0], flags=re.M))
    assert given == {"BASE": "", "RUNTIME": "", "PROGRAMS": "build", "CLIENT": "scratch"}
    bases = re.findall(r"^FROM (\S+)", text, flags=re.M)
    assert set(bases) == {"${BASE}", "${RUNTIME}", "${PROGRAMS}", "${CLIENT}", "plain"}
    command = text[: text.index("\nARG BASE")]
    assert command.count("@sha256:DIGEST") == 3


def test_an_image_says_what_it_is_built_from():
    """The context has no .git, so that the build could not ask."""
    assert ".git" in (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert "-DCAIRN_REVISION=${REVISION}" in stages()["build"]
    assert 'org.opencontainers.image.revision="${REVISION}"' in stages()["plain"]
    text = (ROOT / "common/CMakeLists.txt").read_text(encoding="utf-8")
    assert text.index("if(NOT CAIRN_REVISION)") < text.index("git rev-parse")


def test_releases_are_compiled_for_all_architectures():
    """Those of A100, H100 and B200, and code that drivers of later GPUs compile."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    given = re.search(r'ARG CUDA_ARCHITECTURES="(.*)"', text)[1].split(";")
    assert given == ["80", "90a", "100", "ptx"]


@pytest.mark.parametrize(
    "program, library",
    [
        ("cairn-cache", "cublas"),
        ("cairn-worker", "cublas"),
        ("cairn-worker", "nccl"),
        ("libcairn_cuda.so", "cublas"),
        ("libcairn_cuda.so", "nccl"),
    ],
)
def test_nothing_loads_a_library_that_the_image_lacks(programs, program, library):
    """As soon as a program loads one of these at run time, its image needs it. Nodes load NCCL,
    which the variant has."""
    path = programs / program
    if program.endswith(".so") and not path.exists():
        pytest.skip("nvcc did not compile the kernels: no library either")
    assert f"lib{library}".encode() not in path.read_bytes()
