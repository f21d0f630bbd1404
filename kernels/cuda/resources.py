#!/usr/bin/env python3
"""What nvcc said about each kernel: registers, stack and spills, as the table resources.txt.

    kernels/cuda/resources.py build/release > kernels/cuda/resources.txt

It reads the logs that compiling the target cairn_cuda_kernels leaves in the build folder.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ARCHITECTURE = "sm_90a"
COLUMNS = ("registers", "stack", "spill_stores", "spill_loads")


def used(log):
    """{kernel: {column: number}} from what `ptxas -v` says."""
    found = {}
    for block in log.split("Compiling entry function ")[1:]:
        name = re.match(rf"'(\w+)' for '{ARCHITECTURE}'", block)
        if not name:
            continue
        stack = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block
        )
        registers = re.search(r"Used (\d+) registers", block)
        numbers = map(int, (registers[1], *stack.groups()))
        found[name[1]] = dict(zip(COLUMNS, numbers, strict=True))
    return found


def logs(build):
    """What the compiler said; empty if it did not run."""
    paths = sorted((pathlib.Path(build) / "kernels/cuda").glob("*.fatbin.log"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def compiler():
    """The compiler and its version, and the architecture. None: there is no nvcc."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        return None
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return f"nvcc {re.search(r'V([0-9.]+)', said)[1]}, {ARCHITECTURE}"


def read(text):
    """(compiler, {kernel: {column: number}}) of a table."""
    lines = text.splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    of = next(line for line in lines if line.startswith("# compiler: "))
    return of.removeprefix("# compiler: "), {
        name: dict(zip(COLUMNS, map(int, numbers), strict=True)) for name, *numbers in rows
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    kernels = used(logs(sys.argv[1]))
    if not kernels:
        sys.exit(f"resources.py: no logs of {ARCHITECTURE} in {sys.argv[1]}/kernels/cuda")
    print("# Made by kernels/cuda/resources.py. Stack and spills in bytes.")
    print(f"# compiler: {compiler()}")
    print(f"# {'kernel':<30} {' '.join(f'{column:>12}' for column in COLUMNS)}")
    for name, numbers in sorted(kernels.items()):
        print(f"{name:<32} {' '.join(f'{numbers[column]:>12}' for column in COLUMNS)}")


if __name__ == "__main__":
    main()
