#!/usr/bin/env python3
"""The lines of nvcc about each kernel: registers, stack and spills, as the table resources.txt. And
the warps that a multiprocessor has registers for.

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
FOLDER = pathlib.Path(__file__).resolve().parent


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
    """The output of the compiler; empty if it did not run."""
    paths = sorted((pathlib.Path(build) / "kernels/cuda").glob("*.fatbin.log"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def threads():
    """{kernel: threads of a block}, as the sources bound them."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.cuh")))
    bounds = re.findall(
        r"CAIRN_KERNEL void __launch_bounds__\((\d+)[^)]*\)[\s\\]+(cairn_\w+?)(?:##\w+)?\(", text
    )
    return {name: int(number) for number, name in bounds}


def warps(registers, block):
    """Most warps of a multiprocessor of compute capability 9.0 by the registers of a thread and the
    threads of a block. Shared memory may allow fewer."""
    # Each of four parts has 16,384 registers and 16 warps; a warp gets them by 256.
    of_warp = -(-registers * 32 // 256) * 256
    of_block = -(-block // 32)
    blocks = min(32, 4 * min(16, 16384 // of_warp) // of_block)
    return blocks * of_block


def threads_of(kernel, bounds):
    """If a macro makes a kernel for each head size, the source has its name without the size."""
    return bounds.get(kernel) or bounds[re.sub(r"\d+$", "", kernel)]


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
        name: dict(zip((*COLUMNS, "warps"), map(int, numbers), strict=True))
        for name, *numbers in rows
    }


def with_warps(kernels):
    """The same with a column more."""
    bounds = threads()
    return {
        name: {**numbers, "warps": warps(numbers["registers"], threads_of(name, bounds))}
        for name, numbers in kernels.items()
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    kernels = with_warps(used(logs(sys.argv[1])))
    if not kernels:
        sys.exit(f"resources.py: no logs of {ARCHITECTURE} in {sys.argv[1]}/kernels/cuda")
    print("# Made by kernels/cuda/resources.py. Stack and spills in bytes; warps: the most that a")
    print("# multiprocessor has registers for, where shared memory does not allow fewer.")
    print(f"# compiler: {compiler()}")
    print(f"# {'kernel':<30} {' '.join(f'{c:>12}' for c in (*COLUMNS, 'warps'))}")
    for name, numbers in sorted(kernels.items()):
        print(f"{name:<32} {' '.join(f'{numbers[c]:>12}' for c in (*COLUMNS, 'warps'))}")


if __name__ == "__main__":
    main()
