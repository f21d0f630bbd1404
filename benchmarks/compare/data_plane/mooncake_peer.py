"""Mooncake Store over TCP: a master, a node that owns the memory, and this process as a client
without memory of its own.

    mooncake_peer.py default|pooled     pooled: connections are kept (MC_TCP_ENABLE_CONNECTION_POOL)

A client in the process that owns the memory would copy with memcpy instead of using TCP;
MC_STORE_MEMCPY=0 forbids that too.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import time

KIND = sys.argv[1]
os.environ.update({"MC_FORCE_TCP": "1", "MC_STORE_MEMCPY": "0", "GLOG_minloglevel": "2"})
if KIND == "pooled":
    os.environ["MC_TCP_ENABLE_CONNECTION_POOL"] = "1"

from mooncake.store import MooncakeDistributedStore  # noqa: E402  (reads the environment)

from child import Child, free_port, serve  # noqa: E402
from data import POOL, Data, gigabytes_per_second, keys_per_second  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
LEASE_MS = 2000  # Longer than any call: a busy machine takes a third of a second for 64 MiB.
NODE_BYTES = 3 << 30


def main():
    directory = tempfile.mkdtemp(prefix="cairn-mooncake-")
    port = free_port()
    master_address = f"127.0.0.1:{port}"
    master = Child(
        [
            pathlib.Path(sys.executable).parent / "mooncake_master",
            "--rpc_address=127.0.0.1",
            f"--rpc_port={port}",
            "--rpc_thread_num=2",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={free_port()}",
            f"--default_kv_lease_ttl={LEASE_MS}",
            "--logtostderr",
        ],
        f"{directory}/master.log",
        {"GLOG_minloglevel": "0"},
        ready="Master Admin Metrics",
    )
    node = Child(
        [sys.executable, HERE / "mooncake_node.py", NODE_BYTES, master_address],
        f"{directory}/node.log",
        ready="node ready",
    )
    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master_address) != 0:
        raise RuntimeError("Mooncake: setup failed")
    data = Data()
    for array in (data.source, data.destination):
        if store.register_buffer(array.ctypes.data, array.nbytes) != 0:
            raise RuntimeError("Mooncake: a buffer could not be registered")
    generation = 0
    trials_stored = 0

    def names(first, count):
        return [f"g{generation}_{i}" for i in range(first, first + count)]

    def put(size, first, count):
        places = [data.source.ctypes.data + i * size for i in range(first, first + count)]
        failed = [
            r for r in store.batch_put_from(names(first, count), places, [size] * count) if r != 0
        ]
        if failed:
            raise RuntimeError(f"put answered {failed[0]}")

    def get(size, first, count):
        places = [data.destination.ctypes.data + i * size for i in range(first, first + count)]
        got = store.batch_get_into(names(first, count), places, [size] * count)
        if any(n != size for n in got):
            raise RuntimeError(f"get answered {got}")

    def forget():
        nonlocal trials_stored
        time.sleep((LEASE_MS + 50) / 1000)  # Read keys are leased and cannot be removed before.
        store.remove_all()
        trials_stored = 0

    def exists(keys):
        return sum(r == 1 for r in store.batch_is_exist(keys))

    def trial(what, size=0, batch=1, seconds=0.4):
        nonlocal generation, trials_stored
        if (trials_stored + 2) * POOL > NODE_BYTES:
            forget()
        generation += 1
        trials_stored += 1
        if what == "transfer":
            return gigabytes_per_second(
                data,
                size,
                batch,
                seconds,
                lambda f, n: put(size, f, n),
                lambda f, n: get(size, f, n),
            )
        for first in range(0, 4096, 64):
            put(4096, first, 64)
        return keys_per_second(names(0, 4096), batch, seconds, exists)

    # The node does not touch its memory before it is used: without this the first puts pay for page
    # faults.
    for _ in range(NODE_BYTES // POOL - 2):
        generation += 1
        for first in range(0, POOL >> 20, 16):
            put(1 << 20, first, 16)
    forget()
    try:
        serve([master.pid, node.pid], trial)
    finally:
        store.close()
        node.stop()
        master.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
