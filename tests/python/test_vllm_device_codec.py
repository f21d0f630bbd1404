"""vLLM's connector with KV on a GPU that is stored in a codec: the probe that proves where numbers
lie, and blocks that are encoded out of the engine's pages and decoded into them. The fake device
runs the CUDA kernels in emulation."""

import ctypes

import numpy as np
import pytest

import cairn
from vllm_device_engine import BLOCKS, HEADS, SIZE, Engine, no_bugs

DIM = 64
WIDTH = 2 * DIM
CODEC = "int8:group=64,sink=1"


@pytest.fixture
def kernels():
    return True


class Pages:
    """Writes and reads a tensor with the axes B, H, N, C, as an engine's own operation does."""

    def __init__(self, engine):
        self.tensors = engine.tensors

    def addresses(self, layer, block):
        """[heads][tokens][keys, then values]."""
        tensor = self.tensors[layer]
        b, h, n, c = (2 * stride for stride in tensor.stride())
        heads, tokens, numbers = np.ogrid[:HEADS, :SIZE, :WIDTH]
        return tensor.data_ptr() + block * b + heads * h + tokens * n + numbers * c

    def numbers_at(self, address):
        return (ctypes.c_uint16 * 1).from_address(int(address))

    def write(self, layer, block, keys, values):
        numbers = np.concatenate([keys, values], axis=2).transpose(1, 0, 2)
        bits = numbers.astype(np.float16).view(np.uint16)
        for address, number in zip(self.addresses(layer, block).flat, bits.flat):
            self.numbers_at(address)[0] = number

    def read(self, layer, block):
        addresses = self.addresses(layer, block).reshape(-1)
        bits = np.array([self.numbers_at(address)[0] for address in addresses], np.uint16)
        return addresses, bits.view(np.float16).astype(np.float32)


class PackedPages(Pages):
    """Keys of a head lie dimension by dimension, as some CPU kernels want them."""

    def write(self, layer, block, keys, values):
        packed = keys.transpose(1, 2, 0).reshape(HEADS, SIZE, DIM).transpose(1, 0, 2)
        super().write(layer, block, np.ascontiguousarray(packed), values)


class RoundedPages(Pages):
    """The engine stores numbers in fewer bits."""

    def write(self, layer, block, keys, values):
        super().write(layer, block, np.floor(keys / 16) * 16, values)


class ForgetfulPages(Pages):
    """Values do not get where the tensor is."""

    def write(self, layer, block, keys, values):
        super().write(layer, block, keys, keys)


class SwappedPages(Pages):
    """The last block's values come before its keys."""

    def write(self, layer, block, keys, values):
        if block:
            keys, values = values, keys
        super().write(layer, block, keys, values)


class BackwardPages(Pages):
    """Blocks follow each other from the last one to the first."""

    def addresses(self, layer, block):
        return super().addresses(layer, BLOCKS - 1 - block)


def check_nearly(engine, blocks, keys):
    """As `Engine.check`, but to what int8 keeps. Other rows of the model differ by more."""
    engine.gpu.finish()
    for block, key in zip(blocks, keys):
        for byte, address, size in engine.places(block):
            numbers = np.frombuffer(engine.gpu.read(address, size), np.float16).astype(float)
            [expected] = np.frombuffer(bytes([engine.byte_of(key, byte)]) * 2, np.float16)
            assert np.abs(numbers / float(expected) - 1).max() < 0.01


@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC", "LHBNC"])
def test_blocks_are_stored_in_the_codec_and_come_back(engines, keys, layout):
    writer, reader = (
        engines(layout, width=WIDTH, access=Pages, codec="int8:sink=1") for _ in range(2)
    )
    prompt = keys(5)
    assert writer.run("a", prompt)[0] == 0
    writer.saved()
    counts = writer.counts()
    assert counts["saved_blocks"] == 5
    row = DIM + 2  # A byte a number, and a scale for 64 of them.
    later = 3 * 2 * HEADS * SIZE * row
    sink = 3 * 2 * HEADS * (2 * DIM - row)  # The first token of the prompt is stored in full.
    assert counts["saved_bytes"] == 5 * later + sink
    loaded, blocks = reader.run("b", prompt)
    assert loaded == 5 * SIZE
    check_nearly(reader, blocks, prompt)
    for engine in (writer, reader):
        no_bugs(engine)


def test_pages_are_zeros_after_the_probe(engines):
    engine = engines(width=WIDTH, access=Pages, codec=CODEC)
    pages = Pages(engine)
    for layer in engine.tensors:
        for block in (0, BLOCKS - 1):
            assert not pages.read(layer, block)[1].any()


def test_a_block_that_the_codec_cannot_store_is_left_out(engines, gpu, keys):
    engine = engines(width=WIDTH, access=Pages, codec=CODEC)
    prompt = keys(3)
    compute, spoiled = engine.compute, prompt[1]

    def spoiling(block, key):
        compute(block, key)
        if key == spoiled:
            _, address, size = next(engine.places(block))
            gpu.fill(address, 0x7C, size)  # NaN.

    engine.compute = spoiling
    engine.run("a", prompt)
    engine.saved()
    assert engine.counts()["saved_blocks"] == 2
    assert engine.counts()["failed_save_blocks"] == 1
    engine.compute = compute
    loaded, blocks = engine.run("b", prompt)
    assert loaded == SIZE, "the first one"
    check_nearly(engine, blocks, prompt)
    no_bugs(engine)


def test_other_codecs_share_nothing(engines, keys):
    prompt = keys(3)
    for codec in ("int8", "int4", ""):
        engine = engines(width=WIDTH, access=Pages, codec=codec)
        assert engine.run(f"to {codec}", prompt)[0] == 0
        engine.saved()
        assert engine.run(f"of {codec}", prompt)[0] == 3 * SIZE


def test_encoding_before_the_engine_has_computed_is_found(engines, gpu, keys):
    """The purpose of the harness: kernels on another stream than the engine's."""
    engine = engines(width=WIDTH, access=Pages, codec=CODEC)
    stream, other = gpu.stream, gpu.new_stream()
    engine.worker._worker._pages._stream = lambda: other
    engine.run("a", keys(3))
    engine.saved()
    assert "'encode_slices'" in (found := gpu.reports()) and "'forward'" in found
    for gpu.stream in (other, stream):
        gpu.finish()


@pytest.mark.parametrize(
    ("access", "found"),
    [
        (PackedPages, "layer 'layer0': the engine packs keys in an order of its own"),
        (RoundedPages, "none that the engine was given"),
        (ForgetfulPages, "some keys and values are twice in a block's memory"),
        (SwappedPages, "its block 23 does not lie as block 0 does"),
        (BackwardPages, "its block 23 does not lie as block 0 does"),
    ],
)
def test_a_layout_that_is_not_proved_is_refused(gpu, node, access, found):
    with pytest.raises(ValueError, match=rf"setting 'codec'.*is not proved: .*({found})"):
        Engine(gpu, node, width=WIDTH, access=access, codec=CODEC)


@pytest.mark.parametrize(
    ("codec", "found"),
    [
        ("raw", "expected a codec that makes blocks smaller"),
        ("cachegen", "whose blocks have one size"),
        ("streaming:keep=0.5+int8", "without a selection of rows"),
        ("tinier", "tinier"),
    ],
)
def test_what_is_no_codec_for_pages_is_named(gpu, node, codec, found):
    with pytest.raises(ValueError, match=rf"kv_connector_extra_config\.codec.*{found}"):
        Engine(gpu, node, width=WIDTH, access=Pages, codec=codec)


@pytest.mark.parametrize("kernels", [False])
def test_a_library_without_kernels_is_refused(gpu, node):
    with pytest.raises(cairn.FailedPreconditionError, match="no kernels"):
        Engine(gpu, node, width=WIDTH, access=Pages, codec=CODEC)
