"""The probe of vLLM's pages with torch's tensors: operations that write them as vLLM's backends do,
in every order of axes that vLLM has."""

import types

import numpy as np
import pytest
import torch

from cairn.vllm.number_places import PlaneShape, find_numbers
from cairn.vllm.page_access import VllmPages

HEADS, DIM, TOKENS, BLOCKS, LAYERS = 2, 64, 16, 5, 3
SHAPE = PlaneShape(HEADS, DIM, DIM, TOKENS)


class Attention:
    """A layer, and the operation of its backend in one."""

    def __init__(self, write):
        self.impl = types.SimpleNamespace(do_kv_cache_update=write)


def side_by_side(layer, key, value, cache, slots):
    """Keys and values of a token next to each other, as FlashAttention's."""
    keys, values = cache.transpose(1, 2).split(DIM, dim=-1)
    keys[slots // TOKENS, slots % TOKENS] = key
    values[slots // TOKENS, slots % TOKENS] = value


def head_by_head(layer, key, value, cache, slots):
    """All keys of a head and then all its values, as the CPU's, but keys are not packed."""
    planes = cache.view(cache.shape[0], HEADS, 2, TOKENS, DIM)
    planes[slots // TOKENS, :, 0, slots % TOKENS] = key
    planes[slots // TOKENS, :, 1, slots % TOKENS] = value


def packed(layer, key, value, cache, slots):
    """Keys of a head dimension by dimension."""
    planes = cache.view(cache.shape[0], HEADS, 2, TOKENS * DIM)
    planes[slots[0] // TOKENS, :, 0] = key.permute(1, 2, 0).reshape(HEADS, -1)
    planes[slots[0] // TOKENS, :, 1] = value.permute(1, 0, 2).reshape(HEADS, -1)


def caches(layout, dtype):
    sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": 2 * DIM}
    memory = torch.zeros([sizes[axis] for axis in layout], dtype=dtype)
    whole = memory.permute([layout.index(axis) for axis in "LBHNC"])
    return {f"layer{i}": whole[i] for i in range(LAYERS)}


def find(tensors, write):
    layers = {name: Attention(write) for name in tensors}
    return find_numbers(VllmPages(layers, tensors, BLOCKS, TOKENS), list(tensors), BLOCKS, SHAPE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["BLHNC", "BLNHC", "LBHNC", "LBNHC", "LHBNC"])
def test_places_are_those_of_the_tensors(layout, dtype):
    tensors = caches(layout, dtype)
    places = find(tensors, side_by_side)
    for place, tensor in zip(places.layers, tensors.values()):
        block, head, token, _ = tensor.stride()
        assert (place.k, place.v) == (tensor.data_ptr(), tensor.data_ptr() + 2 * DIM)
        assert place.block_stride == 2 * block
        assert places.k_strides == places.v_strides == (head, token)
        assert not tensor.any(), "zeros, as before"


def test_the_same_shape_with_planes_in_another_order_has_other_places():
    tensors = caches("LBHNC", torch.float16)
    places = find(tensors, head_by_head)
    first = tensors["layer0"].data_ptr()
    assert places.layers[0][:2] == (first, first + 2 * TOKENS * DIM)
    assert places.k_strides == places.v_strides == (2 * TOKENS * DIM, DIM)


def test_packed_keys_are_refused():
    with pytest.raises(ValueError, match="layer 'layer0': the engine packs keys"):
        find(caches("LBHNC", torch.float16), packed)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t, at: t.update(layer1=t["layer1"].float()), "KV of type torch.float32"),
        (lambda t, at: t.update(layer1=t["layer1"][:4]), "has 4 blocks, expected the engine's 5"),
        (lambda t, at: at.pop("layer2"), "layer 'layer2' has no operation of vLLM"),
    ],
)
def test_pages_that_nothing_can_be_asked_about_are_named(change, text):
    tensors = caches("LBHNC", torch.float16)
    layers = {name: Attention(side_by_side) for name in tensors}
    change(tensors, layers)
    with pytest.raises(ValueError, match=text):
        VllmPages(layers, tensors, BLOCKS, TOKENS)


def test_numbers_are_read_where_they_are_said_to_be():
    tensors = caches("LBNHC", torch.bfloat16)
    tensors["layer1"][3, 1, 7, 5] = 42
    addresses, numbers = VllmPages(
        {name: Attention(side_by_side) for name in tensors}, tensors, BLOCKS, TOKENS
    ).read("layer1", 3)
    [at] = np.flatnonzero(numbers)
    assert numbers[at] == 42
    assert addresses[at] == tensors["layer1"][3, 1, 7, 5:].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("isa", ["vec", "vec16"])
def test_vllm_s_kernels_for_cpus_pack_keys(isa, dtype):
    """vLLM's own operation, without an engine around it."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    backend = types.SimpleNamespace(attn_type="decoder", kv_cache_dtype="auto")
    layer = types.SimpleNamespace(
        isa=isa,
        _k_scale_float=1.0,
        _v_scale_float=1.0,
        impl=types.SimpleNamespace(
            do_kv_cache_update=lambda *a: CPUAttentionBackendImpl.do_kv_cache_update(backend, *a)
        ),
    )
    tokens = 32
    cache = torch.zeros(BLOCKS, HEADS, tokens, 2 * DIM, dtype=dtype)
    pages = VllmPages({"layer": layer}, {"layer": cache}, BLOCKS, tokens)
    with pytest.raises(ValueError, match="the engine packs keys in an order of its own"):
        find_numbers(pages, ["layer"], BLOCKS, PlaneShape(HEADS, DIM, DIM, tokens))
