"""The fake device (tests/support/fake_device) from Python: its memory, a stream, what it reports.

Its structures are those of common/device/driver_table.h and tests/support/fake_device/control.h.
"""

import ctypes
import os
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[3]
LIBRARY = (
    pathlib.Path(os.environ.get("CAIRN_BUILD", _ROOT / "build/release"))
    / "bin/libcairn_fake_device.so"
).resolve()
_KERNELS = LIBRARY.with_name("libcairn_fake_kernels.so")
_TABLE_VERSION, _CONTROL_VERSION = 3, 3
REFUSED, OTHER = 6, 10  # Codes.

_POINTER, _U64, _U32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
_OPERATIONS = [
    *("initialize", "count", "facts", "open", "memory"),
    *("allocate", "export_memory", "import_memory", "release_memory"),
    *("allocate_host", "release_host", "register_host", "unregister_host"),
    *("create_stream", "create_urgent_stream"),
    *("borrow_stream", "destroy_stream", "native_stream"),
    *("create_event", "destroy_event", "record", "wait", "query", "synchronize"),
    *("copy", "fill"),
    *("begin_capture", "end_capture", "launch_graph", "destroy_graph"),
    "kernels",
]


class _Table(ctypes.Structure):
    _fields_ = [
        ("version", _U32),
        ("bytes", _U32),
        ("name", ctypes.c_char_p),
        *((name, _POINTER) for name in _OPERATIONS),
    ]


class _Control(ctypes.Structure):
    _fields_ = [
        ("version", _U32),
        *(
            (name, _POINTER)
            for name in ("reset", "fail", "lose", "step", "take_reports", "stats", "host_access")
        ),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("seed", _U64),
        ("devices", _U32),
        ("memory_bytes", _U64),
        ("granularity", _U64),
        ("pinned_bytes", _U64),
        ("bytes_per_second", _U64),
        *(
            (name, ctypes.c_bool)
            for name in (
                *("late", "exports", "registers", "registers_read_only"),
                *("has_driver", "old_driver", "print_reports"),
            )
        ),
    ]


class _Stats(ctypes.Structure):
    _fields_ = [
        (name, _U64)
        for name in (
            *("handles", "exported", "device_bytes", "pinned_bytes", "copies", "copied_bytes"),
            *("pageable_copies", "work_left", "reports", "graph_launches"),
        )
    ]


_DEFAULTS = {
    "seed": 1,
    "devices": 2,  # Always: a driver that was loaded once knows how many there are.
    "memory_bytes": 1 << 30,
    "granularity": 64 << 10,
    "pinned_bytes": (1 << 64) - 1,
    "late": True,
    "exports": True,
    "registers": True,
    "registers_read_only": True,
    "has_driver": True,
}


class FakeGpu:
    """The devices of this process, as if they were new. One at a time."""

    def __init__(self, kernels=False, **options):
        """`kernels`: the library has those for slices, as emulations of the CUDA kernels."""
        library = ctypes.CDLL(str(LIBRARY))
        library.cairn_device_driver.restype = ctypes.POINTER(_Table)
        library.cairn_fake_device_control.restype = ctypes.POINTER(_Control)
        self._table = library.cairn_device_driver(_TABLE_VERSION).contents
        self._control = library.cairn_fake_device_control(_CONTROL_VERSION).contents
        self._reset(_Options(**(_DEFAULTS | options)))
        if kernels:
            add = ctypes.CDLL(str(_KERNELS)).cairn_fake_device_slice_kernels
            add(_POINTER(ctypes.addressof(self._control)))
        self._failure = ctypes.create_string_buffer(256)
        self._streams, self._memories = [], []
        self.lost = False
        self.stream = self.new_stream()

    def _reset(self, options):
        ctypes.CFUNCTYPE(None, _POINTER)(self._control.reset)(ctypes.addressof(options))

    def _call(self, operation, *arguments):
        kinds = [type(argument) for argument in arguments]
        call = ctypes.CFUNCTYPE(ctypes.c_int, *kinds, _POINTER)(getattr(self._table, operation))
        code = call(*arguments, ctypes.addressof(self._failure))
        assert code == 0, (operation, code, self._failure.value)

    # ---- an engine's side ----

    def new_stream(self, device=0):
        """Its handle, as torch gives `cuda_stream`."""
        stream = _POINTER()
        self._call("create_stream", _U32(device), _POINTER(ctypes.addressof(stream)))
        self._streams.append(stream.value)
        return stream.value

    def allocate(self, size, device=0):
        """The address of `size` bytes, in multiples of 64 KiB."""
        memory, address = _POINTER(), _U64()
        size = -(-size // (64 << 10)) * (64 << 10)
        self._call(
            "allocate",
            *(_U32(device), _U64(size), _U32(0)),
            *(_POINTER(ctypes.addressof(memory)), _POINTER(ctypes.addressof(address))),
        )
        self._memories.append(memory.value)
        return address.value

    def fill(self, address, value, size):
        """Work of the engine, on its stream."""
        self._call(
            "fill",
            *(_POINTER(self.stream), _POINTER(ctypes.addressof(_FORWARD)), _U64(address)),
            *(ctypes.c_uint8(value), _U64(size)),
        )

    def finish(self):
        """All work of the engine's stream has happened, and the host knows."""
        event = _POINTER()
        self._call("create_event", _U32(0), _POINTER(ctypes.addressof(event)))
        self._call("record", _POINTER(self.stream), event)
        self._call("synchronize", event)
        ctypes.CFUNCTYPE(None, _POINTER)(self._table.destroy_event)(event)

    # ---- control ----

    def fail(self, operation, after=0, times=1, code=OTHER):
        """Call number `after` from now of the operation fails, and `times` in all."""
        ctypes.CFUNCTYPE(None, ctypes.c_char_p, _U64, _U64, ctypes.c_int32)(self._control.fail)(
            operation.encode(), after, times, code
        )

    def lose(self):
        """From now on every call fails."""
        self.lost = True
        ctypes.CFUNCTYPE(None, _U32)(self._control.lose)(0)

    def reports(self):
        """Accesses that no wait orders, and other mistakes, since the last call."""
        text = ctypes.create_string_buffer(64 << 10)
        ctypes.CFUNCTYPE(None, _POINTER, _U64)(self._control.take_reports)(
            ctypes.addressof(text), len(text)
        )
        return text.value.decode()

    def stats(self):
        stats = _Stats()
        ctypes.CFUNCTYPE(None, _POINTER)(self._control.stats)(ctypes.addressof(stats))
        return stats

    def host_access(self, address, size, writes=False):
        """An access of the host, which the device cannot see."""
        ctypes.CFUNCTYPE(None, ctypes.c_char_p, _U64, _U64, ctypes.c_bool)(
            self._control.host_access
        )(b"the host's access", address, size, writes)

    def read(self, address, size):
        """Bytes of the device's memory, now."""
        self.host_access(address, size)
        return ctypes.string_at(address, size)

    def close(self):
        """Gives everything back. Fails if somebody else has not."""
        if not self.lost:
            self.finish()
        for stream in self._streams:
            ctypes.CFUNCTYPE(None, _POINTER)(self._table.destroy_stream)(stream)
        for memory in self._memories:
            ctypes.CFUNCTYPE(None, _POINTER)(self._table.release_memory)(memory)
        assert self.stats().handles == 0, "memories, streams or events are left"


_FORWARD = ctypes.create_string_buffer(b"forward")


class FakeTensor:
    """As much of a torch tensor as adapters look at."""

    def __init__(self, address, shape, strides, element_size=2, kind="cuda", index=0):
        self.address, self.shape, self._strides = address, tuple(shape), tuple(strides)
        self._element_size = element_size
        self.device = type("Device", (), {"type": kind, "index": index})()

    def data_ptr(self):
        return self.address

    def stride(self):
        return self._strides

    def element_size(self):
        return self._element_size
