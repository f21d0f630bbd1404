"""The result of `cmake --install` is enough: a project outside of the tree builds against it and
talks to the installed node.

CAIRN_BUILD names the build directory (default build/release). It must be built.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
EXAMPLES = ROOT / "examples/cpp"
PROGRAMS = ["cairn", "cairn-cache", "cairn-router", "cairn-worker"]


def run(*command, **options):
    """Runs a command to its good end and returns its output."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def consumer(prefix, tmp_path_factory):
    """The folder with the consumer's programs."""
    source = tmp_path_factory.mktemp("consumer")
    shutil.copy(ROOT / "tests/package/consumer/CMakeLists.txt", source)
    shutil.copy(EXAMPLES / "get_and_push.cc", source / "app.cc")
    shutil.copy(EXAMPLES / "without_a_node.cc", source / "app_test.cc")
    build = source / "build"
    run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build


@pytest.fixture
def node(prefix):
    """The address of an installed node."""
    command = ["--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [prefix / "bin/cairn-cache", *command, "--host.capacity", "64MiB"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("ready "):
                yield re.search(r"grpc=(\S+)", line)[1]
                break
        else:
            pytest.fail("the node ended before it was ready")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("program", PROGRAMS)
def test_installed_programs_run(prefix, program):
    assert run(prefix / "bin" / program, "--version").strip()


def test_nothing_else_is_installed(prefix):
    installed = {p.relative_to(prefix).as_posix() for p in prefix.rglob("*") if p.is_file()}
    libraries = re.compile(r"lib(/[\w-]+)?/(libcairn_\w+\.a|cmake/Cairn/Cairn\w+(-\w+)?\.cmake)")
    headers = re.compile(r"include/cairn/(client|common)/[\w/]+\.h")
    programs = {f"bin/{program}" for program in PROGRAMS}
    assert programs <= installed
    installed.discard("bin/libcairn_cuda.so")  # Where nvcc is installed.
    others = [
        name
        for name in installed - programs
        if not libraries.fullmatch(name) and not headers.fullmatch(name)
    ]
    assert not others


def test_installed_files_name_no_folder_of_the_build(prefix):
    """An installation can be moved, and a package of it be built elsewhere."""
    for path in prefix.rglob("*.cmake"):
        assert str(ROOT) not in path.read_text(encoding="utf-8"), path.name


def test_a_consumer_gets_and_pushes(consumer, node):
    assert "the cache had 0 of 3 blocks" in run(consumer / "app", node)
    assert "the cache had 3 of 3 blocks" in run(consumer / "app", node)


def test_a_consumer_tests_without_a_node(consumer):
    assert "the node is back: 1 blocks" in run(consumer / "app_test")


def test_another_minor_version_is_refused(prefix, tmp_path):
    """Before version 1.0 a minor version may change the interface."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(old LANGUAGES CXX)\n"
        "find_package(Cairn 0.0 CONFIG)\n"
        "if(Cairn_FOUND)\n"
        "  message(FATAL_ERROR found)\n"
        "endif()\n",
        encoding="utf-8",
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
