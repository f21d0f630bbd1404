"""Llama in PyTorch with attention that a caller brings: what calibrations run. Weights come from a
GGUF file, in float32.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/compare/worker"))
# Needs the path above; for programs that import this module.
from torch_bench import Llama, full  # noqa: F401
