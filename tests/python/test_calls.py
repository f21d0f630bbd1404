"""Every call against a real node, over both paths."""

import json
import os
import subprocess
import time

import numpy
import pytest

import cairn
from conftest import BUILD, SLOW, Prompt, connect, native_spec, opaque_spec, wait_until

WHOLE = cairn.Rect(0, 2, 0, 4)


def cells(data, rect):
    """A native block of conftest as layers x planes x heads x rest, and of it a rectangle's
    bytes."""
    grid = numpy.frombuffer(data, numpy.uint8).reshape(2, 2, 4, -1)
    return grid[rect.layer_begin : rect.layer_end, :, rect.head_begin : rect.head_end].tobytes()


def test_native_blocks_come_back_bit_exact(client, path, serial):
    spec = native_spec()
    prompt = Prompt(client, spec, serial(), 5, spec.layout.bytes()).push(client)
    into = [bytearray(spec.layout.bytes()) for _ in prompt.keys]
    with prompt.match(client) as match:
        assert match.miss_reason == cairn.MissReason.NONE
        assert sum(run.blocks for run in match.tiers) == 5
        assert (
            match.lease.held
            and match.lease.blocks == 5
            and match.lease.fingerprint == prompt.namespace
        )
        assert match.lease.expires_in > 20
        fetched = client.fetch(match.lease, into)
    assert not match.lease.held
    assert fetched == cairn.Fetched(prefix=5, failed={}, bytes=sum(map(len, into)))
    assert into == prompt.data
    assert client.stats().path == path


def test_get_brings_what_is_there_and_names_the_rest(client, path, serial):
    spec = native_spec()
    size = spec.layout.bytes()
    prompt = Prompt(client, spec, serial(), 3, size).push(client)
    keys = [*prompt.keys, os.urandom(32), os.urandom(32)]
    into = [bytearray(b"x" * size) for _ in keys]
    fetched = client.get(prompt.namespace, keys, into, lookup_deadline=SLOW)
    assert fetched == cairn.Fetched(
        3, {3: cairn.MissReason.ABSENT, 4: cairn.MissReason.ABSENT}, 3 * size
    )
    assert into[:3] == prompt.data and into[3] == into[4] == b"x" * size
    assert client.get(prompt.namespace, keys[3:], into[3:], lookup_deadline=SLOW).prefix == 0
    [layer] = [bytearray(size // 2)]
    client.get(
        prompt.namespace, keys[:1], [layer], rect=cairn.Rect(1, 2, 0, 4), lookup_deadline=SLOW
    )
    assert layer == prompt.data[0][size // 2 :]
    # The leases are over: nothing that was read is held.
    wait_until(lambda: client.stat().leases == 0, SLOW, "the end of the leases")


def test_get_wants_memory_for_each_key(client, serial):
    prompt = Prompt(client, native_spec(), serial(), 2, native_spec().layout.bytes()).push(client)
    with pytest.raises(
        cairn.InvalidArgumentError,
        match="'into': got memory for 1 blocks, expected one for each of the 2 keys",
    ):
        client.get(prompt.namespace, prompt.keys, [bytearray(16)])
    with pytest.raises(cairn.InvalidArgumentError, match=r"into\[1\].*got 5 bytes"):
        client.get(
            prompt.namespace,
            prompt.keys,
            [bytearray(native_spec().layout.bytes()), bytearray(5)],
            lookup_deadline=SLOW,
        )
    with pytest.raises(cairn.InvalidArgumentError, match="'into': got memory for 16 blocks"):
        client.get(prompt.namespace, prompt.keys, bytearray(16))
    with pytest.raises(cairn.InvalidArgumentError, match=r"into\[0\].*got 1 bytes"):
        client.get(prompt.namespace, prompt.keys, bytearray(2), lookup_deadline=SLOW)
    with pytest.raises(TypeError, match="'into': got dict"):
        client.get(prompt.namespace, prompt.keys, {})


def test_opaque_blocks_of_any_size_come_back_bit_exact(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 3, 0)
    prompt.data = [os.urandom(n) for n in (1, 4097, 1 << 20)]
    prompt.push(client)
    into = [bytearray(len(data)) for data in prompt.data]
    with prompt.match(client) as match:
        client.fetch(match.lease, into)
    assert into == prompt.data


def test_memory_may_be_in_pieces(client, serial):
    """One for each layer, and cut anywhere; on both ways."""
    spec = native_spec()
    size = spec.layout.bytes()
    for scheme in (spec, opaque_spec(size=size)):
        prompt = Prompt(client, scheme, serial(), 3, size)
        cuts = [[size // 2, size // 2], [0, 1, size - 2, 1, 0], [size]]
        pieces = []
        for data, lengths in zip(prompt.data, cuts):
            ends = numpy.cumsum(lengths)
            pieces.append([data[end - n : end] for end, n in zip(ends, lengths)])
        parts = [
            cairn.Part(p.key, d, p.parent, p.first_position) for p, d in zip(prompt.parts(), pieces)
        ]
        assert client.push(prompt.namespace, parts) == [None] * 3
        into = [[bytearray(n) for n in lengths] for lengths in reversed(cuts)]
        with prompt.match(client) as match:
            client.fetch(match.lease, into)
        assert [b"".join(block) for block in into] == prompt.data


def test_ranks_read_what_other_ranks_wrote(client, serial):
    """Two writers by heads; readers of other heads, of one layer, contiguous and not."""
    spec = native_spec()
    prompt = Prompt(client, spec, serial(), 1, spec.layout.bytes())
    [data] = prompt.data
    for rect in (cairn.Rect(0, 2, 0, 2), cairn.Rect(0, 2, 2, 4)):
        part = cairn.Part(prompt.keys[0], cells(data, rect), rect=rect)
        assert client.push(prompt.namespace, [part]) == [None]
    with prompt.match(client) as match:
        for rect in (
            WHOLE,
            cairn.Rect(0, 2, 1, 3),
            cairn.Rect(1, 2, 0, 4),
            cairn.Rect(0, 1, 2, 4),
            cairn.Rect(1, 2, 3, 4),
        ):
            want = cells(data, rect)
            one, two = bytearray(len(want)), [bytearray(3), bytearray(len(want) - 3)]
            assert client.fetch(match.lease, [one], rect=rect).prefix == 1
            client.fetch(match.lease, [two], rect=rect)
            assert one == want, rect
            assert b"".join(two) == want, rect


def test_parts_of_an_opaque_block(client, serial):
    prompt = Prompt(client, opaque_spec(parts=2), serial(), 1, 100)
    rects = [cairn.Rect(0, 1, 0, 1), cairn.Rect(0, 1, 1, 2)]
    datas = [os.urandom(100), os.urandom(70)]
    assert client.push(prompt.namespace, [cairn.Part(prompt.keys[0], datas[0], rect=rects[0])]) == [
        None
    ]
    half = client.match(prompt.namespace, prompt.keys, deadline=SLOW)
    assert (half.matched_blocks, half.miss_reason) == (0, cairn.MissReason.INCOMPLETE)
    assert client.push(prompt.namespace, [cairn.Part(prompt.keys[0], datas[1], rect=rects[1])]) == [
        None
    ]
    with prompt.match(client) as match:
        for rect, data in zip(rects, datas):
            into = bytearray(len(data))
            client.fetch(match.lease, [into], rect=rect)
            assert into == data
        whole = client.fetch(match.lease, [bytearray(170)])
        assert whole.failed == {0: cairn.MissReason.INCOMPLETE}, "no part has that rectangle"


def test_a_range_of_blocks(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 4, 1000).push(client)
    into = [bytearray(1000), bytearray(1000)]
    with prompt.match(client) as match:
        fetched = client.fetch(match.lease, into, first_block=1)
        assert (fetched.prefix, fetched.failed) == (2, {})
        assert into == prompt.data[1:3]
        with pytest.raises(cairn.OutOfRangeError, match="into.*2 blocks from block 3"):
            client.fetch(match.lease, into, first_block=3)
        with pytest.raises(cairn.OutOfRangeError, match="into.*0 blocks"):
            client.fetch(match.lease, [])


def test_a_miss_is_an_answer(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 3, 10)
    match = client.match(prompt.namespace, prompt.keys, deadline=SLOW)
    assert (match.matched_blocks, match.miss_reason, match.lease.held) == (
        0,
        cairn.MissReason.ABSENT,
        False,
    )
    assert client.exists(prompt.namespace, prompt.keys) == [None] * 3
    with pytest.raises(cairn.FailedPreconditionError, match="'lease'"):
        client.fetch(match.lease, [bytearray(10)])


def test_a_statistic_arrives_in_python_and_in_its_metric(node, client, serial):
    before = client.stat()
    Prompt(client, opaque_spec(), serial(), 2, 1000).push(client)
    after = client.stat()
    # With the header of each part.
    assert 2000 < after.pushed_bytes - before.pushed_bytes < 2500
    assert after.blocks == before.blocks + 2
    host = {tier.tier: tier.blocks for tier in after.tiers}[cairn.TierKind.HOST]
    pushed = 'cairn_transfer_bytes_total{src="client",dst="host"}'
    assert node.metric(pushed) == after.pushed_bytes
    assert node.metric("cairn_index_entries") == after.blocks
    assert node.metric('cairn_tier_blocks{tier="host"}') == host


def test_exists_prefetch_flush_and_stat(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 2, 1000).push(client)
    absent = bytes(32)
    assert client.exists(prompt.namespace, [prompt.keys[0], absent]) == [cairn.TierKind.HOST, None]
    hint = client.prefetch(prompt.namespace, [*prompt.keys, absent], needed_in=1.0)
    assert (hint.present_blocks, hint.absent_blocks) == (2, 1)
    client.flush()
    stat = client.stat()
    assert stat.unflushed_bytes == 0
    assert {tier.tier for tier in stat.tiers} == {cairn.TierKind.HOST, cairn.TierKind.DISK}
    assert stat.blocks >= 2 and stat.version and set(stat.misses) <= set(cairn.MissReason)
    asked = client.match(prompt.namespace, prompt.keys, lease=False, deadline=SLOW)
    assert asked.matched_blocks == 2 and not asked.lease.held


def test_a_match_that_is_not_waited_for(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 3, 1000).push(client)
    asked = client.begin_match(
        prompt.namespace, [*prompt.keys, bytes(32)], prefetch_in=1.0, deadline=SLOW
    )
    assert asked.wait(SLOW) and asked.done()
    assert asked.result().matched_blocks == 3 and asked.result().bytes >= 3000
    assert not asked.result().lease.held
    assert asked.prefetch_error() is None and asked.seconds > 0
    many = [
        client.begin_match(prompt.namespace, prompt.keys[: 1 + i % 3], deadline=SLOW)
        for i in range(200)
    ]
    assert [one.result().matched_blocks for one in many] == [1 + i % 3 for i in range(200)]
    with pytest.raises(cairn.InvalidArgumentError, match=r"keys\[0\]"):
        client.begin_match(prompt.namespace, [b"short"])


def test_a_match_that_is_not_waited_for_when_the_node_hangs_or_the_client_closes(
    start_node, path, serial
):
    node = start_node()
    with connect(node, path) as client:
        prompt = Prompt(client, opaque_spec(), serial(), 1, 1000).push(client)
        node.freeze()
        late = client.begin_match(prompt.namespace, prompt.keys, deadline=3)
        assert not late.done() and not late.wait(0.05)
        with pytest.raises(cairn.FailedPreconditionError):
            late.prefetch_error()
        with pytest.raises(cairn.DeadlineExceededError):
            late.result()
        # Two are asked at a time: the others wait, and are refused when the client closes.
        waiting = [client.begin_match(prompt.namespace, prompt.keys, deadline=3) for _ in range(20)]
    assert all(one.done() for one in waiting)
    codes = set()
    for one in waiting:
        with pytest.raises(cairn.Error) as caught:
            one.result()
        codes.add(caught.value.code)
    assert cairn.Code.FAILED_PRECONDITION in codes
    with pytest.raises(cairn.FailedPreconditionError):
        client.begin_match(prompt.namespace, prompt.keys)


def test_what_was_flushed_survives_kill_9(start_node, path, serial, tmp_path):
    first = start_node("--disk.path", str(tmp_path))
    with connect(first, path) as client:
        prompt = Prompt(client, opaque_spec(), serial(), 3, 5000).push(client)
        client.flush()
        first.kill()
    second = start_node("--disk.path", str(tmp_path))
    with connect(second, path) as client:
        client.open_namespace(opaque_spec(), deadline=SLOW)
        into = [bytearray(5000) for _ in prompt.keys]
        with prompt.match(client) as match:
            assert match.tiers[0].tier == cairn.TierKind.DISK
            assert client.fetch(match.lease, into).failed == {}
        assert into == prompt.data


def test_a_push_of_any_size(start_node, path, serial):
    """More than a session may reserve at once."""
    with connect(start_node("--host.capacity", "128MiB"), path) as client:
        prompt = Prompt(client, opaque_spec(), serial(), 40, 1 << 20).push(client)
        into = [bytearray(1 << 20) for _ in range(10)]
        with client.match(prompt.namespace, prompt.keys[:10], deadline=SLOW) as match:
            client.fetch(match.lease, into)
        assert into == prompt.data[:10]


def test_what_was_staged_may_change_and_is_there_after_the_commit(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 3, 3000)
    memory = [[bytearray(data[:1000]), bytearray(data[1000:])] for data in prompt.data]
    staged = client.stage(
        prompt.namespace,
        [part._replace(data=pieces) for part, pieces in zip(prompt.parts(), memory)],
    )
    for first, second in memory:
        first[:], second[:] = bytes(1000), bytes(2000)
    assert client.match(prompt.namespace, prompt.keys, deadline=SLOW).matched_blocks == 0
    assert staged.commit() == [None] * 3
    into = [bytearray(3000) for _ in range(3)]
    with prompt.match(client) as match:
        client.fetch(match.lease, into)
    assert into == prompt.data
    with pytest.raises(cairn.FailedPreconditionError, match="committed or dropped"):
        staged.commit()
    staged.drop()


def test_native_layouts_are_staged_slice_by_slice(client, serial):
    prompt = Prompt(client, native_spec(), serial(), 2, native_spec().layout.bytes())
    with client.stage(prompt.namespace, prompt.parts()) as staged:
        assert staged.commit() == [None, None]
    into = [bytearray(native_spec().layout.bytes()) for _ in range(2)]
    with prompt.match(client) as match:
        client.fetch(match.lease, into)
    assert into == prompt.data


def test_what_is_not_committed_is_not_stored(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 2, 1000)
    with client.stage(prompt.namespace, prompt.parts()) as staged:
        pass
    with pytest.raises(cairn.FailedPreconditionError):
        staged.commit()
    kept = client.stage(prompt.namespace, prompt.parts())
    assert client.match(prompt.namespace, prompt.keys, deadline=SLOW).matched_blocks == 0
    client.close()
    kept.drop()
    with pytest.raises(cairn.FailedPreconditionError, match="closed"):
        kept.commit()


def test_pushing_twice_is_success(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 2, 1000).push(client)
    prompt.push(client)


def test_each_part_has_its_own_answer(client, serial):
    """A part without its parent is stored; one that overlaps a part of another shape is refused or
    known."""
    prompt = Prompt(client, native_spec(), serial(), 2, native_spec().layout.bytes())
    first, second = prompt.parts()
    assert client.push(prompt.namespace, [second]) == [None]
    clash = cairn.Part(
        second.key,
        cells(prompt.data[1], cairn.Rect(0, 2, 0, 2)),
        second.parent,
        16,
        cairn.Rect(0, 2, 0, 2),
    )
    answers = client.push(prompt.namespace, [first, clash])
    assert answers[0] is None
    assert answers[1] is None or isinstance(answers[1], cairn.Error)


def test_leases_end(client, path, serial):
    """Over shared memory only by release and with the client."""
    prompt = Prompt(client, opaque_spec(), serial(), 1, 10).push(client)
    match = prompt.match(client, lease_ttl=5.0)
    assert (match.lease.expires_in <= 5.0) == (path == "grpc")
    assert client.renew_lease(match.lease, 100.0) > 30
    match.lease.release()
    match.lease.release()
    assert match.lease.expires_in == 0
    with pytest.raises(cairn.FailedPreconditionError, match="'lease'"):
        client.renew_lease(match.lease, 1.0)


def leases(client):
    return client.stat().leases


def wait_for_leases(client, count):
    until = time.monotonic() + SLOW
    while leases(client) != count:
        assert time.monotonic() < until, f"{leases(client)} leases, expected {count}"
        time.sleep(0.01)


def test_leases_are_released_by_with_by_release_and_at_collection(start_node, path, serial):
    with connect(start_node(), path) as client:
        prompt = Prompt(client, opaque_spec(), serial(), 1, 10).push(client)
        held = [prompt.match(client) for _ in range(3)]
        wait_for_leases(client, 3)
        with held.pop():
            pass
        wait_for_leases(client, 2)
        held.pop().lease.release()
        wait_for_leases(client, 1)
        held.pop()  # Nobody has it any more.
        wait_for_leases(client, 0)


def test_a_changed_setting_is_told(client):
    client.open_namespace(opaque_spec(model="told", revision="1"))
    opened = client.open_namespace(opaque_spec(model="told", revision="2"))
    assert [(d.field, d.stored, d.requested) for d in opened.differs][:1] == [
        ("revision", "1", "2")
    ]


def test_events(client, serial):
    prompt = Prompt(client, opaque_spec(model=f"events{serial()}"), serial(), 2, 10).push(client)
    with client.watch(prompt.namespace, snapshot=True) as stream:
        snapshot = []
        for event in stream:
            if event.kind == cairn.EventKind.SNAPSHOT_END:
                break
            snapshot.append(event)
        assert {e.key for e in snapshot if e.kind == cairn.EventKind.STORED} == set(prompt.keys)
        assert {e.parent for e in snapshot if e.kind == cairn.EventKind.STORED} == {
            None,
            prompt.keys[0],
        }
        later = Prompt(client, opaque_spec(model="other"), serial(), 1, 10).push(client)
        more = Prompt(client, opaque_spec(), serial(), 1, 10)
        key = cairn.block_key(prompt.namespace, [1] * 16)
        client.push(prompt.namespace, [cairn.Part(key, more.data[0])])
        while (event := stream.next(SLOW)) is not None and event.kind != cairn.EventKind.STORED:
            pass
        assert (
            event is not None
            and event.key == key
            and event.fingerprint == prompt.namespace != later.namespace
        )
        while stream.next(0.0) is not None:  # It may go to the disk by now.
            pass
    with pytest.raises(cairn.CancelledError):
        stream.next(1.0)


def test_shared_memory_is_chosen_by_itself(node, serial):
    with connect(node) as client:
        prompt = Prompt(client, opaque_spec(), serial(), 1, 1000).push(client)
        with prompt.match(client) as match:
            client.fetch(match.lease, [bytearray(1000)])
        stats = client.stats()
        assert (stats.path, stats.path_reason, stats.local_sessions) == ("local", "", 1)
        assert stats.fetched_bytes == 1000 and stats.matches == 1


def test_without_shared_memory_it_is_grpc(start_node, serial):
    with connect(start_node("--local.socket", "off")) as client:
        Prompt(client, opaque_spec(), serial(), 1, 1000).push(client)
        stats = client.stats()
        assert stats.path == "grpc" and stats.path_reason


def test_blocks_may_have_a_life(client, node, serial):
    spec = native_spec(revision=f"life {serial()}")
    for wrong in (0.5, 91 * 86400.0):
        with pytest.raises(cairn.InvalidArgumentError, match="block_life"):
            client.open_namespace(spec, block_life=wrong, deadline=SLOW)
    assert client.open_namespace(spec, block_life=3600.0, deadline=SLOW).fingerprint
    stat = subprocess.run(
        [BUILD / "bin/cairn", "stat", "--cache", node.grpc, "--json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    listed = {ns["revision"]: ns for ns in json.loads(stat.stdout)["namespaces"]}
    assert listed[spec.revision]["block_life_seconds"] == 3600.0
