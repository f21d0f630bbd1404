"""The connector over the pages of vLLM's CPU engine as if they lay on a GPU: the fake device copies
them, at once, because the engine computes without its streams."""

import pathlib
import sys
import types

import torch

from cairn.vllm import CairnConnector

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support/fake_device"))
from fake_gpu import LIBRARY, FakeGpu  # noqa: E402  (needs the path)


class _OnDevice:
    """A tensor that says that it is on a GPU."""

    device = types.SimpleNamespace(type="cuda", index=0)

    def __init__(self, tensor):
        self.tensor = tensor

    def narrow(self, *place):
        """Some of it, which is on the GPU too."""
        return _OnDevice(self.tensor.narrow(*place))

    def __getattr__(self, name):
        return getattr(self.tensor, name)


class DeviceConnector(CairnConnector):
    """Otherwise the product's own."""

    def __init__(self, vllm_config, role, kv_cache_config):
        vllm_config.kv_transfer_config.kv_connector_extra_config["device_library"] = str(LIBRARY)
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches):
        gpu = FakeGpu(kernels=True, late=False, print_reports=True)
        torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=gpu.stream)
        super().register_kv_caches({name: _OnDevice(cache) for name, cache in kv_caches.items()})

    def _page_access(self, kv_caches):
        return super()._page_access({name: cache.tensor for name, cache in kv_caches.items()})
