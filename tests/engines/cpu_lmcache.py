"""Lets LMCache's in-process mode run in vLLM on a CPU, where LMCache 0.5.6 has one thing not: the
part that copies between vLLM's pages and LMCache's memory.

`CpuLMCacheConnector` is vLLM's LMCacheConnectorV1 with one that copies whole blocks with numpy.
Look-ups, storage manager, memory and remote backend are LMCache's.
"""

import lmcache.v1.gpu_connector
import numpy
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1


class WholeBlocks(lmcache.v1.gpu_connector.GPUConnectorInterface):
    """A chunk is this number of whole blocks of each layer, as vLLM packed them."""

    def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
        for item, start, end in zip(memory_objs, starts, ends):
            self.from_gpu(item, start, end, **kwargs)

    def batched_to_gpu(self, memory_objs, starts, ends, **kwargs):
        for item, start, end in zip(memory_objs, starts, ends):
            self.to_gpu(item, start, end, **kwargs)

    def from_gpu(self, memory_obj, start, end, **kwargs):
        for host, layer, blocks in self._layers(memory_obj, start, end, **kwargs):
            host[:] = layer[blocks]

    def to_gpu(self, memory_obj, start, end, **kwargs):
        for host, layer, blocks in self._layers(memory_obj, start, end, **kwargs):
            layer[blocks] = host

    def _layers(self, memory_obj, start, end, kvcaches, slot_mapping, **_):
        tokens = kvcaches[0].shape[2]  # Blocks, heads, tokens, twice the head size.
        slots = slot_mapping[start:end].numpy().reshape(-1, tokens)
        assert (slots - slots[:, :1] == numpy.arange(tokens)).all() and (
            slots[:, 0] % tokens == 0
        ).all()
        blocks = slots[:, 0] // tokens
        host = (
            memory_obj.raw_tensor[: memory_obj.get_size()]
            .view(torch.uint8)
            .numpy()
            .reshape(len(kvcaches), len(blocks), -1)
        )
        for i, cache in enumerate(kvcaches):
            assert cache.is_contiguous()
            yield host[i], cache.view(cache.shape[0], -1).view(torch.uint8).numpy(), blocks

    def get_shape(self, num_tokens):
        raise NotImplementedError


class CpuLMCacheConnector(LMCacheConnectorV1):
    def __init__(self, *args, **kwargs):
        lmcache.v1.gpu_connector.CreateGPUConnector = lambda *_, **__: WholeBlocks()
        super().__init__(*args, **kwargs)
