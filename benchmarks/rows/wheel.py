"""How long the installed wheel takes to be imported, with the libraries that it carries."""

import pathlib
import subprocess

from . import row

NAMES = ["import_cairn"]
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "build/venv/bin/python"
MILLISECONDS = 150
PROGRAM = """
import time
began = time.perf_counter()
import cairn
print((time.perf_counter() - began) * 1000)
"""


def _import():
    done = subprocess.run([PYTHON, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return float(done.stdout)


def missing():
    installed = (
        PYTHON.exists()
        and not subprocess.run(
            [PYTHON, "-c", "import cairn"], capture_output=True, check=False
        ).returncode
    )
    return "" if installed else "the wheel is not installed in build/venv: make wheel"


def run(_build, _model, repeat, _work):
    samples = [_import() for _ in range(repeat)]
    return [
        row(
            "import_cairn",
            samples,
            "ms",
            f"budget {MILLISECONDS} ms",
            MILLISECONDS / max(samples),
            1.0,
            None,
        )
    ]
