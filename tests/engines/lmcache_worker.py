"""A worker of LMCache as its configuration makes it, over the connector and without an engine. For
the connector's tests."""

import asyncio
import threading
from types import SimpleNamespace

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend
from lmcache.v1.token_database import ChunkedTokenDatabase

from conftest import wait_until

SHAPE = (2, 2, 256, 4, 32)  # Layers, K and V, tokens, heads, head size.
TOKEN = 2 * 2 * 4 * 32 * 2
CHUNK = 256 * TOKEN
SETTINGS = {"revision": "sha256:0", "engine": "test"}


def config(node, plugin="cairn", extra=None, *, module="cairn.lmcache", **settings):
    """As LMCache reads it from its file; `extra`: LMCache's own settings."""
    prefix = f"remote_storage_plugin.{plugin}."
    values = {
        "module_path": module,
        "class_name": "CairnConnectorAdapter",
        "address": getattr(node, "grpc", node),
        **SETTINGS,
        **settings,
    }
    extra = dict(extra or {})
    found = LMCacheEngineConfig.from_defaults(
        **{
            "chunk_size": 256,
            "local_cpu": False,
            "max_local_cpu_size": 0.05,
            "save_unfull_chunk": True,
            "pre_caching_hash_algorithm": "sha256_cbor",
            "remote_storage_plugins": [plugin],
            "extra_config": {
                **{prefix + k: v for k, v in values.items()},
                **extra.pop("extra_config", {}),
            },
            **extra,
        }
    )
    found.validate()
    return found


def metadata(**changes):
    return LMCacheMetadata(
        **{
            "model_name": "m",
            "world_size": 1,
            "local_world_size": 1,
            "worker_id": 0,
            "local_worker_id": 0,
            "kv_dtype": torch.bfloat16,
            "kv_shape": SHAPE,
            "chunk_size": 256,
            "role": "worker",
            **changes,
        }
    )


class Worker:
    """The parts that LMCache makes of a configuration in a worker: its loop, its memory, its
    backend over the connector."""

    def __init__(self, config, metadata=metadata()):
        self.metadata = metadata
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.tokens = ChunkedTokenDatabase(config, metadata)
        self.local = LocalCPUBackend(config, metadata, "cpu")
        self.backend = RemoteBackend(
            config,
            metadata,
            self.loop,
            self.local,
            "cpu",
            plugin_name=config.remote_storage_plugins[0],
        )
        self.connector = self.backend.connection.getWrappedConnector()

    def keys(self, tokens, configs=None):
        return [key for _, _, key in self.tokens.process_tokens(tokens, request_configs=configs)]

    def objects(self, seed, tokens):
        """Memory of LMCache with random numbers, as its engine makes it for `tokens` tokens."""
        made = []
        for begin in range(0, tokens, 256):
            item = self.local.allocate(
                self.metadata.get_shapes(min(256, tokens - begin)), self.metadata.get_dtypes()
            )
            item.tensor.copy_(
                torch.randn(
                    item.tensor.shape, generator=torch.Generator().manual_seed(seed * 100 + begin)
                )
            )
            made.append(item)
        return made

    def store(self, keys, objects):
        """As LMCache's storage manager: the references are given away."""
        self.backend.batched_submit_put_task(keys, objects)
        for item in objects:
            item.ref_count_down()
        wait_until(lambda: self.in_use() == 0, 20, "the end of the store")

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def in_use(self):
        """Pieces of LMCache's memory that somebody has a reference to."""
        return self.local.memory_allocator.pin_allocator.num_active_allocations

    def take(self, items):
        """Tensors, copied; the references are given back."""
        found = [None if item is None else item.tensor.clone() for item in items]
        for item in items:
            if item is not None:
                assert item.get_ref_count() == 1
                item.ref_count_down()
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.local.memory_allocator.close()


def random_of(seed, tokens):
    """The result of `Worker.objects`, as tensors."""
    return [
        torch.randn(
            (2, 2, min(256, tokens - begin), 128),
            generator=torch.Generator().manual_seed(seed * 100 + begin),
        ).bfloat16()
        for begin in range(0, tokens, 256)
    ]


def equal(found, expected):
    return [f is not None and torch.equal(f, e) for f, e in zip(found, expected)]


def create(config, metadata=metadata()):
    """As LMCache does for each of its remote storage plug-ins."""
    plugin = config.remote_storage_plugins[0]
    return CreateConnector(
        f"plugin://{plugin}",
        asyncio.new_event_loop(),
        SimpleNamespace(),
        config,
        metadata,
        plugin_name=plugin,
    )
