"""Lets SGLang's host pools and storage interface be imported without a GPU: its CUDA-only
dependencies become empty modules.

Nothing of SGLang itself is replaced.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from unittest import mock

ABSENT = {
    "torchvision",
    "sgl_kernel",
    "flashinfer",
    "deep_gemm",
    "deep_ep",
    "flash_mla",
    "flash_attn",
    "decord",
    "torchcodec",
    "torchaudio",
    "torch_memory_saver",
    "cuda",
    "cutlass",
    "tilelang",
    "quack",
    "modelscope",
    "timm",
    "av",
    "datasets",
    "humming",
    "kernels",
    "nvshmem",
}


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.split(".")[0] in ABSENT
            else None
        )

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def install():
    # These two would take the stand-ins for real packages.
    import tvm_ffi  # noqa: F401
    from transformers import AutoProcessor  # noqa: F401

    sys.meta_path.append(_Finder())  # At the end: a real package wins.
