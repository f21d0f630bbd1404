"""The vLLM connector's worker with several KV cache groups on the fake device: the groups have the
same memory, and a block of it belongs to one of them at a time."""

import pytest

import cairn
from conftest import SLOW, wait_until
from fake_gpu import LIBRARY, FakeTensor
from vllm_device_engine import BLOCK, LAYERS, PAGE, SIZE, tensors

FULL, WINDOW = range(2)
UNITS = 6
LAYOUTS = [("BLHNC", False), ("LBNHC", False), ("LBNHC", True)]


@pytest.fixture(params=LAYOUTS, ids=["one run", "runs", "runs by kernels"])
def layout(request):
    return request.param[0]


@pytest.fixture
def kernels(request):
    return request.node.callspec.params["layout"][1]


class Worker:
    """A worker's half, and the engine's work on its blocks."""

    def __init__(self, gpu, node, layout, serial, **settings):
        from cairn._engine.pool_store import PoolStore
        from cairn.vllm.namespace import Plan
        from cairn.vllm.options import ConnectorOptions
        from cairn.vllm.pools import PoolPlan
        from cairn.vllm.worker import WorkerHalf

        self.gpu = gpu
        self.tensors = tensors(gpu, layout)
        names = {pool: tuple(f"{pool}{i}" for i in range(LAYERS)) for pool in ("full", "window")}
        self.pools = (PoolPlan("full", names["full"], SIZE, BLOCK, 0), self.second(names["window"]))
        spec = cairn.NamespaceSpec(
            model=f"device pools {serial}",
            revision="1",
            numerics="n",
            layout=cairn.PooledLayout("test", [pool.pool(1) for pool in self.pools], SIZE),
            key_scheme="test",
        )
        limits = {"lookup_timeout": SLOW, "load_timeout": SLOW, "save_timeout": SLOW}
        options = ConnectorOptions(
            address=node.grpc, device_library=str(LIBRARY), **{**limits, **settings}
        )
        self.store = PoolStore(options, spec, "worker-test")
        assert self.store.wait_open(SLOW)
        self.half = WorkerHalf(self.store, Plan(spec, SIZE, True, 24, pools=self.pools), 0)
        caches = dict(zip(names["full"], self.tensors.values(), strict=True))
        second = (self.second_page(tensor) for tensor in self.tensors.values())
        self.half.register(caches | dict(zip(names["window"], second, strict=True)))

    def second(self, layers):
        """The plan of the second group."""
        from cairn.vllm.pools import PoolPlan

        return PoolPlan("window", layers, SIZE, BLOCK, 20)

    def second_page(self, tensor):
        """What lies in the second group where the first has this tensor."""
        return tensor

    def pages(self, block):
        """(layer, address) of the rows of a block that are surely together."""
        for layer, tensor in enumerate(self.tensors.values()):
            b, h, n, _ = tensor.stride()
            _, heads, tokens, width = tensor.shape
            for head in range(heads):
                for token in range(tokens):
                    at = block * b + head * h + token * n
                    yield layer, tensor.data_ptr() + at * 2, width * 2

    def compute(self, block, number):
        """Work of the engine on its stream."""
        for layer, address, size in self.pages(block):
            self.gpu.fill(address, (number * 7 + layer * 50) % 251 + 1, size)

    def holds(self, block, number):
        self.gpu.finish()
        return all(
            self.gpu.read(address, size) == bytes([(number * 7 + layer * 50) % 251 + 1]) * size
            for layer, address, size in self.pages(block)
        )

    def save(self, units, blocks):
        """`blocks`: by pool, block of the prompt -> block of the engine."""
        from cairn.vllm.metadata import Metadata, SaveJob

        jobs = []
        for pool, places in enumerate(blocks):
            keys = self.keys(units, pool)
            jobs += [
                SaveJob([keys[i]], i, [block], keys[i - 1] if pool == FULL and i else None, pool)
                for i, block in places.items()
            ]
        self.half.start_saves(Metadata(self.store.namespace, [], jobs))

    def keys(self, units, pool):
        return cairn.pool_keys(units, 1, pool)

    def load(self, units, blocks):
        """Whether all came."""
        from cairn.vllm.metadata import Metadata, PoolBlocks, PoolLoadJob

        pools = [
            PoolBlocks(pool, min(places), list(places.values()))
            for pool, places in enumerate(blocks)
        ]
        job = PoolLoadJob("r", units, len(units) * SIZE, pools)
        self.half.start_loads(Metadata(self.store.namespace, [job]))
        wait_until(lambda: "r" in self.half.finished(idle=False), SLOW, "the load's end")
        assert self.half.take_bad_blocks() == set()
        return not self.half.take_failed()

    def close(self):
        self.half.close()
        self.store.close()


@pytest.fixture
def worker(gpu, node, layout, serial):
    made, number = [], serial()

    def make(**settings):
        made.append(Worker(gpu, node, layout, number, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


# Blocks of the prompt -> of the engine. The window needs the last 20 of 96 tokens.
HERE = ({i: 1 + i for i in range(UNITS)}, {4: 10, 5: 11})
THERE = ({i: 20 - i for i in range(UNITS)}, {4: 3, 5: 2})


def units_of(seed):
    return [bytes([seed, i]) * 16 for i in range(UNITS)]


def fill(worker, blocks):
    for pool, places in enumerate(blocks):
        for i, block in places.items():
            worker.compute(block, pool * 20 + i)


def test_groups_come_back_although_the_engine_used_their_pages_at_once(worker):
    one = worker()
    fill(one, HERE)
    one.save(units_of(1), HERE)
    for places in HERE:
        for block in places.values():
            one.compute(block, 100)  # Later on its stream.
    assert one.half.drain(SLOW)
    other = worker()
    other.compute(9, 77)
    for places in THERE:
        for block in places.values():
            other.compute(block, 101)  # Before the load, which waits for that.
    assert other.load(units_of(1), THERE)
    for pool, places in enumerate(THERE):
        for i, block in places.items():
            assert other.holds(block, pool * 20 + i), (pool, i)
    assert other.holds(9, 77)
    counts = other.store.counters.totals()
    assert (counts["loaded_blocks"], counts["internal_errors"]) == (8, 0)


def test_buffers_that_are_smaller_than_a_prompt(worker):
    """Each group has room for one block, so loads take turns and saves are dropped."""
    one = worker(load_buffer=1, save_buffer=64 * BLOCK)
    fill(one, HERE)
    one.save(units_of(2), HERE)
    assert one.half.drain(SLOW)
    assert one.load(units_of(2), THERE)
    for pool, places in enumerate(THERE):
        for i, block in places.items():
            assert one.holds(block, pool * 20 + i), (pool, i)


@pytest.mark.parametrize("pool", [FULL, WINDOW])
def test_a_group_that_lost_a_block_fails_the_request(worker, pool):
    one = worker()
    fill(one, HERE)
    less = tuple(
        {i: block for i, block in places.items() if (number, i) != (pool, 4)}
        for number, places in enumerate(HERE)
    )
    one.save(units_of(3 + pool), less)
    assert one.half.drain(SLOW)
    assert not one.load(units_of(3 + pool), THERE)
    counts = one.store.counters.totals()
    assert (counts["failed_load_blocks"], counts["loaded_blocks"]) == (8, 0)


def test_a_group_s_layer_that_is_not_there_is_named(worker):
    one = worker()
    tensors = dict(zip(("full0", "full1", "full2"), one.tensors.values(), strict=True))
    with pytest.raises(ValueError, match="no KV cache of 'window0', which 'window' has"):
        one.half.register(tensors)


STATE = PAGE - 64  # Bytes of a layer's state, in a page with padding behind it.


class StateWorker(Worker):
    """The second group keeps a state for each two blocks of tokens."""

    def second(self, layers):
        from cairn.vllm.pools import PoolPlan

        return PoolPlan("state", layers, 2 * SIZE, LAYERS * STATE, 1, page_bytes=PAGE, states=True)

    def second_page(self, tensor):
        numbers = STATE // 2
        return FakeTensor(
            tensor.data_ptr(),
            [tensor.shape[0], 1, 1, numbers],
            [tensor.stride()[0], numbers, numbers, 1],
        )

    def keys(self, units, pool):
        return cairn.pool_keys(units, pool + 1, pool)


def test_states_come_back_although_the_engine_used_their_pages_at_once(gpu, node, layout, serial):
    here, there = ({i: 1 + i for i in range(UNITS)}, {2: 10}), (THERE[0], {2: 3})
    number, workers = serial(), []
    try:
        workers += [StateWorker(gpu, node, layout, number) for _ in range(2)]
        one, other = workers
        fill(one, here)
        one.save(units_of(9), here)
        one.compute(10, 100)  # Later on its stream.
        assert one.half.drain(SLOW)
        other.compute(3, 101)  # Before the load, which waits for that.
        assert other.load(units_of(9), there)
        gpu.finish()
        for layer, tensor in enumerate(other.tensors.values()):
            page = tensor.data_ptr() + 3 * tensor.stride()[0] * 2
            assert gpu.read(page, STATE) == bytes([(22 * 7 + layer * 50) % 251 + 1]) * STATE
            # Nothing reads the padding, and nothing writes to it.
            assert gpu.read(page + STATE, 64) == bytes([(101 * 7 + layer * 50) % 251 + 1]) * 64
        assert all(other.holds(block, i) for i, block in there[0].items())
    finally:
        for worker in workers:
            worker.close()
