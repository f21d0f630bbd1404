"""Writes the seeds of the fuzz target engine_events into corpus/engine_events: batches as engines
encode them.

    build/engines/venv/bin/python tests/fuzz/make_engine_events.py

vLLM's and SGLang's own types write the maps of today. The arrays of their earlier versions are
written with msgspec, which both use, from types with the same fields in the same order.
"""

import pathlib
import sys
from typing import Any

import msgspec

OUT = pathlib.Path(__file__).resolve().parent / "corpus/engine_events"
HASH = bytes(range(32))
NUMBER = 0xFEDCBA9876543210


class OldBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class OldEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(OldEvent):
    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None


class BlockRemoved(OldEvent):
    block_hashes: list[Any]
    medium: str | None


class AllBlocksCleared(OldEvent):
    pass


def vllm_now():
    from vllm.distributed import kv_events as vllm

    stored = vllm.BlockStored(
        [HASH, HASH[::-1]], None, list(range(8)), 4, None, "GPU", None, group_idx=0
    )
    stored.kv_cache_spec_kind = "full_attention"
    more = vllm.BlockStored([NUMBER], 17, [300, 70000, 1, 2], 4, None, "GPU", None)
    salted = vllm.BlockStored(
        [1, 2], None, list(range(8)), 4, 3, "CPU", "adapter", extra_keys=[("salt",), None]
    )
    window = vllm.BlockStored([5], None, [1, 2, 3, 4], 4, None, "GPU", None, group_idx=1)
    window.kv_cache_spec_kind, window.kv_cache_spec_sliding_window = "sliding_window", 1024
    below = vllm.BlockStored(
        [NUMBER], None, [], 0, None, "STORAGE", None, locality="REMOTE", ownership="cairn"
    )
    removed = vllm.BlockRemoved([HASH, 7], "GPU", group_idx=0)
    cleared = vllm.AllBlocksCleared()
    return {
        "vllm_stored": vllm.KVEventBatch(1.5, [stored], 0),
        "vllm_all": vllm.KVEventBatch(2.5, [more, salted, window, below, removed, cleared], 1),
        "vllm_empty": vllm.KVEventBatch(3.5, []),
    }


def sglang_now():
    from sglang.srt.disaggregation import kv_events as sglang

    stored = sglang.BlockStored([-5, 6], None, list(range(8)), 4, None, sglang.StorageMedium.GPU)
    salted = sglang.BlockStored([7], 6, [1, 2, 3, 4], 4, None, "CPU_PINNED", "salt", "session")
    removed = sglang.BlockRemoved([-5], "DISK")
    return {
        "sglang_all": sglang.KVEventBatch(
            4.5, [stored, salted, removed, sglang.AllBlocksCleared()], 0
        )
    }


def arrays():
    stored = BlockStored([HASH], NUMBER, [1, 2, 3, 4], 4, None, "GPU")
    longer = BlockStored([1], None, [1, 2, 3, 4], 4, None, "CPU", "adapter", [None], 0)
    signed = BlockStored([-1, 2], -1, list(range(8)), 4, 1, "CPU_PINNED")
    removed = BlockRemoved([HASH, -1], None)
    return {
        "arrays_stored": OldBatch(5.5, [stored]),
        "arrays_all": OldBatch(6.5, [longer, signed, removed, AllBlocksCleared()], 2),
    }


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for make in (vllm_now, sglang_now, arrays):
        try:
            batches = make()
        except ImportError as error:
            sys.exit(f"{make.__name__}: {error}. See tests/engines/README.md for the environment.")
        for name, batch in batches.items():
            (OUT / name).write_bytes(msgspec.msgpack.encode(batch))


if __name__ == "__main__":
    main()
