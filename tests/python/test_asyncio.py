"""Calls that are awaited."""

import asyncio
import os
import time

import pytest

import cairn
from conftest import SLOW, Prompt, connect, opaque_spec


def test_every_call(client, serial):
    async def main():
        async with cairn.AsyncClient(client) as aio:
            spec = opaque_spec()
            opened = await aio.open_namespace(spec)
            assert opened.fingerprint == cairn.fingerprint(spec)
            keys = cairn.block_keys(opened.fingerprint, [serial()] * 32, 16)
            data = [os.urandom(1000), os.urandom(1000)]
            parts = [cairn.Part(keys[0], data[0]), cairn.Part(keys[1], data[1], keys[0], 16)]
            assert await aio.push(opened.fingerprint, parts) == [None, None]
            assert await aio.exists(opened.fingerprint, keys) == [cairn.TierKind.HOST] * 2
            into = [bytearray(1000), bytearray(1000)]
            with await aio.match(opened.fingerprint, keys, deadline=SLOW) as match:
                assert (await aio.fetch(match.lease, into)).prefix == 2
                assert await aio.renew_lease(match.lease, 60.0) > 30
            assert into == data
            again = [bytearray(1000), bytearray(1000)]
            assert (
                await aio.get(opened.fingerprint, keys, again, lookup_deadline=SLOW)
            ).prefix == 2
            assert again == data
            assert (await aio.prefetch(opened.fingerprint, keys, 1.0)).present_blocks == 2
            await aio.flush()
            assert (await aio.stat()).blocks >= 2
            assert aio.stats().pushed_parts == 2
        with pytest.raises(cairn.FailedPreconditionError):
            client.stat()

    asyncio.run(main())


def test_staged_parts_are_stored_when_they_are_committed(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 3, 1000)

    async def main():
        aio = cairn.AsyncClient(client)
        memory = [bytearray(data) for data in prompt.data]
        parts = [
            cairn.Part(p.key, m, p.parent, p.first_position) for p, m in zip(prompt.parts(), memory)
        ]
        async with await aio.stage(prompt.namespace, parts) as staged:
            for block in memory:
                block[:] = bytes(1000)
            assert await aio.exists(prompt.namespace, prompt.keys) == [None] * 3
            assert await staged.commit() == [None] * 3
            with pytest.raises(cairn.FailedPreconditionError, match="committed or dropped"):
                await staged.commit()
        into = [bytearray(1000) for _ in range(3)]
        with await aio.match(prompt.namespace, prompt.keys, deadline=SLOW) as match:
            await aio.fetch(match.lease, into)
        assert into == prompt.data

    asyncio.run(main())


def test_many_at_once(client, serial):
    """100 prompts, each pushed, matched and fetched by a task of its own."""

    async def one(aio, namespace, seed):
        [key] = cairn.block_keys(namespace, [seed] * 16, 16)
        data, into = os.urandom(10000), bytearray(10000)
        assert await aio.push(namespace, [cairn.Part(key, data)]) == [None]
        with await aio.match(namespace, [key], deadline=SLOW) as match:
            await aio.fetch(match.lease, [into])
        assert into == data

    async def main():
        async with cairn.AsyncClient(client) as aio:
            namespace = (await aio.open_namespace(opaque_spec())).fingerprint
            await asyncio.gather(*[one(aio, namespace, serial()) for _ in range(100)])

    asyncio.run(main())


def test_the_loop_goes_on_while_calls_wait(start_node, path):
    """Ten calls to a node that hangs take the time of one, and the loop turns meanwhile."""
    node = start_node()

    async def main():
        async with cairn.AsyncClient(connect(node, path)) as aio:

            async def call():
                begin = time.monotonic()
                with pytest.raises(cairn.Error):
                    await aio.stat(deadline=2.0)
                return begin, time.monotonic()

            node.freeze()
            calls = asyncio.gather(*[call() for _ in range(10)])
            steps = []
            while not calls.done():
                steps.append(time.monotonic())
                await asyncio.sleep(0.001)
            begins, ends = zip(*await calls)
            # While all ten of them wait; how often is a matter of the machine.
            assert any(max(begins) < step < min(ends) for step in steps)
            node.thaw()

    asyncio.run(main())


def test_a_cancelled_fetch_gives_the_memory_back(start_node, serial):
    """The task ends soon, and only when nobody writes into the caller's memory any more."""
    node = start_node()

    async def main():
        client = connect(node, "grpc")
        async with cairn.AsyncClient(client) as aio:
            prompt = Prompt(client, opaque_spec(), serial(), 64, 1 << 20).push(client)
            match = prompt.match(client)
            into = [bytearray(1 << 20) for _ in prompt.keys]
            node.freeze()
            fetch = asyncio.create_task(
                aio.fetch(match.lease, into, progress=600.0, deadline=600.0)
            )
            await asyncio.sleep(0.2)
            assert not fetch.done()
            fetch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetch
            for block in into:
                block.clear()  # BufferError while the fetch has it.
            node.thaw()

    asyncio.run(main())


def test_events(client, serial):
    async def main():
        async with cairn.AsyncClient(client) as aio:
            prompt = Prompt(client, opaque_spec(model=f"async{serial()}"), serial(), 2, 10)
            async with aio.watch(prompt.namespace, snapshot=True) as stream:
                keys, listening = [], asyncio.Event()

                async def read():
                    async for event in stream:
                        if event.kind == cairn.EventKind.SNAPSHOT_END:
                            listening.set()
                        if (
                            event.kind == cairn.EventKind.STORED
                        ):  # And not that the disk has the first one already.
                            keys.append(event.key)
                        if len(keys) == 2:
                            return

                # Until the node listens its events go to nobody.
                reader = asyncio.create_task(read())
                await asyncio.wait_for(listening.wait(), SLOW)
                await aio.push(prompt.namespace, prompt.parts())
                await asyncio.wait_for(reader, SLOW)
                assert keys == prompt.keys

                async def read_on():
                    async for _ in stream:
                        pass

                idle = asyncio.create_task(read_on())
                await asyncio.sleep(0.05)
                idle.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await idle

    asyncio.run(main())
