"""The remote storage of LMCache's in-process mode behind LMCache's own backend, keys and memory,
without an engine."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from lmcache.v1.health_monitor.checks.remote_backend_check import RemoteBackendHealthCheck
from lmcache.v1.memory_management import BytesBufferMemoryObj

import cairn
from conftest import HERE, Counts, stored, timed, wait_until
from engine import numbers
from lmcache_worker import CHUNK, TOKEN, Worker, config, equal, metadata, random_of


def test_chunks_come_back_in_another_worker(start_node):
    """By every call that LMCache has for it; the last chunk of the text is a short one."""
    node, text, expected = start_node(), numbers(1, 700), random_of(1, 700)
    with Counts(node) as counts:
        with Worker(config(node)) as one:
            keys = one.keys(text)
            assert len(keys) == 3 and one.backend.batched_contains(keys) == 0
            one.store(keys, one.objects(1, 700))
            assert counts.blocks() == 3
        with Worker(config(node)) as two:
            keys = two.keys(text)
            assert two.backend.batched_contains(keys) == 3
            assert two.run(two.backend.batched_async_contains("id", keys, pin=True)) == 3
            assert all(two.backend.contains(key) for key in keys) and two.connector.exists_sync(
                keys[1]
            )
            assert counts.since()["fetched_bytes"] == 0
            size = 2 * stored(CHUNK) + stored(188 * TOKEN)
            assert equal(two.take(two.backend.batched_get_blocking(keys)), expected) == [True] * 3
            assert counts.since()["fetched_bytes"] == size
            assert (
                equal(two.take(two.run(two.backend.batched_get_non_blocking("id", keys))), expected)
                == [True] * 3
            )
            assert (
                equal(two.take([two.backend.get_blocking(key) for key in keys]), expected)
                == [True] * 3
            )
            assert counts.since()["fetched_bytes"] == 3 * size
            assert two.in_use() == 0
            assert not two.backend.remove(keys[0]) and two.run(two.connector.list()) == []
            assert two.backend.batched_contains(keys) == 3
            assert (
                two.connector.counters()["loaded_blocks"] == 9
                and two.connector.counters()["internal_errors"] == 0
            )


def test_single_stores_and_text_that_goes_on_differently(start_node):
    node = start_node()
    with Worker(config(node)) as one:
        text = numbers(2, 1024)
        keys, items = one.keys(text), one.objects(2, 1024)
        for i in (0, 1, 3):
            one.backend.submit_put_task(keys[i], items[i]).result(10)
        for item in items:
            item.ref_count_down()
        assert one.backend.batched_contains(keys) == 2
        assert equal(one.take(one.backend.batched_get_blocking(keys)), random_of(2, 1024)) == [
            True,
            True,
            False,
            False,
        ]
        assert len(one.take(one.run(one.backend.batched_get_non_blocking("id", keys)))) == 2
        assert one.backend.get_blocking(keys[2]) is None
        assert equal(one.take([one.backend.get_blocking(keys[3])]), random_of(2, 1024)[3:]) == [
            True
        ]
        other = one.keys(text[:512] + numbers(3, 512))
        assert other[:2] == keys[:2] and one.backend.batched_contains(other) == 2
        assert one.backend.batched_contains([]) == 0 and one.backend.batched_get_blocking([]) == []
        assert one.in_use() == 0


def test_what_chunks_depend_on_separates_them(start_node):
    node, text = start_node(), numbers(4, 256)
    with Worker(config(node)) as one:
        one.store(one.keys(text), one.objects(4, 256))
        assert one.backend.batched_contains(one.keys(text)) == 1
        # LMCache's own text is the same for the last two.
        for tags in ({"user": "a"}, {"user": "b"}, {"user": "a@b%c"}, {"user": "a", "b": "c"}):
            tags = {f"lmcache.tag.{name}": value for name, value in tags.items()}
            assert one.backend.batched_contains(one.keys(text, tags)) == 0
            one.store(one.keys(text, tags), one.objects(4, 256))
        assert one.backend.batched_contains(one.keys(text, {"lmcache.other": "a"})) == 1
    different = [
        ({"revision": "sha256:1"}, {}),
        ({"engine": "other"}, {}),
        ({"weight_epoch": 1}, {}),
        ({"salt": "s"}, {}),
        ({"tenant": "t"}, {}),
        ({"extra": {"pre_caching_hash_algorithm": "sha256"}}, {}),
        ({}, {"model_name": "n"}),
        ({}, {"worker_id": 1}),
        ({}, {"world_size": 2}),
        ({}, {"kv_dtype": torch.float16}),
        ({}, {"kv_shape": (4, 2, 256, 2, 32)}),
        ({}, {"kv_shape": (4, 1, 256, 4, 32), "use_mla": True}),
    ]
    for settings, changes in different:
        with Worker(config(node, **settings), metadata(**changes)) as other:
            assert other.backend.batched_contains(other.keys(text)) == 0, (settings, changes)
    with Worker(config(node)) as same_again:
        assert same_again.backend.batched_contains(same_again.keys(text)) == 1


def test_processes_whose_hashes_differ_share_nothing():
    """The beginning of LMCache's chunk hashes depends on PYTHONHASHSEED."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from lmcache_worker import *\n"
        "from cairn.lmcache.namespace import hash_scheme\n"
        "for name in ('sha256_cbor', 'builtin'):\n"
        "    c = config('x', extra={'pre_caching_hash_algorithm': name}); "
        "d = ChunkedTokenDatabase(c, metadata())\n"
        "    print('found', hash_scheme(c), "
        "[k for *_, k in d.process_tokens([1] * 256, make_key=False)])"
    )

    def schemes(seed):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        done = subprocess.run(
            [sys.executable, "-c", program, str(HERE)],
            env={**environment, **({"PYTHONHASHSEED": seed} if seed else {})},
            capture_output=True,
            text=True,
            check=True,
        )
        return [
            line.split()[1:] for line in done.stdout.splitlines() if line.startswith("found")
        ], done.stderr

    (zero, log), (again, _), (one, _), (none, _), (also_none, _) = (
        schemes(seed) for seed in ("0", "0", "1", None, None)
    )
    assert (
        zero == again
        and len({zero[0][0], one[0][0], none[0][0]}) == 3
        and len({zero[1][0], one[1][0], none[1][0]}) == 3
    )
    # Without a seed only vLLM's hashes are the same everywhere.
    assert none[0] == also_none[0] and none[1][0] != also_none[1][0]
    for left, right in ((zero, one), (none, also_none)):
        for (scheme, hashes), (other_scheme, other_hashes) in zip(left, right):
            assert (scheme == other_scheme) == (hashes == other_hashes)
    assert "cairn: chunks are named by Python's own hash" in log


def test_a_dead_a_hung_and_a_restarted_node_are_misses(start_node, tmp_path):
    node = start_node("--disk.path", str(tmp_path))
    text = numbers(5, 512)
    with Worker(config(node, load_timeout=1.0, save_timeout=1.0)) as one:
        keys = one.keys(text)
        one.store(keys, one.objects(5, 512))
        with Counts(node) as counts:
            counts.flush()
        node.freeze()
        begin = time.monotonic()
        pulses = []
        one.loop.call_soon_threadsafe(pulse, one.loop, pulses)
        assert one.backend.batched_contains(keys) == 0 and not one.backend.contains(keys[0])
        assert one.backend.batched_get_blocking(keys) == [None] * 2
        assert one.run(one.backend.batched_get_non_blocking("id", keys)) == []
        one.store(one.keys(numbers(6, 512)), one.objects(6, 512))
        assert time.monotonic() - begin < 10
        # LMCache's loop went on all the while.
        assert len(pulses) > 5 and max(b - a for a, b in zip(pulses, pulses[1:])) < 0.5
        node.kill()
        assert one.backend.batched_contains(keys) == 0 and one.backend.get_blocking(keys[0]) is None
        one.store(one.keys(numbers(6, 512)), one.objects(6, 512))
        start_node("--listen", node.grpc, "--disk.path", str(tmp_path))
        wait_until(lambda: one.backend.batched_contains(keys) == 2, 30, "the node's return")
        assert (
            equal(one.take(one.backend.batched_get_blocking(keys)), random_of(5, 512)) == [True] * 2
        )
        counters = one.connector.counters()
        assert (
            counters["internal_errors"] == 0
            and counters["failed_save_blocks"] == 4
            and counters["lookup_failures"] > 0
        )
        assert one.in_use() == 0


def pulse(loop, times):
    times.append(time.monotonic())
    loop.call_later(0.02, pulse, loop, times)


def test_a_node_that_starts_later_is_found(start_node):
    node = start_node()
    address = node.grpc
    node.kill()
    with Worker(config(address)) as one:
        keys = one.keys(numbers(7, 256))
        assert one.backend.batched_contains(keys) == 0
        start_node("--listen", address)
        wait_until(
            lambda: (
                (one.store(keys, one.objects(7, 256)), one.backend.batched_contains(keys))[1] == 1
            ),
            30,
            "the node",
        )


def test_a_full_node_stores_nothing_and_fails_nothing(start_node):
    node = start_node("--host.capacity", "16MiB")
    with Worker(config(node)) as one, cairn.Client(node.grpc) as client:
        # All that is there is leased, so nothing makes room.
        held = []
        for seed in range(20):
            keys = one.keys(numbers(800 + seed, 1024))
            one.store(keys, one.objects(8, 1024))
            held.append(
                client.match(
                    one.connector._store.namespace, one.connector._names.to_load(keys), deadline=5.0
                )
            )
        counters = one.connector.counters()
        assert (
            counters["failed_save_blocks"] > 0
            and counters["saved_blocks"] > 0
            and counters["internal_errors"] == 0
        )
        first = one.keys(numbers(800, 1024))
        assert (
            equal(one.take(one.backend.batched_get_blocking(first)), random_of(8, 1024))
            == [True] * 4
        )
        for match in held:
            match.lease.release()


def test_more_than_the_buffer_takes_is_dropped(start_node):
    node = start_node()
    with Worker(config(node, save_buffer=3 * CHUNK)) as one:
        one.store(one.keys(numbers(9, 1024)), one.objects(9, 1024))
        assert one.connector.counters()["dropped_save_blocks"] == 4
        one.store(one.keys(numbers(9, 768)), one.objects(9, 768))
        assert one.connector.counters()["saved_blocks"] == 3


def test_memory_that_is_full_is_a_miss(start_node):
    node = start_node()
    with Worker(config(node)) as one:
        keys = one.keys(numbers(10, 1024))
        one.store(keys, one.objects(10, 1024))
        taken = []
        while (
            item := one.local.allocate(
                one.metadata.get_shapes(), one.metadata.get_dtypes(), busy_loop=False
            )
        ) is not None:
            taken.append(item)
        found, seconds = timed(lambda: one.backend.batched_get_blocking(keys))
        assert found == [None] * 4 and 0.9 < seconds < 3
        # Chunks for which there is room come, from the first one on, also when the room comes late.
        threading.Timer(0.3, lambda: [taken.pop().ref_count_down() for _ in range(2)]).start()
        assert equal(one.take(one.backend.batched_get_blocking(keys)), random_of(10, 1024)) == [
            True,
            True,
            False,
            False,
        ]
        for item in taken:
            item.ref_count_down()
        assert one.in_use() == 0


def test_calls_that_lmcache_gives_up_keep_their_memory_until_they_end(
    start_node, monkeypatch, caplog
):
    """LMCache cancels a load after its own timeout, and gives back the memory of a store that it no
    longer waits for."""
    node = start_node()
    with Worker(config(node, extra={"blocking_timeout_secs": 1})) as one:
        keys = one.keys(numbers(11, 512))
        one.store(keys, one.objects(11, 512))
        store, gate, entered = one.connector._store, threading.Event(), threading.Event()
        load = store.load
        monkeypatch.setattr(
            store, "load", lambda *a, **k: (entered.set(), gate.wait(20), load(*a, **k))[2]
        )
        assert one.backend.batched_get_blocking(keys) == [None] * 2
        assert entered.is_set() and one.in_use() == 2
        gate.set()
        wait_until(lambda: one.in_use() == 0, 10, "the memory of a load that nobody waits for")
        monkeypatch.undo()

        gate, entered, save, seen = threading.Event(), threading.Event(), store.save, []
        monkeypatch.setattr(
            store,
            "save",
            lambda parts, sizes: (entered.set(), gate.wait(20), seen.append(save(parts, sizes))),
        )
        new, items = one.keys(numbers(12, 512)), one.objects(12, 512)
        job = asyncio.run_coroutine_threadsafe(
            one.backend.connection.batched_put(new, items), one.loop
        )
        assert entered.wait(10)
        job.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            job.result(10)
        one.run(asyncio.sleep(0.1))
        # LMCache's reference has gone with its task.
        assert [item.get_ref_count() for item in items] == [1, 1] and one.in_use() == 2
        gate.set()
        wait_until(lambda: one.in_use() == 0, 10, "the memory of a store that nobody waits for")
        assert seen == [[True, True]]
        # Python's collector would give memory back as well, and LMCache says so.
        assert "garbage collected" not in caplog.text
        monkeypatch.undo()
        assert (
            equal(one.take(one.backend.batched_get_blocking(new)), random_of(12, 512)) == [True] * 2
        )


def test_wrong_bytes_under_a_right_checksum_are_what_comes_back(start_node):
    """So bytes come from the node, and from nowhere else."""
    node = start_node()
    with Worker(config(node)) as one, cairn.Client(node.grpc) as client:
        keys = one.keys(numbers(13, 512))
        names = one.connector._names.to_load(keys)
        client.open_namespace(one.connector._store.spec, deadline=10.0)
        wrong = [torch.full((2, 2, 256, 128), float(i)).bfloat16() for i in range(2)]
        parts = [
            cairn.Part(name, item.view(torch.uint8).numpy().reshape(-1))
            for name, item in zip(names, wrong)
        ]
        assert client.push(one.connector._store.namespace, parts) == [None] * 2
        one.store(keys, one.objects(13, 512))  # Is there, so nothing changes.
        assert equal(one.take(one.backend.batched_get_blocking(keys)), wrong) == [True] * 2
        # A size that no chunk has.
        short = one.keys(numbers(14, 256))
        assert client.push(
            one.connector._store.namespace,
            [cairn.Part(one.connector._names.to_load(short)[0], bytes(1000))],
        ) == [None]
        assert one.backend.batched_get_blocking(short) == [None] and one.in_use() == 0


def test_what_is_no_chunk_is_not_stored(start_node):
    with Worker(config(start_node())) as one:
        keys = one.keys(numbers(15, 512))
        [good, _] = items = one.objects(15, 512)
        items[1].ref_count_down()
        one.run(
            one.backend.connection.batched_put(keys, [good, BytesBufferMemoryObj(b"x" * CHUNK)])
        )
        assert one.backend.batched_contains(keys) == 1 and not one.backend.contains(keys[1])
        assert one.connector.counters()["failed_save_blocks"] == 1 and one.in_use() == 0


def test_bugs_of_ours_are_misses(start_node, monkeypatch):
    with Worker(config(start_node())) as one:
        keys = one.keys(numbers(16, 256))
        one.store(keys, one.objects(16, 256))
        monkeypatch.setattr(one.connector._memory, "allocate", lambda found: 1 / 0)
        assert one.backend.batched_get_blocking(keys) == [None]
        monkeypatch.setattr(one.connector, "_names", None)
        assert one.backend.batched_contains(keys) == 0 and one.backend.get_blocking(keys[0]) is None
        monkeypatch.setattr(one.connector._saver, "_names", None)
        one.store(keys, one.objects(16, 256))
        assert one.connector.counters()["internal_errors"] == 4
        monkeypatch.undo()
        assert equal(one.take(one.backend.batched_get_blocking(keys)), random_of(16, 256)) == [True]
        one.run(one.connector.close())
        one.run(one.connector.close())
        assert one.backend.batched_contains(keys) == 0 and one.backend.batched_get_blocking(
            keys
        ) == [None]
        one.store(keys, one.objects(16, 256))
        assert one.in_use() == 0


def test_lmcache_s_health_check(start_node):
    """It stores other bytes under one key each time, and wants them back. It pings only where it
    then goes on with its own memory."""
    node = start_node()
    with Worker(config(node, load_timeout=0.5, save_timeout=0.5)) as one:
        check = RemoteBackendHealthCheck(one.backend)
        assert check.check() and not one.connector.support_ping()
        for fill in (1, 2):
            [item] = one.objects(
                fill, 256
            )  # The next allocation has this memory, with these bytes.
            item.ref_count_down()
            assert check._put_and_get_check()
        node.freeze()
        assert check.check() and not check._put_and_get_check()
        assert one.in_use() == 0
        node.thaw()
    with Worker(
        config(node, load_timeout=0.5, extra={"extra_config": {"fallback_policy": "local_cpu"}})
    ) as one:
        check = RemoteBackendHealthCheck(one.backend)
        assert check.check() and one.connector.support_ping()
        node.freeze()
        assert not check.check()
        node.thaw()
        wait_until(check.check, 30, "the node's answer")
