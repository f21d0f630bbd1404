"""An engine with vLLM's connector and KV on the fake device, a step at a time: the connector's own
classes, and stand-ins for vLLM, torch and a model whose KV is known."""

import ctypes
import types

import pytest

from conftest import SLOW, wait_until
from fake_gpu import LIBRARY, FakeGpu, FakeTensor
from vllm_standins import KVConnectorRole, cache_config, engine_config, standing_in

SIZE = 16  # Tokens of a block.
LAYERS, BLOCKS, HEADS = 3, 24, 2
WIDTH = 8  # Numbers of a token in one head: half of them keys, half of them values.
PAGE = HEADS * SIZE * WIDTH * 2  # Bytes of a block in one layer.
BLOCK = LAYERS * PAGE


@pytest.fixture
def kernels():
    """Whether the device's library has kernels for slices."""
    return False


@pytest.fixture
def gpu(kernels):
    gpu = FakeGpu(seed=5, kernels=kernels)
    with standing_in(lambda device: gpu.stream):
        yield gpu
        gpu.close()
    assert gpu.reports() == ""


def tensors(gpu, layout, kernel_blocks=1, width=WIDTH):
    """Tensors of all layers with the axes B, H, N, C. `kernel_blocks`: how many of the kernels'
    blocks are one of the engine's."""
    tokens, blocks = SIZE // kernel_blocks, BLOCKS * kernel_blocks
    sizes = {"L": LAYERS, "B": blocks, "H": HEADS, "N": tokens, "C": width}
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

    def __init__(
        self, gpu, node, layout="BLHNC", kernel_blocks=1, width=WIDTH, access=None, **settings
    ):
        """`access(engine)`: writes and reads known numbers, for a codec."""
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
        self.width = width
        caches = cache_config(LAYERS, BLOCKS, SIZE, HEADS, width, layout)
        self.layout = CairnConnector.get_required_kvcache_layout(config)
        self.scheduler = CairnConnector(config, KVConnectorRole.SCHEDULER, caches)
        self.worker = CairnConnector(config, KVConnectorRole.WORKER, caches)
        self.tensors = tensors(gpu, layout, kernel_blocks, width)
        self.worker._page_access = lambda kv_caches: access(self)
        try:
            self.worker.register_kv_caches(self.tensors)
        except Exception:
            self.close()
            raise
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

    def runs_kernels(self):
        return self.worker._worker._pages._moves.runs_kernels

    def counts(self):
        return self.worker._store.counters.totals()

    # ---- the model ----

    def places(self, block):
        """(byte, address, size): the bytes of a block, each of `size` times `byte` plus the key's
        first byte. Keys and values, layers, heads and tokens have different ones, all of them
        ordinary numbers."""
        size = self.width
        for layer, tensor in enumerate(self.tensors.values()):
            b, h, n, _ = tensor.stride()
            _, heads, tokens, _ = tensor.shape
            for k in range(SIZE // tokens):
                for head in range(heads):
                    for token in range(tokens):
                        at = (block * (SIZE // tokens) + k) * b + head * h + token * n
                        for part in range(2):
                            byte = layer * 2 + head * 7 + token + part * 40
                            yield byte, tensor.data_ptr() + at * 2 + part * size, size

    @staticmethod
    def byte_of(key, byte):
        """Twice it is a half precision number between 0.01 and 60000."""
        return (key[0] + byte) % 0x5A + 0x21

    def compute(self, block, key):
        """Work of the engine that fills a block."""
        if self.gpu.lost:
            return
        for byte, address, size in self.places(block):
            self.gpu.fill(address, self.byte_of(key, byte), size)

    def holds(self, block, key):
        return all(
            self.gpu.read(address, size) == bytes([self.byte_of(key, byte)]) * size
            for byte, address, size in self.places(block)
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
        times = self.worker.build_connector_worker_meta()
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(
            types.SimpleNamespace(
                finished_recving=finished, invalid_block_ids=bad, kv_connector_worker_meta=times
            )
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

        wait_until(answered, SLOW, "an answer")
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

            wait_until(loaded, SLOW, "the load's end")
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
