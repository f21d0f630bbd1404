"""Writes batches of KV events as the engines' own classes encode them, for the tests of the node's
encoder: tests/data/kv_events/batches.txt.

usage: python tests/engines/record_events.py

The classes are taken out of the source of the installed vLLM and SGLang, without importing these.
"""

import ast
import enum
import importlib.util
import pathlib
import sys
import typing

import msgspec

OUT = pathlib.Path(__file__).resolve().parents[1] / "data/kv_events/batches.txt"
SOURCES = {
    "vllm": "distributed/kv_events.py",
    "sglang": "srt/disaggregation/kv_events.py",
}
WANTED = ["EventBatch", "KVCacheEvent", "BlockStored", "BlockRemoved", "AllBlocksCleared"]
TIME = 1234.5
# At each length that a number has in MessagePack.
NUMBERS = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
SIGNED = [0, -1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)]
SIGNED += [127, 128, 2**63 - 1]


def classes_of(engine):
    """The events' classes of an installed engine, by name."""
    folder = pathlib.Path(importlib.util.find_spec(engine).submodule_search_locations[0])
    tree = ast.parse((folder / SOURCES[engine]).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") in WANTED]
    scope = {
        **vars(typing),
        "msgspec": msgspec,
        "enum": enum,
        "ExternalBlockHash": bytes | int,
        "__name__": "recorded",
    }
    exec(compile(tree, str(folder), "exec"), scope)  # noqa: S102  (the installed engine's own)
    return {name: scope[name] for name in WANTED}


def as_arrays(classes):
    """The same classes as engines had them before: events are arrays."""
    made = dict(classes)
    for name in WANTED[2:]:
        fields = [
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(classes[name])
        ]
        made[name] = msgspec.defstruct(name, fields, array_like=True, omit_defaults=True, tag=True)
    return made


def key(number, last=True):
    """A block's key, whose last or first 64 bits are the number."""
    if last:
        return b"\xab" * 24 + number.to_bytes(8, "big")
    return number.to_bytes(8, "big", signed=True) + b"\xcd" * 24


def vllm_batches(c, name):
    """The batches of the test of the encoder (batch_encoder_test.cc), by name."""
    place = {"locality": "REMOTE", "ownership": "cairn"}

    def stored(hashes, medium, size, **more):
        fixed = {"parent_block_hash": None, "token_ids": [], "lora_id": None, "lora_name": None}
        return c["BlockStored"](
            block_hashes=hashes, block_size=size, medium=medium, **fixed, **more, **place
        )

    def removed(hashes, medium, **more):
        return c["BlockRemoved"](block_hashes=hashes, medium=medium, **more, **place)

    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    window = {"group_idx": 3, "kv_cache_spec_kind": "unknown"}
    batches = {
        "nothing": [],
        "cleared": [c["AllBlocksCleared"]()],
        "stored": [stored(NUMBERS, "CPU", 16)],
        "stored_bytes": [stored([key(n) for n in NUMBERS], "STORAGE", 128)],
        "removed": [removed(NUMBERS, "GPU")],
        "removed_bytes": [removed([key(n) for n in NUMBERS], "CPU")],
        "groups": [
            stored([1], "CPU", 300, **full),
            stored([2], "CPU", 70_000, **window),
            removed([3], "STORAGE", group_idx=3),
        ],
        "many": [stored(list(range(1000)), "CPU", 32)],
        "again": [removed([5, 6], "CPU"), stored([5, 6], "CPU", 32)],
    }
    return {
        f"{name}_{what}": c["EventBatch"](ts=TIME, events=events, data_parallel_rank=0)
        for what, events in batches.items()
    }


def sglang_batches(c, name):
    """As above."""

    def stored(hashes, medium, size):
        return c["BlockStored"](
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=[],
            block_size=size,
            lora_id=None,
            medium=medium,
        )

    batches = {
        "stored": [stored(SIGNED, "CPU_PINNED", 64)],
        "removed": [c["BlockRemoved"](block_hashes=SIGNED, medium="DISK")],
        "cleared": [c["AllBlocksCleared"]()],
    }
    return {
        f"{name}_{what}": c["EventBatch"](ts=TIME, events=events, attn_dp_rank=0)
        for what, events in batches.items()
    }


def record():
    """{name: bytes} of all batches."""
    found = {}
    for engine, make in (("vllm", vllm_batches), ("sglang", sglang_batches)):
        classes = classes_of(engine)
        found |= make(classes, f"{engine}_maps")
        found |= make(as_arrays(classes), f"{engine}_arrays")
    return {name: msgspec.msgpack.encode(batch) for name, batch in found.items()}


def recorded():
    """The same, from the file."""
    lines = OUT.read_text(encoding="ascii").splitlines()
    return {name: bytes.fromhex(text) for name, text in map(str.split, lines)}


if __name__ == "__main__":
    OUT.write_text(
        "".join(f"{name} {data.hex()}\n" for name, data in record().items()), encoding="ascii"
    )
    sys.exit(0)
