"""Lets SGLang's host pools and storage interface be imported without a GPU: its CUDA-only
dependencies become empty modules.

Nothing of SGLang itself is replaced.
"""

import contextlib
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


_finder = _Finder()
_absent = {}  # The stand-ins by name, while they are not to be seen.


@contextlib.contextmanager
def installed():
    """Stand-ins can be imported inside, and nobody finds them afterwards: vLLM takes some of these
    packages for real ones if it finds them."""
    # These two would take the stand-ins for real packages.
    import tvm_ffi  # noqa: F401
    from transformers import AutoProcessor  # noqa: F401

    sys.meta_path.append(_finder)  # At the end: a real package wins.
    sys.modules.update(_absent)
    try:
        yield
    finally:
        sys.meta_path.remove(_finder)
        _absent.update(
            {name: module for name, module in sys.modules.items() if type(module) is _Module}
        )
        for name in _absent:
            del sys.modules[name]
