"""vLLM's connector with KV on a GPU: its own classes, a real node, the fake device in place of the
GPU, and stand-ins for vLLM, torch and a model.

The model is one whose KV is known: byte `n` of layer `l` of a block depends on the block's key. So
pages that were loaded are compared with what they must hold. The fake device works late and in a
seeded order, and reports every access that no wait orders.
"""

import ctypes
import time
import types

import pytest

import cairn
from conftest import SLOW
from fake_gpu import LIBRARY, REFUSED, FakeGpu, FakeTensor
from vllm_standins import KVConnectorRole, cache_config, engine_config, standing_in

SIZE = 16  # Tokens of a block.
LAYERS, BLOCKS, HEADS, WIDTH = 3, 24, 2, 8
PAGE = HEADS * SIZE * WIDTH * 2  # Bytes of a block in one layer.
BLOCK = LAYERS * PAGE


def wait_until(done, what):
    until = time.monotonic() + SLOW
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.001)


@pytest.fixture
def gpu():
    gpu = FakeGpu(seed=5)
    with standing_in(lambda device: gpu.stream):
        yield gpu
        gpu.close()
    assert gpu.reports() == ""


def tensors(gpu, layout, kernel_blocks=1):
    """Tensors of all layers with the axes B, H, N, C. `kernel_blocks`: how many of the kernels'
    blocks are one of the engine's."""
    tokens, blocks = SIZE // kernel_blocks, BLOCKS * kernel_blocks
    sizes = {"L": LAYERS, "B": blocks, "H": HEADS, "N": tokens, "C": WIDTH}
    strides, step = {}, 1
    for axis in reversed(layout):
        strides[axis] = step
        step *= sizes[axis]
    base = gpu.allocate(step * 2)
    return {
        f"layer{i}": FakeTensor(
            base + i * strides["L"] * 2,
            [sizes[axis] for axis in "BHNC"],
            [strides[axis] for axis in "BHNC"],
        )
        for i in range(LAYERS)
    }


class Engine:
    """Scheduler, worker and model of an engine, a step at a time."""

    def __init__(self, gpu, node, layout="BLHNC", kernel_blocks=1, **settings):
        from cairn.vllm import CairnConnector

        self.gpu = gpu
        config = engine_config(
            node.grpc,
            **{
                "device_library": str(LIBRARY),
                "lookup_timeout": SLOW,
                "save_buffer": 1 << 20,
                "load_buffer": 256 << 10,
                **settings,
            },
        )
        caches = cache_config(LAYERS, BLOCKS, SIZE, PAGE, layout)
        self.layout = CairnConnector.get_required_kvcache_layout(config)
        self.scheduler = CairnConnector(config, KVConnectorRole.SCHEDULER, caches)
        self.worker = CairnConnector(config, KVConnectorRole.WORKER, caches)
        self.tensors = tensors(gpu, layout, kernel_blocks)
        self.worker.register_kv_caches(self.tensors)
        self.used = 0
        store = self.worker._store
        save, fetch = store.save, store._fetch

        def reading_save(parts, sizes):
            for part in parts:
                self._touch(part.data, writes=False)
            return save(parts, sizes)

        def writing_fetch(found, first, into, *rest):
            for memory in into:
                self._touch(memory, writes=True)
            return fetch(found, first, into, *rest)

        store.save, store._fetch = reading_save, writing_fetch

    def _touch(self, memory, writes):
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.gpu.host_access(address, len(memory), writes)

    def counts(self):
        return self.worker._store.counters.totals()

    # ---- the model ----

    def places(self, block):
        """(layer, address) of all rows of a block's tokens."""
        size = WIDTH * 2
        for layer, tensor in enumerate(self.tensors.values()):
            b, h, n, _ = tensor.stride()
            _, heads, tokens, _ = tensor.shape
            for k in range(SIZE // tokens):
                for head in range(heads):
                    for token in range(tokens):
                        at = (block * (SIZE // tokens) + k) * b + head * h + token * n
                        yield layer, tensor.data_ptr() + at * 2, size

    def compute(self, block, key):
        """Work of the engine that fills a block."""
        if self.gpu.lost:
            return
        for layer, address, size in self.places(block):
            self.gpu.fill(address, (key[0] + layer) % 256, size)

    def holds(self, block, key):
        return all(
            self.gpu.read(address, size) == bytes([(key[0] + layer) % 256]) * size
            for layer, address, size in self.places(block)
        )

    # ---- a step ----

    def step(self, scheduled=None):
        """Runs a step with `scheduled`: name -> (computed, tokens, blocks, the blocks to compute
        with their keys). Returns (finished loads, bad blocks)."""
        scheduled = scheduled or {}
        output = types.SimpleNamespace(
            scheduled_new_reqs=[
                types.SimpleNamespace(req_id=name, num_computed_tokens=computed)
                for name, (computed, *_) in scheduled.items()
            ],
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[]),
            num_scheduled_tokens={name: tokens for name, (_, tokens, *_) in scheduled.items()},
            total_num_scheduled_tokens=sum(tokens for _, tokens, *_ in scheduled.values()),
            kv_connector_block_state=types.SimpleNamespace(
                get_block_ids=lambda name: (scheduled[name][2],)
            ),
        )
        metadata = self.scheduler.build_connector_meta(output)
        self.worker.handle_preemptions(metadata)
        self.worker.bind_connector_metadata(metadata)
        for *_, work in scheduled.values():
            for block, key in work:
                self.compute(block, key)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        _, finished = self.worker.get_finished(set())
        bad = self.worker.get_block_ids_with_load_errors()
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(
            types.SimpleNamespace(finished_recving=finished, invalid_block_ids=bad)
        )
        return finished or set(), bad

    def run(self, name, keys):
        """A request of full blocks and one token. Returns (tokens from the node, blocks)."""
        tokens = len(keys) * SIZE + 1
        request = types.SimpleNamespace(
            request_id=name,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            num_preemptions=0,
            all_token_ids=[0] * tokens,
            block_hashes=keys,
            skip_reading_prefix_cache=False,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            pooling_params=None,
            cache_salt=None,
        )
        blocks = [(self.used + i) % BLOCKS for i in range(len(keys) + 1)]
        self.used += len(blocks)
        self.scheduler.on_new_request(request)
        found = [None]

        def answered():
            found[0] = self.scheduler.get_num_new_matched_tokens(request, 0)[0]
            return found[0] is not None

        wait_until(answered, "an answer")
        external = found[0]
        self.scheduler.update_state_after_alloc(
            request, types.SimpleNamespace(get_block_ids=lambda: (blocks,)), external
        )
        bad = set()
        if external:
            ended = set()

            def loaded():
                finished, wrong = self.step()
                ended.update(finished)
                bad.update(wrong)
                return name in ended

            wait_until(loaded, "the load's end")
        good = next((i for i in range(external // SIZE) if blocks[i] in bad), external // SIZE)
        work = [(blocks[i], keys[i]) for i in range(good, len(keys))]
        self.step({name: (good * SIZE, tokens - good * SIZE, blocks, work)})
        self.scheduler.request_finished(request, blocks)
        return good * SIZE, blocks

    def saved(self):
        assert self.worker._worker.drain(SLOW)

    def check(self, blocks, keys):
        self.gpu.finish()
        assert all(self.holds(block, key) for block, key in zip(blocks, keys))

    def close(self):
        self.worker.shutdown()
        self.scheduler.shutdown()


@pytest.fixture
def engines(gpu, node):
    made = []

    def make(*args, **settings):
        made.append(Engine(gpu, node, *args, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def keys(serial):
    def make(count):
        seed = serial()
        return [
            bytes([(seed * 31 + i) % 256, i]) + seed.to_bytes(30, "little") for i in range(count)
        ]

    return make


def no_bugs(engine):
    for half in (engine.worker, engine.scheduler):
        assert half._store.counters.totals()["internal_errors"] == 0


LAYOUTS = [("BLHNC", 1), ("BLNHC", 1), ("LBNHC", 1), ("LBHNC", 2), ("LHBNC", 1), ("BHLNC", 1)]


@pytest.mark.parametrize(("layout", "kernel_blocks"), LAYOUTS)
def test_what_one_engine_saves_another_one_loads(engines, keys, layout, kernel_blocks):
    writer, reader = (engines(layout, kernel_blocks) for _ in range(2))
    assert writer.layout == "BLHNC"
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
    """What this harness is for: a gather on another stream than the engine's."""
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


def test_a_codec_is_refused_with_the_reason(gpu, node):
    with pytest.raises(ValueError, match=r"kv_connector_extra_config\.codec.*nothing has proved"):
        Engine(gpu, node, codec="int8")


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
