"""The messages of proto/cairn/v1, for tests that speak gRPC without our clients."""

import functools
import pathlib
import subprocess
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


@functools.cache
def _pool():
    pool = descriptor_pool.DescriptorPool()
    with tempfile.NamedTemporaryFile() as found:
        files = sorted(str(file.relative_to(PROTO)) for file in PROTO.glob("cairn/v1/*.proto"))
        subprocess.run(
            ["protoc", "-I", PROTO, "--include_imports", "-o", found.name, *files], check=True
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(found.read())
    for file in files.file:
        pool.Add(file)
    return pool


def message(name):
    """The class of cairn.v1's message of this name."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"cairn.v1.{name}"))


def call(channel, method, request, answer):
    """Calls METHOD of SERVICE/METHOD, whose answer is a stream of messages of this name."""
    return channel.unary_stream(
        f"/cairn.v1.{method}",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=message(answer).FromString,
    )(request, timeout=120)
