"""The events that an engine publishes about its KV, read with vLLM's own types."""

import msgspec
import zmq
from vllm.distributed.kv_events import BlockStored, KVEventBatch

from conftest import free_port, wait_until


class Published:
    """The reader of one engine, which is started with `config` as its kv_events_config."""

    def __init__(self):
        port = free_port()
        self.config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{port}",
            "topic": "kv@pod@model",
        }
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._socket.setsockopt_string(zmq.SUBSCRIBE, "kv@")

    def stored(self, seconds=20):
        """The BlockStored events of the next batch and of those that wait behind it."""
        wait_until(lambda: self._socket.poll(100), seconds, "a batch of events")
        events = []
        while self._socket.poll(0):
            topic, _, payload = self._socket.recv_multipart()
            assert topic == b"kv@pod@model"
            events += msgspec.msgpack.decode(payload, type=KVEventBatch).events
        return [event for event in events if isinstance(event, BlockStored)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close(0)
