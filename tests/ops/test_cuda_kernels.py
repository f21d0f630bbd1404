"""The kernels for GPUs as nvcc compiles them: registers, stack and spills are those of a table in
the repository, and the machine code has what it should and nothing that it should not."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import ROOT

FOLDER = ROOT / "kernels" / "cuda"
BUILD = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release"))
DIMS = (64, 128, 256, 512)


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


resources = script(FOLDER / "resources.py")


def table():
    return resources.read((FOLDER / "resources.txt").read_text(encoding="utf-8"))


def kernels_in_sources():
    """Names of all kernels."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.cuh")))
    names = set(re.findall(r"CAIRN_KERNEL void __launch_bounds__\([\d, ]+\)\s+(cairn_\w+)\(", text))
    turbo = {f"cairn_turbo_{way}_{dim}" for way in ("encode", "decode") for dim in DIMS}
    return names | turbo


def compiled():
    log = resources.logs(BUILD)
    if not log:
        pytest.skip("nvcc did not compile the kernels")
    return log


def test_what_ptxas_says_is_read():
    said = """ptxas info    : Compiling entry function 'cairn_a' for 'sm_90a'
ptxas info    : Function properties for cairn_a
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Compiling entry function 'cairn_b' for 'sm_80'
"""
    numbers = {"registers": 40, "stack": 16, "spill_stores": 8, "spill_loads": 4}
    assert resources.used(said) == {"cairn_a": numbers}


def test_the_table_names_every_kernel():
    assert set(table()[1]) == kernels_in_sources()


@pytest.mark.parametrize(
    "registers, block, expected",
    [
        (32, 256, 64),  # Every warp that there is.
        (56, 128, 36),
        (64, 256, 32),
        (216, 128, 8),
        (168, 384, 12),
    ],
)
def test_warps_are_those_that_have_registers(registers, block, expected):
    """The first four as the toolkit's cuda_occupancy.h gives them."""
    assert resources.warps(registers, block) == expected


def test_the_warps_of_the_table_are_those_of_its_registers_and_the_sources():
    rows = table()[1]
    assert rows == resources.with_warps(rows)


def test_no_kernel_in_the_table_spills_or_has_a_stack():
    wrong = {
        name: numbers
        for name, numbers in table()[1].items()
        if numbers["stack"] or numbers["spill_stores"] or numbers["spill_loads"]
    }
    assert not wrong, wrong


def test_registers_stack_and_spills_are_those_of_the_table():
    now = resources.with_warps(resources.used(compiled()))
    if not now:
        pytest.skip("nvcc did not compile the kernels for sm_90a")
    compiler, rows = table()
    if compiler != resources.compiler():
        pytest.skip(f"another nvcc: the table is of {compiler}")
    changed = {
        name: f"{rows.get(name)}, now {now.get(name)}"
        for name in sorted(set(now) | set(rows))
        if now.get(name) != rows.get(name)
    }
    assert not changed, f"run kernels/cuda/resources.py if this is meant: {changed}"


@pytest.fixture(scope="module")
def machine_code():
    """{kernel: its instructions}."""
    program = os.environ.get("CAIRN_CUOBJDUMP") or shutil.which("cuobjdump")
    if program is None:
        pytest.skip("cuobjdump is not installed")
    compiled()
    code = {}
    for path in sorted((BUILD / "kernels/cuda").glob("*.fatbin")):
        said = subprocess.run(
            [program, "-sass", str(path)], capture_output=True, text=True, check=True
        ).stdout
        for block in re.split(r"\s+Function : ", said)[1:]:
            code[block.split()[0]] = block
    return code


def count(pattern, text):
    return len(re.findall(pattern, text))


def test_machine_code_is_that_of_all_kernels(machine_code):
    assert set(machine_code) == kernels_in_sources()


def test_decoders_fuse_nothing(machine_code):
    """A product that is rounded together with a sum gives other bits than a CPU's."""
    decoders = [name for name in machine_code if "decode" in name]
    assert len(decoders) == 14
    assert not [name for name in decoders if count(r"\bH?FFMA", machine_code[name])]


def test_rows_turn_and_scores_combine_without_fused_products(machine_code):
    """The selection kernels fuse where the CPUs do, which is not here."""
    plain = ("turn_rows", "combine_scores", "gather_rows", "rank_scores")
    assert not [name for name in plain if count(r"\bFFMA", machine_code[f"cairn_{name}"])]


def test_products_read_shared_memory_by_16_bytes(machine_code):
    products = ("window_logits", "summed_logits", "expected_logits", "projected_norms")
    for name in products:
        assert count(r"\bLDS\.128", machine_code[f"cairn_{name}"]) >= 8, name


def test_no_kernel_uses_local_memory(machine_code):
    assert not [name for name, code in machine_code.items() if count(r"\b(LDL|STL)\b", code)]


def test_kernels_know_that_their_memory_is_global(machine_code):
    """Accesses of generic addresses find out at run time which memory it is."""
    assert not [name for name, code in machine_code.items() if count(r"\s(LD|ST|ATOM)\.E\b", code)]


def test_kernels_that_move_numbers_do_so_by_16_bytes(machine_code):
    pattern = r"raw|pages|int8|fp8|hash|turbo|mixed|cachegen_(decode|encode_sl)|gather_rows|_logits"
    moves = [name for name in machine_code if re.search(pattern, name)]
    assert len(moves) >= 26
    assert not [name for name in moves if not count(r"(LDG|STG)\.E[.\w]*\.128", machine_code[name])]


def test_products_and_attention_use_tensor_cores(machine_code):
    small = [n for n in machine_code if re.search(r"gemm|attend_(split|prompt)", n)]
    assert len(small) == 9
    assert not [name for name in small if not count(r"\bHMMA", machine_code[name])]
    groups = [name for name in machine_code if "attend_pooled" in name]
    assert len(groups) == 2
    for name in groups:
        for instruction in ("HGMMA", "UTMALDG", "USETMAXREG"):
            assert count(instruction, machine_code[name]), f"{name}: no {instruction}"


def test_tiles_are_copied_by_16_bytes(machine_code):
    tiles = [n for n in machine_code if re.search(r"gemm$|attend_(split|prompt)", n)]
    assert len(tiles) == 5
    assert not [name for name in tiles if not count(r"LDGSTS[.\w]*\.128", machine_code[name])]
