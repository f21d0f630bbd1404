#!/usr/bin/env python3
"""Prints golden.txt: fingerprints and block keys, derived from docs/inside/formats/keys.md with
hashlib alone.

It shares no code with common/keys; namespace_spec_test.cc holds the same inputs.
  python3 tests/unit/common/keys/golden.py > tests/unit/common/keys/golden.txt
"""

import hashlib
import struct

DTYPES = {"f16": 1, "bf16": 2, "f32": 3, "f8e4m3": 4, "i8": 5}


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v)


def field(v):
    v = v if isinstance(v, bytes) else v.encode()
    return u64(len(v)) + v


def native(block_tokens, kv_heads, rotation, groups):
    out = u32(block_tokens) + u32(1) + u32(kv_heads) + u32(rotation) + u32(len(groups))
    for count, planes in groups:
        out += u32(count) + u32(len(planes))
        for name, heads, dim, dtype in planes:
            out += field(name) + u32(heads) + u32(dim) + u32(DTYPES[dtype])
    return out


def opaque(block_tokens, description, max_part_bytes, parts):
    return u32(block_tokens) + u32(2) + field(description) + u64(max_part_bytes) + u32(parts)


def pooled(block_tokens, description, pools):
    out = u32(block_tokens) + u32(3) + field(description) + u64(0) + u32(0) + u32(len(pools))
    for name, tokens, parts, max_part_bytes, chained in pools:
        out += field(name) + u32(tokens) + u32(parts) + u64(max_part_bytes) + u32(chained)
    return out


def namespace(tenant, salt, model, revision, epoch, layout, recipe, numerics, version, scheme):
    return (
        b"cairn.namespace.v1"
        + field(tenant)
        + field(salt)
        + field(model)
        + field(revision)
        + u64(epoch)
        + layout
        + field(recipe)
        + field(numerics)
        + u32(version)
        + field(scheme)
    )


def fingerprint(encoded):
    return hashlib.sha256(encoded).digest()


def block_key(fp, parent, tokens, extra=b""):
    h = hashlib.sha256(b"cairn.block.v1" + fp + (parent or bytes(32)) + u32(len(tokens)))
    h.update(b"".join(struct.pack("<i", t) for t in tokens))
    h.update(field(extra))
    return h.digest()


def pool_key(unit_key, pool):
    if pool == 0:
        return unit_key
    mask = hashlib.sha256(b"cairn.pool.v1" + u32(pool)).digest()
    return bytes(a ^ b for a, b in zip(unit_key, mask))


def segment_key(fp, parent, end, block):
    return hashlib.sha256(
        b"cairn.segment.v1" + fp + (parent or bytes(32)) + end + u32(block)
    ).digest()


def main():
    kv = lambda heads, dim, dtype: [("k", heads, dim, dtype), ("v", heads, dim, dtype)]
    specs = {
        "gqa": namespace(
            "default",
            b"",
            "SmolLM2-135M-Instruct",
            "sha256:0123",
            0,
            native(64, 3, 1, [(30, kv(3, 64, "f16"))]),
            "raw",
            "cairn-cpu-1",
            1,
            "cairn",
        ),
        "gapped": namespace(
            "team-a",
            b"\x00salt\xff",
            "hybrid",
            "r2",
            7,
            native(16, 8, 2, [(2, kv(8, 128, "bf16")), (3, []), (1, kv(2, 128, "f8e4m3"))]),
            "int8:group=64,sink=0",
            "any",
            1,
            "cairn",
        ),
        "mla": namespace(
            "default",
            b"",
            "mla",
            "main",
            0,
            native(128, 1, 1, [(61, [("latent", 1, 512, "bf16"), ("rope", 1, 64, "f32")])]),
            "raw",
            "x",
            1,
            "cairn",
        ),
        "opaque": namespace(
            "default",
            b"",
            "vendor/model",
            "abc",
            0,
            opaque(256, "engine 1.2, rank 0 of 2, page 16", 4 << 20, 2),
            "raw",
            "cuda-sm90",
            3,
            "vllm-sha256-cbor",
        ),
        "pooled": namespace(
            "default",
            b"",
            "vendor/hybrid",
            "abc",
            0,
            pooled(
                16,
                "engine 1.2, 2 ranks",
                [
                    ("full", 16, 2, 65536, 1),
                    ("window_512", 32, 2, 131072, 0),
                    ("state", 544, 3, 4 << 20, 0),
                ],
            ),
            "raw",
            "cuda-sm90",
            1,
            "vllm-sha256-cbor",
        ),
    }
    for name, encoded in specs.items():
        print("fingerprint", name, fingerprint(encoded).hex())
        print("encoded", name, encoded.hex())
    fp = fingerprint(specs["gqa"])
    root = block_key(fp, None, list(range(16)))
    child = block_key(fp, root, list(range(16, 32)))
    print("key root16", root.hex())
    print("key child16", child.hex())
    print("key child16_adapter", block_key(fp, root, list(range(16, 32)), b"lora:7").hex())
    print("key negative", block_key(fp, None, [-1] * 64).hex())
    print("key long", block_key(fp, None, list(range(600))).hex())
    print("key empty", block_key(fp, None, []).hex())
    for pool in (0, 1, 31):
        print("pool", pool, pool_key(root, pool).hex())
    first = segment_key(fp, None, child, 0)
    last = segment_key(fp, None, child, 1)
    print("segment first", first.hex())
    print("segment last", last.hex())
    print("segment below", segment_key(fp, last, block_key(fp, child, [7] * 16), 0x01020304).hex())


if __name__ == "__main__":
    main()
