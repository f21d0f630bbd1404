"""The events that a cache node publishes itself, over ZeroMQ: read as vLLM's own subscriber does,
with vLLM's own classes."""

import collections
import types

import msgspec
import pytest
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockStored, KVEventBatch

import cairn
import record_events
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.keys import pool_keys
from cairn.vllm.events import EventFeed, block_event
from conftest import ALONE, ENGINE, A, Counts, Engine, free_port, wait_until
from kv_events import Published

END = (2**64 - 1).to_bytes(8, "big")
MODEL = "some/model"
SIZE = 64 << 10


class Subscriber:
    """What a router knows, by topic: (hash, medium, group). Follows the numbers, and asks for a
    replay of what is missing."""

    def __init__(self, node_events, topic="kv@"):
        self._events, self._replay = node_events
        self._live = zmq.Context.instance().socket(zmq.SUB)
        self._live.connect(self._events)
        self._live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.known = collections.defaultdict(set)
        self.cleared = 0
        self.next = 0

    def replay(self, start):
        """The numbers of the batches that came."""
        numbers = []
        with zmq.Context.instance().socket(zmq.DEALER) as request:
            request.setsockopt(zmq.LINGER, 0)
            request.connect(self._replay)
            request.send_multipart((b"", start.to_bytes(8, "big")))
            while True:
                assert request.poll(20_000)
                empty, topic, number, payload = request.recv_multipart()
                assert empty == b""
                if number == END:
                    assert topic == payload == b""
                    return numbers
                numbers.append(int.from_bytes(number, "big"))
                self._take(topic, numbers[-1], payload)

    def update(self):
        while self._live.poll(0):
            topic, number, payload = self._live.recv_multipart()
            assert len(number) == 8
            number = int.from_bytes(number, "big")
            if number > self.next:
                self.replay(self.next)
            if number >= self.next:
                self._take(topic, number, payload)
        return self.known

    def _take(self, topic, number, payload):
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        assert batch.data_parallel_rank == 0
        assert abs(batch.ts - 1.8e9) < 1e9  # Of these years.
        self.next = number + 1
        known = self.known[topic.decode()]
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.cleared += 1
                known.clear()
                continue
            assert (event.locality, event.ownership) == ("REMOTE", "cairn")
            told = {(hash_, event.medium, event.group_idx) for hash_ in event.block_hashes}
            if isinstance(event, BlockStored):
                assert event.token_ids == [] and event.parent_block_hash is None
                # None twice: some routers count.
                assert len(told) == len(event.block_hashes) and not told & known
                known |= told
            else:
                known -= told

    def wait(self, topic, expected):
        def come():
            if self.update()[topic] == expected:
                return True
            # ZeroMQ does not say from when on a subscription counts.
            self.replay(self.next)
            return self.known[topic] == expected

        wait_until(come, 20, f"{len(expected)} blocks of {topic}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._live.close(0)


@pytest.fixture
def events():
    return tuple(f"tcp://127.0.0.1:{free_port()}" for _ in range(2))


@pytest.fixture
def start(start_node, events):
    """Starts a node that publishes at `events`."""

    def started(*more):
        return start_node(
            *("--events.zmq", events[0], "--events.zmq_replay", events[1], "--node.id", "n"), *more
        )

    return started


def spec(model=MODEL, scheme="vllm-sha256-00", layout=None, **changes):
    layout = layout or cairn.OpaqueLayout("pages", SIZE, block_tokens=32)
    return cairn.NamespaceSpec(model, "1", layout, "n", key_scheme=scheme, **changes)


def open_store(node, *arguments, **changes):
    store = Store(Options(address=node.grpc), spec(*arguments, **changes), "events")
    assert store.wait_open(10)
    return store


def keys(first, count):
    return [n.to_bytes(4, "big") * 8 for n in range(first, first + count)]


def save(store, hashes, size=1000):
    for key in hashes:
        # A small memory may be full until something of it is on disk.
        part = cairn.Part(key, key * (size // 32))
        wait_until(lambda: store.save([part], [len(part.data)]) == [True], 20, "room")  # noqa: B023


def number(key):
    """As vLLM writes hashes into events by default."""
    return int.from_bytes(key[-8:], "big")


def known(hashes, *media, group=None):
    return {(number(key), medium, group) for key in hashes for medium in media}


TOPIC = f"kv@n@{MODEL}"


def test_the_recorded_bytes_are_still_the_engines():
    """What the unit test of the node's encoder compares with."""
    now, then = record_events.record(), record_events.recorded()
    assert now.keys() == then.keys()
    # Arrays have all fields of a version, in its order.
    assert {n: b for n, b in now.items() if "_maps_" in n} == {
        n: b for n, b in then.items() if "_maps_" in n
    }


def test_stores_moves_and_evictions(start, events, tmp_path):
    node = start(
        *("--host.capacity", "4MiB", "--disk.path", tmp_path, "--disk.flush_after", "10ms")
    )
    store = open_store(node)
    with Subscriber(events) as reader, Counts(node) as counts:
        save(store, keys(1, 3))
        reader.wait(TOPIC, known(keys(1, 3), "CPU", "STORAGE"))
        # More than the memory holds: some blocks are on disk alone.
        save(store, keys(100, 80), SIZE)
        counts.flush()
        # Exactly what the node says itself.
        feed = EventFeed(
            store,
            block_event(
                [types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(block_size=32))]
            ),
        )

        def told():
            media = {cairn.TierKind.HOST: "CPU", cairn.TierKind.DISK: "STORAGE"}
            return {
                (number(key), media[tier], None)
                for key, tiers in list(feed._told.items())
                for tier in tiers
            }

        def agree():
            reader.update()
            # ZeroMQ does not say from when on a subscription counts.
            reader.replay(reader.next)
            return told() == reader.known[TOPIC]

        wait_until(agree, 20, "what the node itself says")
        feed.close()
        tiers = collections.Counter(medium for _, medium, _ in reader.known[TOPIC])
        assert 0 < tiers["CPU"] < 70 < tiers["STORAGE"]
        assert node.metric("cairn_zmq_dropped_batches_total") == 0
        assert node.metric("cairn_zmq_readers") == 1
    store.close()


def whole(reader, expected):
    """Whether a replay from the first batch gives this, and nothing but it."""
    reader.known.clear()
    numbers = reader.replay(0)
    assert numbers == list(range(len(numbers)))
    return reader.known[TOPIC] == expected


def test_a_late_subscriber_and_a_restart(start, events, tmp_path):
    disk = ("--disk.path", tmp_path, "--disk.flush_after", "10ms")
    node = start(*disk)
    store = open_store(node)
    save(store, keys(1, 20))
    both = known(keys(1, 20), "CPU", "STORAGE")
    with Subscriber(events) as reader:
        wait_until(lambda: whole(reader, both), 20, "a replay of all")
        assert reader.cleared >= 1
        # A replay from the middle has the rest alone, one of what is not there nothing.
        last = reader.next - 1
        reader.known.clear()
        assert reader.replay(last) == [last]
        assert reader.replay(last + 100) == []
        assert node.metric("cairn_zmq_replays_total") > 0
    # Killed: it comes back with what is on disk, and numbers its batches from 0 again.
    node.kill()
    node = start(*disk, "--listen", node.grpc)
    expected = known(keys(1, 20), "STORAGE")
    with Subscriber(events) as reader:
        wait_until(lambda: whole(reader, expected), 20, "a replay of the new process")
        assert reader.cleared >= 1
        save(store, keys(50, 2))
        reader.wait(TOPIC, expected | known(keys(50, 2), "CPU", "STORAGE"))
    # Without its disk it holds nothing, and says that.
    node.kill()
    start("--listen", node.grpc)
    with Subscriber(events) as reader:
        wait_until(lambda: reader.replay(0), 20, "a first batch")
        assert reader.cleared >= 1 and not any(reader.known.values())
    store.close()


def test_two_namespaces_have_two_topics_and_another_tenant_none(start, events):
    node = start()
    first, second = open_store(node), open_store(node, "other")
    hidden = Store(Options(address=node.grpc, tenant="b"), spec("secret", tenant="b"), "events")
    assert hidden.wait_open(10)
    with Subscriber(events) as reader:
        save(hidden, keys(1, 3))
        save(first, keys(1, 3))
        save(second, keys(2, 5))
        reader.wait(TOPIC, known(keys(1, 3), "CPU"))
        reader.wait("kv@n@other", known(keys(2, 5), "CPU"))
        # Who gets all topics sees no gaps, and nothing of the other tenant.
        assert not any("secret" in topic for topic in reader.known)
        with cairn.Client(node.grpc) as client:
            assert client.stat(deadline=10.0).blocks == 11
    for store in (first, second, hidden):
        store.close()


def test_hashes_as_bytes_and_events_as_arrays(start, events):
    node = start("--events.hashes", "bytes", "--events.encoding", "arrays")
    store = open_store(node)
    arrays = record_events.as_arrays(record_events.classes_of("vllm"))
    stored = arrays["BlockStored"]
    found = set()
    with Subscriber(events) as reader:
        save(store, keys(1, 3))

        def take(_topic, _number, payload):
            _, batch, _ = msgspec.msgpack.decode(payload)
            for event in batch:
                if event[0] == "BlockStored":
                    found.update(msgspec.convert(event, stored).block_hashes)

        reader._take = take
        wait_until(lambda: reader.replay(0) and found == set(keys(1, 3)), 20, "three blocks")
    store.close()


def test_blocks_of_pools_have_the_engine_s_hash_and_group(start, events):
    node = start()
    pools = [cairn.Pool("full", 32, SIZE, 1, True), cairn.Pool("window", 32, SIZE, 1, False)]
    layout = cairn.PooledLayout("pages", pools, block_tokens=32)
    with cairn.Client(node.grpc) as client, Subscriber(events) as reader:
        opened = client.open_namespace(spec(layout=layout), deadline=10.0)
        for pool in (0, 1):
            parts = [
                cairn.Part(key, b"x" * 100, rect=cairn.Rect(pool, pool + 1, 0, 1))
                for key in pool_keys(keys(1, 4), 1, pool)
            ]
            assert client.push(opened.fingerprint, parts, deadline=10.0) == [None] * 4
        expected = known(keys(1, 4), "CPU", group=0) | known(keys(1, 4), "CPU", group=1)
        reader.wait(TOPIC, expected)


def test_a_real_engine_s_blocks_have_the_hashes_of_its_own_events(tiny, engine_log, start, events):
    """What routers join the two streams by."""
    node, own = start(), set()
    with (
        Published() as published,
        Subscriber(events) as reader,
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
        while len(own) < 31:
            engine.ask(A)  # vLLM publishes in its steps.
            for event in published.stored():
                if event.medium == "GPU":
                    own.update(event.block_hashes)
        [topic] = [t for t in (reader.replay(0) and reader.known) if reader.known[t]]
        assert topic.startswith("kv@n@")
        wait_until(
            lambda: {block[0] for block in reader.update()[topic]} == own, 20, "the same blocks"
        )
