#!/usr/bin/env python3
"""Moves blocks into tensors of torch in vLLM's shapes with the scatter kernel of a device library,
next to copies of each page: both must bring the same bytes, and their rates are compared.

Usage: torch_pages.py --library PATH [--fake]

--fake: no torch; the fake device's memory stands in for tensors, so only the calls are tried. Rows
go to stdout (probe/rows.h). Exit code 0, or 1 with a message on stderr.
"""

import argparse
import ctypes
import random
import sys
import time

C = ctypes
OK, TABLE_VERSION, SLICES_VERSION = 0, 3, 1
RANK = 180


class Failure(C.Structure):
    _fields_ = (("text", C.c_char * 256),)


class CopyTask(C.Structure):
    _fields_ = (("to", C.c_uint64), ("source", C.c_uint64), ("bytes", C.c_uint64))


# common/device/driver_table.h, in its order.
ENTRIES = [
    "initialize",
    "count",
    "facts",
    "open",
    "memory",
    "allocate",
    "export_memory",
    "import_memory",
    "release_memory",
    "allocate_host",
    "release_host",
    "register_host",
    "unregister_host",
    "create_stream",
    "create_urgent_stream",
    "borrow_stream",
    "destroy_stream",
    "native_stream",
    "create_event",
    "destroy_event",
    "record",
    "wait",
    "query",
    "synchronize",
    "copy",
    "fill",
    "begin_capture",
    "end_capture",
    "launch_graph",
    "destroy_graph",
    "kernels",
]


class DriverTable(C.Structure):
    _fields_ = (
        ("version", C.c_uint32),
        ("bytes", C.c_uint32),
        ("name", C.c_char_p),
        *((entry, C.c_void_p) for entry in ENTRIES),
    )


# kernels/include/cairn/kernels/codec/slice_kernels.h and batch/slice_table.h.
class PageMap(C.Structure):
    _fields_ = (
        ("pieces", C.c_void_p),
        ("piece_count", C.c_int64),
        ("index", C.c_void_p),
        ("blocks", C.c_int64),
        ("stride", C.c_uint64),
        ("piece_bytes", C.c_uint32),
    )


class MovePagesArgs(C.Structure):
    _fields_ = (
        ("pages", PageMap),
        ("blocks", C.c_void_p),
        ("block_stride", C.c_uint64),
        ("bfloat16_pages", C.c_bool),
        ("faults", C.c_void_p),
    )


class SliceTable(C.Structure):
    _fields_ = (
        ("name", C.c_char_p),
        *((e, C.c_void_p) for e in ("encode", "decode", "hash_runs", "gather", "scatter")),
    )


class Library:
    """The driver table of a library of devices, for device 0 and one stream."""

    def __init__(self, path):
        get = C.CDLL(path).cairn_device_driver
        get.restype, get.argtypes = C.POINTER(DriverTable), [C.c_uint32]
        found = get(TABLE_VERSION)
        if not found or found.contents.bytes != C.sizeof(DriverTable):
            raise SystemExit(f"{path}: its table is not of version {TABLE_VERSION}")
        self.table = found.contents
        self.call("initialize")
        self.call("open", C.c_uint32(0))
        self.stream, self.event = C.c_void_p(), C.c_void_p()
        self.call("create_stream", C.c_uint32(0), C.byref(self.stream))
        self.call("create_event", C.c_uint32(0), C.byref(self.event))
        native = C.CFUNCTYPE(C.c_void_p, C.c_void_p)(self.table.native_stream)
        self.native = native(self.stream)
        table = C.POINTER(SliceTable)()
        self.call("kernels", C.c_uint32(0), b"slices", C.c_uint32(SLICES_VERSION), C.byref(table))
        scatter = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p)(table.contents.scatter)
        self.scatter = lambda args: expect(scatter(self.native, C.addressof(args)), "scatter")

    def call(self, entry, *arguments):
        """A function of the table, whose last argument tells of a failure."""
        failure = Failure()
        types = [type(argument) for argument in arguments]
        types = [C.c_char_p if t is bytes else C.c_void_p if t is type(C.byref(failure)) else t
                 for t in types]  # fmt: skip
        function = C.CFUNCTYPE(C.c_int, *types, C.c_void_p)(getattr(self.table, entry))
        expect(function(*arguments, C.addressof(failure)), entry, failure.text.decode())

    def copy(self, tasks):
        self.call("copy", self.stream, b"pages", C.byref(tasks), C.c_uint64(len(tasks)))

    def finish(self):
        self.call("record", self.stream, self.event)
        self.call("synchronize", self.event)


def expect(code, what, text=""):
    if code != OK:
        raise SystemExit(f"{what}: error {code} {text}")


class FakeTensors:
    """Memory of the fake device, which this process sees at its addresses."""

    def __init__(self, library):
        self.library = library

    def empty(self, size):
        memory, address = C.c_void_p(), C.c_uint64()
        size = (size + 65535) // 65536 * 65536
        self.library.call("allocate", C.c_uint32(0), C.c_uint64(size), C.c_uint32(0),
                          C.byref(memory), C.byref(address))  # fmt: skip
        return address.value, size

    def fill(self, tensor, seed):
        content = random.Random(seed).randbytes(tensor[1])
        C.memmove(tensor[0], content, len(content))

    def address(self, tensor):
        return tensor[0]

    def content(self, tensor):
        return C.string_at(*tensor)


class TorchTensors:
    def __init__(self):
        import torch

        self.torch = torch

    def empty(self, size):
        return self.torch.zeros(size, dtype=self.torch.uint8, device="cuda:0")

    def fill(self, tensor, seed):
        self.torch.manual_seed(seed)
        tensor.random_(0, 256)
        self.torch.cuda.synchronize()

    def address(self, tensor):
        return tensor.data_ptr()

    def content(self, tensor):
        return tensor.cpu().numpy().tobytes()


def seconds(library, run, tiny):
    """The time of one call: the median of five rounds of as many as last 50 ms."""

    def round_of(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        library.finish()
        return (time.perf_counter() - begin) / calls

    once = round_of(1)
    if tiny:
        return once
    calls = max(1, min(2000, int(0.05 / round_of(1))))
    return sorted(round_of(calls) for _ in range(5))[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--fake", action="store_true")
    args = parser.parse_args()
    tensors = None if args.fake else TorchTensors()
    if tensors:
        tensors.torch.cuda.init()
    library = Library(args.library)
    tensors = tensors or FakeTensors(library)

    # vLLM keeps keys and values of a layer in one tensor [2, blocks, 16, 8, 128] of 16-bit numbers:
    # a layer has two pieces of a block, of 32 KiB each.
    layers, blocks, loaded, piece = (2, 8, 3, 1024) if args.fake else (32, 1024, 256, 32 << 10)
    caches = [tensors.empty(2 * blocks * piece) for _ in range(layers)]
    stored = tensors.empty(loaded * layers * 2 * piece)
    tensors.fill(stored, 1)
    places = random.Random(2).sample(range(blocks), loaded)
    pieces = [tensors.address(cache) + half * blocks * piece for cache in caches for half in (0, 1)]

    piece_list = (C.c_uint64 * len(pieces))(*pieces)
    index = (C.c_uint32 * loaded)(*places)
    move = MovePagesArgs(
        PageMap(C.addressof(piece_list), len(pieces), C.addressof(index), loaded, piece, piece),
        tensors.address(stored), len(pieces) * piece, False, None)  # fmt: skip
    first = tensors.address(stored)
    copies = (CopyTask * (loaded * len(pieces)))(
        *(
            CopyTask(at + place * piece, first + (b * len(pieces) + p) * piece, piece)
            for b, place in enumerate(places)
            for p, at in enumerate(pieces)
        )
    )  # fmt: skip

    for cache in caches:
        tensors.fill(cache, 3)
    copy_seconds = seconds(library, lambda: library.copy(copies), args.fake)
    want = [tensors.content(cache) for cache in caches]
    for cache in caches:
        tensors.fill(cache, 3)
    kernel_seconds = seconds(library, lambda: library.scatter(move), args.fake)
    wrong = [i for i, cache in enumerate(caches) if tensors.content(cache) != want[i]]
    if wrong:
        raise SystemExit(f"the kernel brought other bytes than copies, first in layer {wrong[0]}")
    moved = loaded * len(pieces) * piece
    rate, copies_rate = moved / kernel_seconds / 1e9, moved / copy_seconds / 1e9
    what = "load into vLLM's pages: over batched copies of each page"
    note = f"{rate:.4g} GB/s beside {copies_rate:.4g}"
    ratio = copy_seconds / kernel_seconds
    print(f"row\t{RANK}\t{what}\t{ratio:.4g}\tratio\t1.2\t2\t{note}")


if __name__ == "__main__":
    sys.exit(main())
