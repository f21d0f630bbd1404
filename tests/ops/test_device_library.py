"""CUDA is seen in one library alone: it exports one function, and no program needs a symbol of CUDA
to start."""

import re
import subprocess

import pytest

CUDA = re.compile(r"\b(cu[A-Z]\w+|cuda[A-Z]\w+|__cuda\w+)\b")
LIBRARY = "libcairn_cuda.so"


def symbols(path, kind):
    """Names of the dynamic symbols that a file defines or wants."""
    out = subprocess.run(
        ["nm", "-D", f"--{kind}-only", str(path)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in out.stdout.splitlines() if line.strip()}


def needed(path):
    """Names of the libraries that the linker loads with a file."""
    out = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", out.stdout)


@pytest.mark.parametrize("program", ["cairn", "cairn-cache", "cairn-worker", "cairn-router"])
def test_no_program_needs_cuda(programs, program):
    path = programs / program
    assert not [name for name in symbols(path, "undefined") if CUDA.search(name)]
    assert not [name for name in needed(path) if "cuda" in name]


def test_the_library_exports_one_function_and_needs_no_driver(programs):
    path = programs / LIBRARY
    if not path.exists():
        pytest.skip("nvcc did not compile the kernels: no library either")
    assert symbols(path, "defined") == {"cairn_device_driver"}
    assert not [name for name in symbols(path, "undefined") if CUDA.search(name)]
    assert not [name for name in needed(path) if "cuda" in name]


def test_a_symbol_of_cuda_would_be_seen():
    assert CUDA.search("cuMemCreate") and CUDA.search("cudaMalloc")
    assert CUDA.search("__cudaRegisterFatBinary")
    assert not CUDA.search("_ZN5cairn6device6Driver4LoadERKNSt")
