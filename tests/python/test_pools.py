"""Namespaces with several KV pools: what is stored in which pool, matches over all of them, and the
bytes of their leases, over gRPC and in place."""

import os

import pytest

import cairn
from conftest import SLOW

FULL, WINDOW, STATE = range(3)
POOLS = [
    cairn.Pool("full", 16, 3000, parts=2, chained=True),
    cairn.Pool("window_48", 32, 5000),
    cairn.Pool("state", 64, 2000, parts=3),
]
NEEDS = [cairn.PoolNeed(FULL), cairn.PoolNeed(WINDOW, 47), cairn.PoolNeed(STATE, 1)]


class Pooled:
    """A prompt with random bytes in every pool."""

    def __init__(self, client, seed, units):
        spec = cairn.NamespaceSpec(
            model="pooled",
            revision="1",
            numerics="test",
            key_scheme="test",
            layout=cairn.PooledLayout("engine", POOLS, block_tokens=16),
        )
        self.client = client
        self.namespace = client.open_namespace(spec, deadline=SLOW).fingerprint
        self.units = cairn.block_keys(self.namespace, [seed] * (16 * units), 16)
        self.keys = [
            cairn.pool_keys(self.units, pool.block_tokens // 16, number)
            for number, pool in enumerate(POOLS)
        ]
        self.data = [
            [[os.urandom(pool.max_part_bytes) for _ in range(pool.parts)] for _ in keys]
            for pool, keys in zip(POOLS, self.keys)
        ]

    def push(self, pool):
        keys = self.keys[pool]
        parts = [
            cairn.Part(
                key,
                data,
                parent=keys[i - 1] if POOLS[pool].chained and i else None,
                rect=cairn.Rect(pool, pool + 1, part, part + 1),
            )
            for i, key in enumerate(keys)
            for part, data in enumerate(self.data[pool][i])
        ]
        assert self.client.push(self.namespace, parts, deadline=SLOW) == [None] * len(parts)

    def match(self, **options):
        options = {"step": 16, "all_lengths": True, "deadline": SLOW} | options
        return self.client.match_pools(self.namespace, self.units, NEEDS, **options)

    def verify(self, match):
        """Every byte of every part that the lease has."""
        first = 0
        for run in match.pool_runs:
            pool = POOLS[run.pool]
            for part in range(pool.parts):
                into = [bytearray(pool.max_part_bytes) for _ in range(run.blocks)]
                fetched = self.client.fetch(
                    match.lease,
                    into,
                    first_block=first,
                    rect=cairn.Rect(run.pool, run.pool + 1, part, part + 1),
                    progress=SLOW,
                    deadline=SLOW,
                )
                assert fetched.prefix == run.blocks, (run, fetched)
                for i, got in enumerate(into):
                    assert got == self.data[run.pool][run.first_block + i][part], (run, i, part)
            first += run.blocks
        assert first == match.matched_blocks


def test_the_longest_length_is_leased_and_every_byte_comes_back(client, serial):
    prompt = Pooled(client, serial(), 14)
    prompt.push(FULL)
    prompt.push(WINDOW)
    with prompt.match() as match:
        assert (match.restorable_tokens, match.limiting_pool, match.lengths) == (0, STATE, [])
        assert not match.lease.held
    prompt.push(STATE)
    with prompt.match() as match:
        assert match.restorable_tokens == 192
        assert match.lengths == [64, 128, 192]
        assert match.pool_runs == [(FULL, 0, 12), (WINDOW, 4, 2), (STATE, 2, 1)]
        assert match.limiting_pool is None
        assert match.miss_reason == cairn.MissReason.NONE
        prompt.verify(match)


def test_lengths_have_a_step_and_a_limit(client, serial):
    prompt = Pooled(client, serial(), 16)
    for pool in (FULL, WINDOW, STATE):
        prompt.push(pool)
    with prompt.match(step=128, most=255) as match:
        assert (match.restorable_tokens, match.lengths) == (128, [128])
        prompt.verify(match)
    with prompt.match(step=128, all_lengths=False, lease=False) as match:
        assert (match.restorable_tokens, match.lengths) == (256, [])
        assert not match.lease.held


def test_what_is_wrong_is_named(client, serial):
    prompt = Pooled(client, serial(), 8)
    with pytest.raises(cairn.InvalidArgumentError, match="'step_tokens': got 24"):
        prompt.match(step=24)
    with pytest.raises(cairn.InvalidArgumentError, match="'most_tokens': got 129"):
        prompt.match(most=129)
    with pytest.raises(ValueError, match="step: got 0"):
        prompt.match(step=0)
    with pytest.raises(TypeError, match=r"'pools\[0\]': got int, expected a PoolNeed"):
        client.match_pools(prompt.namespace, prompt.units, [3], step=16)
    with pytest.raises(cairn.InvalidArgumentError, match="'pools': got none"):
        client.match_pools(prompt.namespace, prompt.units, [], step=16)
    with pytest.raises(cairn.InvalidArgumentError, match="pools"):
        client.match_pools(
            prompt.namespace, prompt.units, [cairn.PoolNeed(0)] * 65536, step=16, deadline=SLOW
        )
    part = cairn.Part(prompt.keys[STATE][0], b"x")
    with pytest.raises(TypeError, match=r"parts\[0\].rect'.*None.*the Rect of a pool"):
        client.push(prompt.namespace, [part])
    for rect, text in (
        (cairn.Rect(1, 2, 1, 2), "'window_48' has layer 1 and 1 heads"),
        (cairn.Rect(0, 2, 0, 1), "'full' has layer 0 and 2 heads"),
    ):
        with pytest.raises(cairn.InvalidArgumentError, match=text):
            client.push(prompt.namespace, [part._replace(rect=rect)])


def test_a_key_belongs_to_one_pool(client, serial):
    prompt = Pooled(client, serial(), 8)
    prompt.push(STATE)
    part = cairn.Part(prompt.keys[STATE][0], b"x" * 5000, rect=cairn.Rect(1, 2, 0, 1))
    (error,) = client.push(prompt.namespace, [part], deadline=SLOW)
    assert isinstance(error, cairn.InvalidArgumentError)


def test_events_name_the_pool(client, serial):
    """Those of a snapshot, and those that come after it."""
    prompt = Pooled(client, serial(), 4)
    prompt.push(FULL)
    prompt.push(WINDOW)
    wanted = {key: pool for pool, keys in enumerate(prompt.keys) for key in keys}
    seen = {}
    with client.watch(prompt.namespace, snapshot=True) as events:
        for event in events:
            if event.kind == cairn.EventKind.SNAPSHOT_END:
                assert set(seen.values()) == {FULL, WINDOW}
                prompt.push(STATE)
            if event.kind == cairn.EventKind.STORED and event.key in wanted:
                seen[event.key] = event.pool
            if len(seen) == len(wanted):
                break
    assert seen == wanted
