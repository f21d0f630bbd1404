"""Stores a block at a node and reads it back. Tests run this file as the text of a program, also
where this folder is not."""

import os

import cairn

PATIENCE = 120  # Seconds, which only a bug reaches.


def exchange(address, path):
    """`path`: "grpc" or "local", which must be the one that the client takes."""
    layout = cairn.OpaqueLayout("bytes of a test", max_part_bytes=1 << 20)
    spec = cairn.NamespaceSpec(model="wheel", revision=path, numerics="1", layout=layout)
    with cairn.Client(address, path=path) as client:
        namespace = client.open_namespace(spec, deadline=PATIENCE).fingerprint
        [key] = cairn.block_keys(namespace, [*os.urandom(64)], 64)
        stored = os.urandom(300_000)
        answers = client.push(namespace, [cairn.Part(key, stored)], deadline=PATIENCE)
        assert answers == [None], answers
        with client.match(namespace, [key], deadline=PATIENCE) as match:
            assert match.matched_blocks == 1, match
            into = bytearray(len(stored))
            fetched = client.fetch(match.lease, [into], progress=PATIENCE, deadline=PATIENCE)
        assert not fetched.failed and into == stored, fetched
        assert client.stats().path == path, client.stats()
