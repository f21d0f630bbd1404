"""The connector's halves and the Python client without an engine. See README.md."""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import types

from common import ForeignLoad, Server, node_command, report, row, wait_until

import numpy as np
import torch

import cairn
from cairn._engine.options import Options
from cairn._engine.store import Store
from cairn.vllm.metadata import LoadJob, Metadata, SaveJob
from cairn.vllm.namespace import Plan
from cairn.vllm.scheduler import SchedulerHalf
from cairn.vllm.weighing import Weighing
from cairn.vllm.worker import WorkerHalf

KIB, MIB = 1 << 10, 1 << 20
SECONDS = 0.5  # The options of a trial of a client.
# The memory of the node. Stores go to a full one whose memory this process has touched, as those of
# `cairn bench`.
CAPACITY = 1 << 30
LAYERS, PAGE, BLOCKS = 30, 98304, 31  # SmolLM2, bfloat16, 128 tokens a block.


def store(node, spec, **options):
    made = Store(Options(address=node.grpc, **options), spec, "bench")
    assert made.wait_open(10)
    return made


def spec_of(model, size, tokens=128):
    return cairn.NamespaceSpec(
        model=model,
        revision="1",
        numerics="bench",
        key_scheme="bench",
        layout=cairn.OpaqueLayout("bench", max_part_bytes=size, block_tokens=tokens),
    )


def wake(repeat):
    """The cost of waking somebody for the process that wakes: a byte for a process that sleeps.
    Seconds, as `lookups` is paced."""
    samples = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as sleeper:
        for _ in range(repeat):
            time.sleep(0.005)
            begin = time.perf_counter()
            os.write(sleeper.stdin.fileno(), b"x")
            samples.append(time.perf_counter() - begin)
        sleeper.stdin.close()
    return samples


def lookups(node, repeat):
    """The cost of a request for the scheduler's thread: asking, and taking the answer."""
    count = 1000
    spec = spec_of("lookup", 1024, 16)
    made = store(node, spec, lookup_timeout=1.0)
    keys = [os.urandom(32) for _ in range(count)]
    assert all(
        made.save(
            [cairn.Part(k, b"x" * 64, parent=p) for k, p in zip(keys, [None, *keys])], [64] * count
        )
    )
    weighing = Weighing(made)
    half = SchedulerHalf(made, Plan(spec, 16, True), reads=True, writes=True, weighing=weighing)
    asked, taken = [], []
    for i in range(repeat):
        request = types.SimpleNamespace(
            request_id=str(i),
            num_tokens=16 * count + 1,
            num_prompt_tokens=16 * count + 1,
            num_preemptions=0,
            block_hashes=list(keys),
            skip_reading_prefix_cache=False,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            pooling_params=None,
        )
        begin = time.perf_counter()
        half.on_new_request(request)
        asked.append(time.perf_counter() - begin)
        wait_until(lambda: half.matched_tokens(request, 0) is not None, 5, "an answer")
        begin = time.perf_counter()
        assert half.matched_tokens(request, 0) == 16 * count
        taken.append(time.perf_counter() - begin)
        half.on_finished(request)
    counts = made.counters.totals()
    woken = wake(repeat)
    rows = [
        row(
            "wake_a_sleeper",
            [1e6 * statistics.median(woken)],
            "us",
            "part of the next row",
            None,
            None,
            None,
        )
    ]
    for name, samples in (("vllm_lookup_ask", asked), ("vllm_lookup_answer", taken)):
        for part, value, goal in (
            ("p50", statistics.median(samples), 50),
            ("p99", statistics.quantiles(samples, n=100)[98], 300),
        ):
            rows.append(
                row(
                    f"{name}_{part}",
                    [1e6 * value],
                    "us",
                    f"{goal} us",
                    goal / (1e6 * value),
                    None,
                    1.0,
                )
            )
    rows.append(
        row(
            "vllm_lookup_node",
            [1e6 * counts["lookup_seconds"] / counts["lookups"]],
            "us",
            "in the background",
            None,
            None,
            None,
        )
    )
    return rows


def transfers(node, repeat):
    """31 blocks between the engine's pages and the node, and numpy's copy of the same pages."""
    size = LAYERS * PAGE
    spec = spec_of("transfer", size)
    made = store(node, spec)
    half = WorkerHalf(made, Plan(spec, 128, True), 0)
    pages = {
        f"layer{i}": torch.randint(0, 255, (2 * BLOCKS + 1, PAGE), dtype=torch.uint8)
        for i in range(LAYERS)
    }
    half.register(pages)
    views = [page.numpy() for page in pages.values()]
    room = np.zeros((BLOCKS, size), np.uint8)
    for _ in range(CAPACITY // (BLOCKS * size) + 2):
        half.start_saves(
            Metadata(
                made.namespace,
                [],
                [SaveJob([os.urandom(32) for _ in range(BLOCKS)], 0, range(BLOCKS), None)],
            )
        )
        assert half.drain(60)
    loads, saves, copies, copies_out = [], [], [], []
    for i in range(repeat + 1):
        keys = [os.urandom(32) for _ in range(BLOCKS)]
        begin = time.perf_counter()
        half.start_saves(Metadata(made.namespace, [], [SaveJob(keys, 0, range(BLOCKS), None)]))
        copied_out = time.perf_counter() - begin
        assert half.drain(60)
        saved = time.perf_counter() - begin
        assert made.exists(keys, deadline=5) == [True] * BLOCKS
        begin = time.perf_counter()
        half.start_loads(
            Metadata(made.namespace, [LoadJob("r", keys, 0, range(BLOCKS, 2 * BLOCKS))])
        )
        while not half.finished(idle=True):
            pass
        loaded = time.perf_counter() - begin
        assert not half.take_bad_blocks()
        begin = time.perf_counter()
        for block in range(BLOCKS):
            for layer, view in enumerate(views):
                room[block, layer * PAGE : (layer + 1) * PAGE] = view[block]
        copied = time.perf_counter() - begin
        for view in views:
            assert (view[BLOCKS : 2 * BLOCKS] == view[:BLOCKS]).all()
            view[BLOCKS : 2 * BLOCKS] = 0
        if i:  # The first round touches memory.
            loads.append(loaded)
            saves.append(saved)
            copies.append(copied)
            copies_out.append(copied_out)
    megabytes = BLOCKS * size / 1e6
    yard = f"numpy's copy, {1e3 * statistics.median(copies):.1f} ms"
    found = []
    for name, samples in (
        ("vllm_load_31_blocks", loads),
        ("vllm_save_31_blocks", saves),
        ("vllm_save_on_engine_thread", copies_out),
    ):
        ratio = statistics.median(copy / sample for copy, sample in zip(copies, samples))
        found.append(
            row(name, [1e3 * s for s in samples], f"ms/{megabytes:.0f}MB", yard, ratio, None, 0.8)
        )
    half.close()
    made.close()
    return found


def cpp(build, what, size, batch):
    """The C++ client at a node of its own: its keys are always the same, so a node can be asked to
    store them once."""
    done = subprocess.run(
        [
            str(a)
            for a in [
                build / "bin/cairn",
                "bench",
                what,
                "--path",
                "local",
                "--size",
                size,
                "--batch",
                batch,
                "--depth",
                1,
                "--data",
                "64MiB",
                "--repeat",
                1,
                "--seconds",
                SECONDS,
                "--json",
                *(["--lookup"] if what == "get" else []),
            ]
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cairn bench {what}: {done.stderr.strip()}")
    return json.loads(done.stdout)["metrics"]["throughput"]["median"]


def python_client(build, work, repeat):
    """The same bytes and calls as `cairn bench --depth 1`, alternating with it, on a node of the
    same capacity."""
    rows = []
    for size, batch, goal in ((MIB, 1, 0.9), (64 * KIB, 16, 0.8)):
        count = 64 * MIB // size
        capacity = 3 * 64 * MIB + count * 8192
        with (
            Server(
                node_command(build, "--host.capacity", str(capacity)), work / f"python{size}.log"
            ) as node,
            cairn.Client(node.grpc) as client,
        ):
            namespace = client.open_namespace(
                spec_of(f"python {size}", size), deadline=10
            ).fingerprint
            data = np.random.default_rng(1).integers(0, 256, (count, size), np.uint8)
            into = np.empty(
                (count, size), np.uint8
            )  # In huge pages, as `cairn bench` has: those of np.zeros would be small.

            def put(keys):
                for i in range(0, count, batch):
                    parts = [
                        cairn.Part(keys[j], data[j], keys[j - 1] if j > i else None)
                        for j in range(i, i + batch)
                    ]
                    assert client.push(namespace, parts, deadline=10) == [None] * batch

            def get(keys):
                for i in range(0, count, batch):
                    assert not client.get(
                        namespace, keys[i : i + batch], into[i : i + batch], lookup_deadline=5
                    ).failed

            def fresh():
                return [os.urandom(32) for _ in range(count)]

            def passes(call, keys_of, check):
                """GB/s over as long a time as the yardstick's, which makes ready and compares
                between its passes too.

                The first pass does not count: this process slept while the yardstick ran, which had
                just touched all of its memory.
                """
                call(keys_of())
                spent, done = 0.0, 0
                while spent < SECONDS:
                    keys = keys_of()
                    into[:] = 0
                    begin = time.perf_counter()
                    call(keys)
                    spent += time.perf_counter() - begin
                    done += 1
                    check()
                return done * count * size / spent / 1e9

            def compare():
                # As `cairn bench` does it. An array of 64 MiB for the answer would take the caches,
                # and new pages, between two passes.
                assert (
                    ctypes.CDLL(None).memcmp(
                        into.ctypes.data_as(ctypes.c_void_p),
                        data.ctypes.data_as(ctypes.c_void_p),
                        ctypes.c_size_t(data.nbytes),
                    )
                    == 0
                )

            for _ in range(capacity // (64 * MIB) + 1):
                put(fresh())
            ratios, samples = {"get": [], "put": []}, {"get": [], "put": []}
            for _ in range(repeat):
                stored = fresh()
                # The node tells uses apart by 17 ms, and would evict the first of these for
                # the last.
                time.sleep(0.02)
                put(stored)
                for what, call, keys_of, check in (
                    ("get", get, lambda: stored, compare),
                    ("put", put, fresh, lambda: None),
                ):
                    yardstick = cpp(build, what, size, batch)
                    speed = passes(call, keys_of, check)
                    samples[what].append(speed)
                    ratios[what].append(speed / yardstick)
        for what in ("get", "put"):
            rows.append(
                row(
                    f"python_{what}_{size // KIB}k_x{batch}",
                    samples[what],
                    "GB/s",
                    "the C++ client",
                    statistics.median(ratios[what]),
                    None,
                    goal,
                )
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out")
    given = parser.parse_args()
    load = ForeignLoad([])
    with (
        tempfile.TemporaryDirectory() as work,
        Server(
            node_command(given.build, "--host.capacity", str(CAPACITY)),
            pathlib.Path(work) / "node.log",
        ) as node,
    ):
        rows = lookups(node, 500) + transfers(node, given.repeat)
    with tempfile.TemporaryDirectory() as work:
        rows += python_client(given.build, pathlib.Path(work), given.repeat)
    report(rows, load.read(), given.out)


if __name__ == "__main__":
    main()
