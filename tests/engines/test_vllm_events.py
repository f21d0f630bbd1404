"""The node's events in vLLM's own stream: read as routers read them, with vLLM's own types."""

import types

import msgspec
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

import cairn
import layout_models
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.vllm.events import EventFeed, block_event
from conftest import ALONE, ENGINE, A, B, C, Counts, Engine, numbers, wait_until
from kv_events import Published


# As vLLM writes hashes into events, by default the last 64 bits.
KEYS = {maybe_convert_block_hash(bytes([i]) * 32): bytes([i]) * 32 for i in range(256)}


GROUPS = [types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(block_size=16))]


def spec(**changes):
    return cairn.NamespaceSpec(
        "m",
        "1",
        cairn.OpaqueLayout("events", 1 << 20, block_tokens=16),
        "n",
        key_scheme="test",
        **changes,
    )


class Reader:
    """Collects what a feed says, after a round through the wire's form."""

    def __init__(self, feed):
        self._feed, self.events = feed, []

    def wait(self, count):
        def enough():
            new = msgspec.msgpack.decode(
                msgspec.msgpack.encode(KVEventBatch(0.0, self._feed.take())), type=KVEventBatch
            )
            self.events += new.events
            return len(self.events) >= count

        wait_until(enough, 20, f"{count} events, got {self.events}")
        found, self.events = self.events, []
        return [(type(e), KEYS[e.block_hashes[0]], e.medium) for e in found]


def test_stores_moves_removals_and_breaks(start_node, tmp_path):
    node = start_node(
        "--host.capacity", "4MiB", "--disk.path", str(tmp_path), "--disk.flush_after", "10ms"
    )
    store = Store(Options(address=node.grpc), spec(), "events")
    assert store.wait_open(10)
    keys = [bytes([i]) * 32 for i in range(8)]
    assert store.save([cairn.Part(keys[0], b"x" * 1000)], [1000]) == [True]
    feed = EventFeed(store, block_event(GROUPS))
    reader = Reader(feed)
    # Blocks that were there before, in their fastest tier; then those that come, in memory first.
    assert (BlockStored, keys[0], "CPU") in reader.wait(1)
    size = 512 << 10
    assert store.save([cairn.Part(keys[1], bytes(size), parent=keys[0])], [size]) == [True]
    found = reader.wait(2)
    assert found[-2:] == [(BlockStored, keys[1], "CPU"), (BlockStored, keys[1], "STORAGE")]
    # More than the memory holds: something leaves it, and stays on disk.
    for i, key in enumerate(keys[2:]):
        assert store.save([cairn.Part(key, bytes([i]) * size)], [size]) == [True]
        reader.wait(2)
    more = [bytes([100 + i]) * 32 for i in range(8)]
    for key in more:
        # A small memory may be full until something of it is on disk.
        part = cairn.Part(key, bytes(size))
        # The wait ends before the next part is made.
        wait_until(lambda: store.save([part], [size]) == [True], 20, "room")  # noqa: B023
    wait_until(
        lambda: any(kind is BlockRemoved for kind, _, _ in reader.wait(1)),
        20,
        "a block that left the memory",
    )
    told = {*keys, *more}
    wait_until(
        lambda: {key for key, tiers in feed._told.items() if tiers} == told, 20, "all blocks"
    )
    reader.wait(0)
    # The node comes back without its disk: all that was told is taken back.
    node.kill()
    start_node("--listen", node.grpc)
    gone = set()
    wait_until(
        lambda: (
            gone.update(key for kind, key, _ in reader.wait(1) if kind is BlockRemoved)
            or gone >= told
        ),
        30,
        "removals",
    )
    assert not any(feed._told.values())
    feed.close()
    store.close()
    assert store.counters.totals()["internal_errors"] == 0


def test_routers_read_them_from_the_engine(tiny, engine_log, start_node):
    node = start_node()
    stored = {}
    with (
        Published() as published,
        Counts(node) as counts,
        Engine(
            tiny,
            engine_log(),
            connector={"address": node.grpc},
            kv_events_config=published.config,
            **{**ENGINE, **ALONE, "enable_prefix_caching": True},
        ) as engine,
    ):
        engine.ask(A)
        counts.wait_blocks(31)
        while len(stored.get("CPU", ())) < 31 or len(stored.get("GPU", ())) < 31:
            engine.ask(A)  # vLLM publishes in its steps.
            for event in published.stored():
                stored.setdefault(event.medium, set()).update(event.block_hashes)
                if event.medium == "CPU":
                    assert (event.locality, event.ownership, event.block_size) == (
                        "REMOTE",
                        "cairn",
                        32,
                    )
    # The same hashes as of the engine's own blocks: that is what routers join them by.
    assert stored["CPU"] == stored["GPU"]


def test_blocks_of_several_groups_have_their_group_s_name(engine_log, start_node, tmp_path):
    """A Gemma-3 form: full attention, and windows of which the node keeps the ends."""
    model, node, prompt = tmp_path / "model", start_node(), numbers(1, 300)
    layout_models.make("gemma3").save_pretrained(model)
    told = {"CPU": {}, "GPU": {}}
    with (
        Published() as published,
        Counts(node) as counts,
        Engine(
            model,
            engine_log(),
            connector={"address": node.grpc, "revision": "seed 20"},
            kv_events_config=published.config,
            **{**ENGINE, **ALONE, "enable_prefix_caching": True},
        ) as engine,
    ):
        engine.ask(prompt)
        counts.wait_blocks(9 + 5 * 3)
        while len(told["CPU"]) < 9 + 5 * 3:
            engine.ask(prompt)
            for event in published.stored():
                for hash in event.block_hashes:
                    told[event.medium][event.group_idx, hash] = (
                        event.kv_cache_spec_kind,
                        event.kv_cache_spec_sliding_window,
                        event.block_size,
                    )
    # Names and kinds are those of the engine's own events.
    assert told["CPU"].items() <= told["GPU"].items()
    assert {kind for kind, _, _ in told["CPU"].values()} == {"full_attention", "sliding_window"}


def test_after_a_reset_nothing_of_the_node_is_told(tiny, engine_log, start_node):
    """This process does not use what was stored before."""
    node = start_node()
    with (
        Published() as published,
        Counts(node) as counts,
        Engine(
            tiny,
            engine_log(),
            connector={"address": node.grpc},
            kv_events_config=published.config,
            **{**ENGINE, **ALONE, "enable_prefix_caching": True},
        ) as engine,
    ):
        engine.ask(A)
        counts.wait_blocks(31)
        engine.send(reset=True)
        assert engine.receive()
        engine.ask(B)
        published.stored()  # From before.
        counts.wait_blocks(62)
        engine.ask(B)
        engine.ask(C)
        assert not [event for event in published.stored() if event.medium != "GPU"]


def test_a_feed_ends_with_its_store(start_node):
    store = Store(Options(address=start_node().grpc), spec(salt=b"end"), "events")
    assert store.wait_open(10)
    feed = EventFeed(store, block_event(GROUPS))
    feed.close()
    assert not feed._thread.is_alive()
    store.close()
