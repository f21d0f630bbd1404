"""The events of all members of a cluster, over real nodes."""

import threading

import pytest

import cairn
from conftest import SLOW, Prompt, connect, opaque_spec

Kind = cairn.MemberEventKind


def until(events, wanted, last):
    """Events of the kind `wanted`, up to the first of the kind `last`."""
    found = []
    while (event := events.next(SLOW)) is not None:
        if event.kind is wanted:
            found.append(event)
        if event.kind is last:
            return found
    raise AssertionError(f"{last!r} did not come")


def test_a_snapshot_then_what_happens_then_the_loss_of_a_member(start_node, serial):
    node = start_node()
    with connect(node) as client:
        prompt = Prompt(client, opaque_spec(model=f"cluster{serial()}"), serial(), 2, 10)
        prompt.push(client)
        with cairn.ClusterEvents(node.grpc, refresh=0.1, lost_after=3.0) as events:
            begin = events.next(SLOW)
            assert begin is not None
            assert begin.kind is Kind.SNAPSHOT_BEGINS
            assert begin.event is None
            assert begin.address == node.grpc
            stored = until(events, Kind.EVENT, Kind.SNAPSHOT_ENDS)
            assert {e.event.key for e in stored} == set(prompt.keys)
            assert {e.node_id for e in stored} == {begin.node_id}
            assert events.members() == [begin.node_id]
            key = cairn.block_key(prompt.namespace, [1] * 16)
            client.push(prompt.namespace, [cairn.Part(key, prompt.data[0])])
            later = events.next(SLOW)
            assert later is not None
            assert later.event is not None
            assert later.event.key == key
            assert later.event.kind is cairn.EventKind.STORED
            node.kill()
            [lost] = until(events, Kind.MEMBER_LOST, Kind.MEMBER_LOST)
            assert lost.node_id == begin.node_id


def test_a_second_address_helps_where_the_first_is_dead(start_node):
    first = start_node()
    with cairn.ClusterEvents(f"127.0.0.1:1,{first.grpc}", refresh=0.1) as events:
        assert until(events, Kind.SNAPSHOT_BEGINS, Kind.SNAPSHOT_ENDS)[0].address == first.grpc


def test_close_ends_a_next_that_waits():
    events = cairn.ClusterEvents("127.0.0.1:1")
    assert events.next(0.01) is None
    raised = []

    def wait():
        with pytest.raises(cairn.CancelledError):
            events.next()
        raised.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    events.close()
    thread.join(SLOW)
    assert raised == [True]
    events.close()
    with pytest.raises(cairn.CancelledError):
        events.next(0)
    assert events.members() == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"address": ""}, "address"),
        ({"address": "nowhere"}, "address"),
        ({"address": "a:1", "fingerprint": b"short"}, "fingerprint"),
        ({"address": "a:1", "refresh": -1}, "refresh"),
    ],
)
def test_wrong_arguments_are_named(arguments, field):
    with pytest.raises(cairn.InvalidArgumentError, match=field):
        cairn.ClusterEvents(**arguments)
