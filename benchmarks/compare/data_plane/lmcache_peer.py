"""LMCache 0.5.6 on a CPU: chunks of KV that another process keeps.

    lmcache_peer.py remote|daemon
    remote: its server lm:// over TCP, through its own connector and into the memory of its own CPU
    backend
    daemon: `lmcache server` with its first level in shared memory, through its own client, one copy
    each way

Only LMCache's part of an engine is missing: the one that gathers pages. Where it has a choice here
the cheaper one is taken: no observability, a quiet log, 16 tokens a chunk instead of 256 (its keys
carry them).
"""

import asyncio
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.update({"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"})

import torch  # noqa: E402  (LMCache reads the environment)
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.multiprocess.custom_types import (
    IPCCacheServerKey,
    RegisterEngineDrivenContextPayload,
)  # noqa: E402
from lmcache.v1.multiprocess.transfer_context import (
    EngineDrivenContextMetadata,
    EngineDrivenContextShm,
)  # noqa: E402
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402
from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402

from child import Child, free_port, serve  # noqa: E402
from data import POOL, Data, gigabytes_per_second  # noqa: E402

CHUNK_TOKENS = 16
TIMEOUT_S = 60


class Remote(Data):
    """The bytes that the connector reads lie where LMCache allocated them: kept until they are
    compared."""

    def __init__(self, directory):
        super().__init__()
        port = free_port()
        self.server = Child(
            [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", port],
            directory / "server.log",
            ready="Server started",
        )
        config = LMCacheEngineConfig.from_defaults(local_cpu=False, max_local_cpu_size=1.0)
        metadata = LMCacheMetadata(
            model_name="m",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.uint8,
            kv_shape=(1, 2, 256, 1, 128),
        )
        self._memory = LocalCPUBackend(config, metadata, "cpu")
        self._loop = asyncio.new_event_loop()
        self._connector = LMCServerConnector("127.0.0.1", port, self._loop, self._memory)
        self._sources, self._read = [], {}

    def begin(self, size):
        self.end()
        self._sources = [
            self._memory.allocate(
                torch.Size([2, 1, 1, size // 2]), torch.uint8, MemoryFormat.KV_2LTD
            )
            for _ in range(POOL // size)
        ]
        for i, item in enumerate(self._sources):
            item.tensor.view(-1).numpy()[:] = self.source[i * size : (i + 1) * size]

    def end(self):
        for item in [*self._sources, *self._read.values()]:
            item.ref_count_down()
        self._sources, self._read = [], {}

    def put(self, size, first, count):
        async def call():
            for i in range(first, first + count):
                await self._connector.put(_key(i), self._sources[i])
            return await self._connector.exists(
                _key(first + count - 1)
            )  # A put has no answer; calls are served in order.

        if not self._loop.run_until_complete(call()):
            raise RuntimeError("a chunk was not stored")

    def get(self, size, first, count):
        async def call():
            for i in range(first, first + count):
                self._read[i * size] = await self._connector.get(_key(i))

        self._loop.run_until_complete(call())

    def verify(self, offset, size):
        self.destination[offset : offset + size] = self._read[offset].tensor.view(-1).numpy()
        super().verify(offset, size)

    def close(self):
        self._loop.run_until_complete(self._connector.close())
        self.server.stop()


def _key(i):
    return CacheEngineKey("m", 1, 0, i, torch.uint8)


class Daemon(Data):
    def __init__(self, directory):
        super().__init__()
        torch.set_num_threads(1)  # Copies with one thread, as everybody here.
        port = free_port()
        self.server = Child(
            [
                pathlib.Path(sys.executable).parent / "lmcache",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                port,
                "--http-host",
                "127.0.0.1",
                "--http-port",
                free_port(),
                "--disable-observability",
                "--supported-transfer-mode",
                "engine_driven",
                "--chunk-size",
                CHUNK_TOKENS,
                "--l1-size-gb",
                "1",
                "--no-l1-use-lazy",
                "--shm-name",
                f"cairn-compare-{os.getpid()}",
                "--eviction-policy",
                "LRU",
            ],
            directory / "server.log",
            {"LMCACHE_LOG_LEVEL": "WARNING"},
        )
        self._client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}")
        self._contexts, self._requests = {}, 0

    def begin(self, size):
        self._client.clear().result(
            timeout=TIMEOUT_S
        )  # The first one waits until the daemon serves.
        if size in self._contexts:
            return
        width = size // 2 // CHUNK_TOKENS
        shape = torch.Size([2, 1, CHUNK_TOKENS, width])
        place = self._client.register_kv_cache_engine_driven_context(
            RegisterEngineDrivenContextPayload(
                instance_id=size,
                model_name=f"m{size}",
                world_size=1,
                block_size=CHUNK_TOKENS,
                num_layers=1,
                hidden_dim_size=width,
                dtype_str="uint8",
                use_mla=False,
                num_physical_slots=CHUNK_TOKENS,
            )
        ).result(timeout=TIMEOUT_S)
        self._contexts[size] = EngineDrivenContextShm(
            EngineDrivenContextMetadata(
                MemoryLayoutDesc(shapes=[shape], dtypes=[torch.uint8]), CHUNK_TOKENS, False
            ),
            self._client,
            TIMEOUT_S,
            place.shm_name,
            place.pool_size,
        )

    def end(self):
        pass

    def _key(self, size, first, count):
        self._requests += 1
        tokens = tuple(range(first * CHUNK_TOKENS, (first + count) * CHUNK_TOKENS))
        return IPCCacheServerKey(
            f"m{size}", 1, 0, tokens, 0, len(tokens), f"r{self._requests}", num_kv_readers=1
        )

    def put(self, size, first, count):
        context, key = self._contexts[size], self._key(size, first, count)
        slots, chunks = context.prepare_store(key, size)
        if chunks != list(range(count)):
            raise RuntimeError(f"LMCache wants chunks {chunks} of {count}")
        for slot, block in zip(slots, _blocks(self.source, size, first, count)):
            slot.view(-1).copy_(block)
        if not context.commit_store(key, size, []):
            raise RuntimeError("a chunk was not stored")
        self._client.end_session(key.request_id)

    def get(self, size, first, count):
        context, key = self._contexts[size], self._key(size, first, count)
        self._client.lookup(key.no_worker_id_version(), 1).result(timeout=TIMEOUT_S)
        found = self._client.wait_prefetch_status(key.request_id, TIMEOUT_S).result(
            timeout=TIMEOUT_S
        )
        if found != count:
            raise RuntimeError(f"LMCache has {found} of {count} chunks")
        slots = context.prepare_retrieve(key, size)
        for slot, block in zip(slots, _blocks(self.destination, size, first, count)):
            block.copy_(slot.view(-1))
        context.commit_retrieve(key, size)
        self._client.end_session(key.request_id)

    def close(self):
        for context in self._contexts.values():
            context.close()
        self._client.close()
        self.server.stop()


def _blocks(array, size, first, count):
    return torch.from_numpy(array[first * size : (first + count) * size]).split(size)


def main():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cairn-lmcache-"))
    store = {"remote": Remote, "daemon": Daemon}[sys.argv[1]](directory)

    def trial(what, size, batch, seconds):
        store.begin(size)
        try:
            return gigabytes_per_second(
                store,
                size,
                batch,
                seconds,
                lambda f, n: store.put(size, f, n),
                lambda f, n: store.get(size, f, n),
            )
        finally:
            store.end()

    try:
        trial("transfer", 1 << 20, 16, TIMEOUT_S)  # Touches the memory of both sides.
        serve([store.server.pid], trial)
    finally:
        store.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
