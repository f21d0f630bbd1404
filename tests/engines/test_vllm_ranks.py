"""Workers that have different parts of a block, or the same one: what each of them stores and
loads, with a real node, without an engine. And a pipeline in the engine."""

import pytest
import torch

import cairn
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.vllm.metadata import LoadJob, Metadata, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.ranks import Ranks
from cairn.vllm.worker import WorkerHalf
from conftest import wait_until

SIZE, PAGE = 16, 512


class Worker:
    def __init__(self, node, ranks, rank, layers, most, shape=(40, PAGE), turned=False):
        """With pages of `layers` layers; other workers have at most `most`. `shape`: of a layer.
        `turned`: heads lie inside of tokens."""
        layout = cairn.OpaqueLayout(
            "pages of a test", max_part_bytes=most * PAGE, parts=ranks.parts, block_tokens=SIZE
        )
        spec = cairn.NamespaceSpec(
            model=str(ranks.parts if ranks.shared else ranks),
            revision="1",
            numerics="n",
            layout=layout,
            key_scheme="test",
        )
        self.store = Store(Options(address=node.grpc), spec, "ranks-test")
        assert self.store.wait_open(10)
        plan = Plan(spec, SIZE, True, blocks=40, ranks=ranks, own_bytes=layers * PAGE)
        self.half = WorkerHalf(self.store, plan, rank)
        self.pages = {
            f"layer{i}": torch.randint(0, 255, shape, dtype=torch.uint8) for i in range(layers)
        }
        if turned:
            self.pages = {
                name: page.transpose(1, 2).contiguous().transpose(1, 2)
                for name, page in self.pages.items()
            }
        self.half.register(self.pages)

    def save(self, keys, blocks):
        self.half.start_saves(Metadata(self.store.namespace, [], [SaveJob(keys, 0, blocks, None)]))
        assert self.half.drain(20)

    def load(self, keys, blocks):
        """The engine's blocks that did not come."""
        jobs = [LoadJob("r", keys, 0, blocks)]
        self.half.start_loads(Metadata(self.store.namespace, jobs))
        ended = set()
        wait_until(
            lambda: ended.update(self.half.finished(idle=False)) or ended, 20, "the load's end"
        )
        return self.half.take_bad_blocks()

    def close(self):
        self.half.close()
        self.store.close()


@pytest.fixture
def workers(start_node):
    node, made = start_node(), []

    def make(ranks, layers, **more):
        """Of one engine, with so many layers each."""
        own = [
            Worker(node, ranks, rank, count, max(layers), **more)
            for rank, count in enumerate(layers)
        ]
        made.extend(own)
        return own

    yield make
    for worker in made:
        worker.close()


def same_pages(one, other):
    return all(torch.equal(page[1:5], other.pages[name][11:15]) for name, page in one.pages.items())


KEYS = [bytes([1, i]) * 16 for i in range(4)]
STORED, LOADED = [11, 12, 13, 14], [1, 2, 3, 4]


def test_a_block_is_there_when_all_stages_have_stored_their_layers(workers):
    """Of two layers, and of three, in two halves of the heads each."""
    ranks = Ranks(parts=4, stages=(2, 3))
    writers, readers = workers(ranks, [2, 2, 3, 3]), workers(ranks, [2, 2, 3, 3])
    for number, writer in enumerate(writers):
        assert readers[0].load(KEYS, LOADED) == set(LOADED), number
        writer.save(KEYS, STORED)
    for writer, reader in zip(writers, readers):
        assert reader.load(KEYS, LOADED) == set()
        assert same_pages(reader, writer)


def test_of_those_with_the_same_bytes_one_stores_and_all_load(workers):
    ranks = Ranks(parts=2, replicas=2)
    writers, readers = workers(ranks, [2] * 4), workers(ranks, [2] * 4)
    for writer in (writers[1], writers[3]):
        writer.save(KEYS, STORED)
    writers[0].save(KEYS, STORED)
    assert readers[0].load(KEYS, LOADED) == set(LOADED)
    writers[2].save(KEYS, STORED)
    for number, reader in enumerate(readers):
        assert reader.load(KEYS, LOADED) == set()
        assert same_pages(reader, writers[number // 2 * 2])


# Heads, tokens and bytes of a block's pages as the engine has them, of four heads with 512 bytes
# each. Kernels may have two small blocks in one of the engine.
WHOLE, SPLIT = (40, SIZE, 32), (80, SIZE // 2, 32)


def shared(parts, ranks):
    return Ranks(parts=parts, columns=parts // ranks, shared=True)


def heads_of(workers, blocks, per_block):
    """What all workers of an engine have of these blocks, by layer, with all heads."""
    rows = [i for block in blocks for i in range(block * per_block, (block + 1) * per_block)]
    return [
        torch.cat([worker.pages[name][rows] for worker in workers], dim=1)
        for name in workers[0].pages
    ]


@pytest.mark.parametrize("pages", [WHOLE, SPLIT])
@pytest.mark.parametrize(("wrote", "reads"), [(1, 2), (2, 1), (1, 4), (4, 2)])
def test_engines_with_another_number_of_ranks_share_a_store(workers, pages, wrote, reads):
    blocks, tokens, size = pages
    writers, readers = (
        workers(shared(4, ranks), [2] * ranks, shape=(blocks, 4 // ranks, tokens, size))
        for ranks in (wrote, reads)
    )
    for number, writer in enumerate(writers):
        assert readers[0].load(KEYS, LOADED) == set(LOADED), number
        writer.save(KEYS, STORED)
    untouched = [page[-2:].clone() for reader in readers for page in reader.pages.values()]
    for reader in readers:
        assert reader.load(KEYS, LOADED) == set()
    for one, other in zip(
        heads_of(writers, STORED, blocks // 40), heads_of(readers, LOADED, blocks // 40)
    ):
        assert torch.equal(one, other)
    now = [page[-2:] for reader in readers for page in reader.pages.values()]
    assert all(torch.equal(one, other) for one, other in zip(untouched, now))
    assert readers[0].store.counters.totals()["loaded_blocks"] == len(KEYS)


def test_pages_with_heads_inside_of_tokens_are_not_cut(workers):
    with pytest.raises(ValueError, match="expected blocks that are contiguous"):
        workers(shared(4, 1), [2], shape=(40, 4, SIZE, 32), turned=True)
