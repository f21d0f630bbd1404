"""vLLM's connector with KV on a GPU: its own classes, a real node, the fake device in place of the
GPU, and stand-ins for vLLM, torch and a model.

The model is one whose KV is known: byte `n` of layer `l` of a block depends on the block's key. So
pages that were loaded are compared with what they must hold. The fake device works late and in a
seeded order, and reports every access that no wait orders.
"""

import pytest

import cairn
from fake_gpu import LIBRARY, REFUSED, FakeTensor
from vllm_device_engine import (
    BLOCK,
    BLOCKS,
    HEADS,
    LAYERS,
    PAGE,
    SIZE,
    WIDTH,
    Engine,
    no_bugs,
    tensors,
)

LAYOUTS = [("BLHNC", 1), ("BLNHC", 1), ("LBNHC", 1), ("LBHNC", 2), ("LHBNC", 1), ("BHLNC", 1)]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(("layout", "kernel_blocks"), LAYOUTS)
def test_what_one_engine_saves_another_one_loads(engines, keys, kernels, layout, kernel_blocks):
    writer, reader = (engines(layout, kernel_blocks) for _ in range(2))
    assert writer.layout == "BLHNC"
    one_run = layout in ("BLHNC", "BLNHC", "BHLNC")
    assert writer.runs_kernels() == (kernels and not one_run), "one run is copied"
    prompt = keys(6)
    assert writer.run("a", prompt)[0] == 0
    writer.saved()
    assert writer.counts()["saved_blocks"] == 6
    loaded, blocks = reader.run("b", prompt)
    assert loaded == 6 * SIZE
    reader.check(blocks, prompt)
    # Only what is new is computed and stored.
    longer = prompt + keys(2)
    loaded, blocks = reader.run("c", longer)
    assert loaded == 6 * SIZE
    reader.check(blocks, longer)
    reader.saved()
    assert reader.counts()["saved_blocks"] == 2
    for engine in (writer, reader):
        no_bugs(engine)


def test_pages_may_be_used_again_at_once_after_a_save(engines, keys):
    """The request is preempted, or ends, and the next step writes into its blocks while the save is
    under way."""
    engine = engines()
    prompts = [keys(5) for _ in range(12)]  # Three times the engine's blocks.
    for i, prompt in enumerate(prompts):
        engine.run(f"w{i}", prompt)
    engine.saved()
    assert engine.counts()["saved_blocks"] == 60
    for i, prompt in enumerate(prompts):
        loaded, blocks = engine.run(f"r{i}", prompt)
        assert loaded == 5 * SIZE
        engine.check(blocks, prompt)
    no_bugs(engine)


def test_a_full_ring_drops_the_rest_of_a_save(engines, keys):
    engine = engines(save_buffer=4 * BLOCK)
    prompt = keys(10)
    engine.run("a", prompt)
    engine.saved()
    assert engine.counts()["saved_blocks"] == 4
    assert engine.counts()["dropped_save_blocks"] == 6
    loaded, blocks = engine.run("b", prompt)
    assert loaded == 4 * SIZE
    engine.check(blocks, prompt)
    engine.saved()
    assert engine.counts()["saved_blocks"] == 8, "the ring is free again"
    no_bugs(engine)


def test_loads_pass_through_a_small_buffer(engines, keys):
    engine = engines(load_buffer=2 * BLOCK)
    prompt = keys(9)
    engine.run("a", prompt)
    engine.saved()
    loaded, blocks = engine.run("b", prompt)
    assert loaded == 9 * SIZE
    engine.check(blocks, prompt)
    assert engine.counts()["loads"] == 1
    no_bugs(engine)


@pytest.mark.parametrize("operation", ["create_event", "borrow_stream", "copy", "wait", "record"])
def test_a_call_of_the_driver_that_fails_costs_a_save_or_a_load(engines, gpu, keys, operation):
    engine = engines()
    prompt, other = keys(3), keys(3)
    gpu.fail(operation)
    engine.run("a", prompt)  # The engine goes on.
    engine.saved()
    assert engine.counts()["failed_save_blocks"] == 3
    engine.run("b", other)
    engine.saved()
    assert engine.counts()["saved_blocks"] == 3
    if operation != "borrow_stream":  # It has that by now.
        gpu.fail(operation)
        loaded, blocks = engine.run("c", other)
        assert loaded == 0, "computed"
        engine.check(blocks, other)
    loaded, blocks = engine.run("d", other)
    assert loaded == 3 * SIZE
    engine.check(blocks, other)
    no_bugs(engine)


def test_a_lost_gpu_fails_loads_and_saves_with_errors_alone(engines, gpu, keys):
    engine = engines()
    prompt = keys(3)
    engine.run("a", prompt)
    engine.saved()
    gpu.lose()
    assert engine.run("b", prompt)[0] == 0
    engine.saved()
    assert engine.counts()["failed_save_blocks"] == 3
    no_bugs(engine)


def test_a_dead_node_costs_nothing_but_the_hit(engines, start_node, gpu, keys):
    node = start_node()
    engine = Engine(gpu, node)
    try:
        prompt = keys(4)
        engine.run("a", prompt)
        engine.saved()
        node.kill()
        loaded, blocks = engine.run("b", prompt)
        assert loaded == 0
        engine.check(blocks, prompt)
        engine.saved()
        assert engine.counts()["failed_save_blocks"] == 4
        no_bugs(engine)
    finally:
        engine.close()


def test_a_save_of_an_engine_that_does_not_wait_is_found(engines, gpu, keys):
    """The purpose of this harness: a gather on another stream than the engine's."""
    engine = engines()
    stream = gpu.stream
    other = gpu.new_stream()
    engine.worker._worker._pages._stream = lambda: other
    engine.run("a", keys(3))
    engine.saved()
    gpu.stream = stream
    assert "'gather of a save'" in (found := gpu.reports()) and "'forward'" in found
    gpu.stream = other
    gpu.finish()
    gpu.stream = stream


# ---- refused at the start ----


def test_a_missing_library_is_named(gpu, node):
    with pytest.raises(cairn.NotFoundError, match=r"no library of devices.*/nowhere/lib\.so"):
        Engine(gpu, node, device_library="/nowhere/lib.so")


def test_a_library_of_something_else_is_named(gpu, node):
    with pytest.raises(cairn.FailedPreconditionError, match="cairn_device_driver"):
        Engine(gpu, node, device_library="libm.so.6")


def test_no_memory_for_a_single_block_is_an_error(gpu, node):
    gpu.fail("allocate_host", times=100, code=REFUSED)
    with pytest.raises(cairn.PermissionDeniedError, match="pinned memory"):
        Engine(gpu, node)


def page_tensors(count=LAYERS, **changes):
    fields = {"shape": (BLOCKS, HEADS, SIZE, WIDTH), "index": 0, "kind": "cuda", **changes}
    strides = fields.pop("strides", (HEADS * SIZE * WIDTH, SIZE * WIDTH, WIDTH, 1))
    return {
        f"layer{i}": FakeTensor(
            (i + 1) << 20, fields["shape"], strides, kind=fields["kind"], index=fields["index"]
        )
        for i in range(count)
    }


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (page_tensors(kind="xpu"), "on xpu, expected cpu or cuda"),
        (
            page_tensors() | {"last": FakeTensor(9 << 20, (BLOCKS, 1), (1, 1), kind="cpu")},
            "on cpu, cuda, expected cpu or cuda",
        ),
        (
            page_tensors() | {"last": FakeTensor(9 << 20, (BLOCKS, 1), (1, 1), index=1)},
            "on cuda:0, cuda:1, expected one device",
        ),
        (page_tensors(index=7), "field 'device': got 7, expected less than 2"),
        (page_tensors(shape=(BLOCKS + 1, HEADS, SIZE, WIDTH)), "expected 24 blocks, or a multiple"),
        (page_tensors(shape=(0, HEADS, SIZE, WIDTH)), "expected 24 blocks"),
        (page_tensors(strides=(0, SIZE * WIDTH, WIDTH, 1)), "do not overlap"),
        (page_tensors(strides=(SIZE * WIDTH, SIZE * WIDTH, WIDTH, 1)), "do not overlap"),
        (page_tensors(strides=(HEADS * SIZE * WIDTH, SIZE * WIDTH, 4, 1)), "do not overlap"),
        (page_tensors(count=2), f"a block has {2 * PAGE} bytes .* expected {BLOCK}"),
        (page_tensors(shape=(BLOCKS, HEADS, SIZE, WIDTH // 2)), "a block has"),
    ],
)
def test_pages_that_cannot_be_right_are_named(gpu, node, tensors, text):
    from cairn._engine.store import Store
    from cairn.vllm.namespace import Plan
    from cairn.vllm.options import ConnectorOptions
    from cairn.vllm.worker import WorkerHalf

    layout = cairn.OpaqueLayout("refused", max_part_bytes=BLOCK, block_tokens=SIZE)
    spec = cairn.NamespaceSpec(
        model="refused", revision="1", numerics="n", layout=layout, key_scheme="test"
    )
    options = ConnectorOptions(address=node.grpc, device_library=str(LIBRARY))
    store = Store(options, spec, "refused")
    half = WorkerHalf(store, Plan(spec, SIZE, True, BLOCKS), 0)
    with pytest.raises((ValueError, cairn.Error), match=text):
        half.register(tensors)
    half.close()
    store.close()


def test_runs_are_found_from_strides_alone(gpu):
    from cairn.vllm.page_runs import Run, find_pages

    def runs(layout, kernel_blocks=1):
        made = tensors(gpu, layout, kernel_blocks)
        base = made["layer0"].data_ptr()
        return [(r.address - base, r.stride, r.bytes) for r in find_pages(made, BLOCKS).runs]

    by_layer = [(i * BLOCKS * PAGE, PAGE, PAGE) for i in range(LAYERS)]
    assert runs("BLHNC") == runs("BLNHC") == runs("BHLNC") == [(0, BLOCK, BLOCK)]
    assert runs("LBNHC") == runs("LBHNC") == runs("LBHNC", 2) == by_layer
    half = PAGE // HEADS
    assert runs("LHBNC") == [(i * BLOCKS * half, half, half) for i in range(LAYERS * HEADS)], (
        "a run for each head"
    )
    # A layer that shares its memory with another one is stored once.
    shared = page_tensors(1) | {"again": page_tensors(1)["layer0"]}
    assert find_pages(shared).runs == [Run(1 << 20, PAGE, PAGE)]
