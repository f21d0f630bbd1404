"""Clients that push at once into a node of little memory wait for each other."""

import concurrent.futures
import contextlib
import itertools

import pytest
from conftest import Prompt, connect, opaque_spec

PUSHES = 8
SIZE = 8 << 20


@pytest.mark.parametrize("connections", [1, PUSHES])
def test_pushes_at_once_wait_where_memory_is_small(start_node, serial, connections):
    # What gRPC may receive at a time: 12 MiB, and 64 MiB come.
    node = start_node("--rpc.memory", "32MiB", "--host.capacity", "1GiB")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(node, "grpc")) for _ in range(connections)]
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(PUSHES))
        for _ in range(5):
            work = [
                (client, Prompt(client, opaque_spec(size=SIZE), serial(), 1, SIZE))
                for client in itertools.islice(itertools.cycle(clients), PUSHES)
            ]
            pushes = [
                threads.submit(client.push, prompt.namespace, prompt.parts())
                for client, prompt in work
            ]
            # One that is broken off says so instead.
            assert [push.result() for push in pushes] == [[None]] * PUSHES
