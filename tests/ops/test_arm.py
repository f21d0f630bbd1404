"""Kernels for aarch64: they compile, and what cannot be built is refused in one line. `make
check-arm` runs their suites in qemu-user."""

import os
import shutil
import subprocess

import pytest

from conftest import ROOT

COMPILER = "aarch64-linux-gnu-g++-12"
# Those with code of their own for it. `make check-arm` compiles all kernels.
SOURCES = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "kernels").rglob("*.cc")
    if path.name == "neon.cc" or "__aarch64__" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_source_compiles_for_aarch64(source):
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no compiler for aarch64: {COMPILER}")
    done = subprocess.run(
        [COMPILER, "-std=c++20", "-fsyntax-only", "-fsigned-char", "-Wall", "-Wextra", "-Werror"]
        + [
            "-Wno-psabi",
            "-Wno-unused-function",
            f"-I{ROOT}",
            f"-I{ROOT / 'kernels/include'}",
            source,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_type_that_gcc_has_for_one_processor_stands_in_one_header():
    """`make check-arm` once failed because tests named _Float16."""
    folders = ("benchmarks", "clients", "common", "kernels", "model", "protocol", "services")
    found = [
        str(path.relative_to(ROOT))
        for folder in (*folders, "tests", "tools")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".h", ".cc") and "_Float16" in path.read_text(encoding="utf-8")
    ]
    assert found == ["tests/support/half.h"]


def test_the_processors_are_x86_64_and_aarch64(tmp_path):
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja"]
        + ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "got riscv64, expected x86_64 or aarch64" in said, done.stderr


def test_without_compiler_or_libraries_the_preset_says_how_to_get_them(tmp_path):
    (tmp_path / "cmake").mkdir()
    shutil.copy(ROOT / "cmake/Aarch64.cmake", tmp_path / "cmake")
    done = subprocess.run(
        ["cmake", "-P", tmp_path / "cmake/Aarch64.cmake"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "is missing: `make check-arm` gets both" in " ".join(done.stderr.split())
