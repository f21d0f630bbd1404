"""The data that peers store and read back: 256 MiB of random bytes, a destination as large, and the
timed loops over them."""

import time

import numpy as np

POOL = 256 << 20


class Data:
    def __init__(self):
        self.source = (
            np.random.default_rng(1).integers(0, 1 << 62, POOL // 8, dtype=np.int64).view(np.uint8)
        )
        self.destination = np.ones(POOL, dtype=np.uint8)

    def verify(self, offset, size):
        """Raises unless the destination holds there what the source does."""
        if not np.array_equal(
            self.destination[offset : offset + size], self.source[offset : offset + size]
        ):
            raise RuntimeError(f"other bytes came back at {offset}")


def timed(calls, seconds, work):
    """work(i) for i below `calls` until `seconds` have passed; the number of calls and the seconds
    they took."""
    begin = time.perf_counter()
    done = 0
    while done < calls:
        work(done)
        done += 1
        if time.perf_counter() - begin > seconds:
            break
    return done, time.perf_counter() - begin


def gigabytes_per_second(data, size, batch, seconds, put, get):
    """Stores all blocks, then reads them back. put(first, count) and get(first, count) move blocks
    [first, first + count)."""
    calls = POOL // size // batch
    stored, put_seconds = timed(calls, seconds, lambda i: put(i * batch, batch))
    data.destination.fill(0)
    read, get_seconds = timed(stored, seconds, lambda i: get(i * batch, batch))
    for i in range(read * batch):
        data.verify(i * size, size)
    moved = size * batch / 1e9
    return {"put": stored * moved / put_seconds, "get": read * moved / get_seconds}


def keys_per_second(keys, batch, seconds, exists):
    """exists(keys) -> how many are there, of calls of `batch` keys."""

    def call(i):
        begin = i * batch % len(keys)
        asked = keys[begin : begin + batch]
        if exists(asked) != len(asked):
            raise RuntimeError("a stored key does not exist")

    calls, took = timed(1 << 30, seconds, call)
    return {"exists": calls * batch / took}
