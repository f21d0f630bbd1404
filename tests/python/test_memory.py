"""Buffers are used where they lie, and what cannot be is refused by name."""

import array
import ctypes
import mmap

import numpy
import pytest

import cairn
from conftest import SLOW, Prompt, opaque_spec

SIZE = 64 << 10


@pytest.fixture
def stored(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 1, SIZE).push(client)
    with prompt.match(client) as match:
        yield client, prompt, match.lease


def torch_tensor(dtype="uint8"):
    torch = pytest.importorskip("torch")
    return torch.zeros(SIZE, dtype=torch.uint8).view(getattr(torch, dtype))


def torch_rows(*shape):
    torch = pytest.importorskip("torch")
    return torch.zeros(shape, dtype=torch.uint8)


class Exporter:
    """Memory behind the DLPack protocol alone, as torch has it."""

    def __init__(self, memory, device=(1, 0)):
        self.memory, self.device = memory, device

    def __dlpack__(self, **options):
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


MEMORY = {
    "bytearray": lambda: bytearray(SIZE),
    "memoryview": lambda: memoryview(bytearray(SIZE + 8))[8:],
    "array": lambda: array.array("I", bytes(SIZE)),
    "mmap": lambda: mmap.mmap(-1, SIZE),
    "ctypes": lambda: (ctypes.c_char * SIZE)(),
    "numpy": lambda: numpy.zeros(SIZE, numpy.uint8),
    "numpy f16": lambda: numpy.zeros((4, SIZE // 8), numpy.float16),
    "numpy slice": lambda: numpy.zeros((3, SIZE), numpy.uint8)[1],
    "dlpack": lambda: Exporter(numpy.zeros((2, SIZE // 8), numpy.float32)),
    "torch": torch_tensor,
    "torch bf16": lambda: torch_tensor("bfloat16"),
}


def content(memory):
    if isinstance(memory, Exporter):
        memory = memory.memory
    if hasattr(memory, "untyped_storage"):
        memory = memory.view(-1).view(__import__("torch").uint8).numpy()
    return bytes(memory) if not isinstance(memory, mmap.mmap) else memory[:]


@pytest.mark.parametrize("kind", MEMORY)
def test_any_memory_is_filled_and_sent(stored, serial, kind):
    client, prompt, lease = stored
    memory = MEMORY[kind]()
    assert client.fetch(lease, [memory]).prefix == 1
    assert content(memory) == prompt.data[0]
    other = Prompt(client, opaque_spec(), serial(), 1, SIZE)
    assert client.push(other.namespace, [cairn.Part(other.keys[0], memory)]) == [None]
    into = bytearray(SIZE)
    with other.match(client) as match:
        client.fetch(match.lease, [into])
    assert into == prompt.data[0]


def test_bytes_arrive_at_the_caller_s_address(stored):
    """Through raw pointers taken before: what is filled is that memory, not a copy of the
    object's."""
    client, prompt, lease = stored
    memory = numpy.zeros(SIZE, numpy.uint8)
    address = memory.ctypes.data
    client.fetch(lease, [memory])
    assert memory.ctypes.data == address
    assert ctypes.string_at(address, SIZE) == prompt.data[0]

    tensor = torch_tensor()
    address = tensor.data_ptr()
    client.fetch(lease, [tensor])
    assert tensor.data_ptr() == address
    assert ctypes.string_at(address, SIZE) == prompt.data[0]


def test_memory_is_held_only_during_the_call(stored):
    client, _, lease = stored
    memory = bytearray(SIZE)
    client.fetch(lease, [memory])
    memory.clear()  # BufferError while somebody has a view.


@pytest.mark.parametrize(
    ("memory", "error", "text"),
    [
        (lambda: bytes(SIZE), cairn.InvalidArgumentError, r"'into\[0\]'.*bytes.*writable"),
        (
            lambda: memoryview(bytes(SIZE)),
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*memoryview.*writable",
        ),
        (
            lambda: numpy.zeros((SIZE, 2), numpy.uint8)[:, 0],
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*not C-contiguous",
        ),
        (
            lambda: Exporter(numpy.zeros((SIZE, 2), numpy.uint8)[:, 0]),
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*not contiguous",
        ),
        (
            lambda: numpy.zeros((2, SIZE // 2), numpy.uint8).T,
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*not C-contiguous",
        ),
        (
            lambda: numpy.zeros(SIZE // 8, object),
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*of Python objects",
        ),
        (
            lambda: numpy.zeros(SIZE // 16, [("a", "O"), ("b", "i8")]),
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*of Python objects",
        ),
        (
            lambda: [bytearray(SIZE - 1), bytes(1)],
            cairn.InvalidArgumentError,
            r"'into\[0\]\[1\]'.*bytes",
        ),
        (
            lambda: bytearray(SIZE - 1),
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*65535 bytes.*65536",
        ),
        (
            lambda: bytearray(SIZE + 1),
            cairn.InvalidArgumentError,
            r"'into\[0\]'.*65537 bytes.*65536",
        ),
        (lambda: bytearray(), cairn.InvalidArgumentError, r"'into\[0\]'.*0 bytes"),
        (lambda: [], cairn.InvalidArgumentError, r"'into\[0\]'.*0 bytes"),
        (lambda: 5, TypeError, r"'into\[0\]'.*int.*buffer protocol"),
        (lambda: None, TypeError, r"'into\[0\]'.*NoneType"),
        (lambda: "text", TypeError, r"'into\[0\]'.*str"),
        (lambda: [bytearray(SIZE), None], TypeError, r"'into\[0\]\[1\]'.*NoneType"),
    ],
)
def test_wrong_memory_is_named(stored, memory, error, text):
    client, _, lease = stored
    with pytest.raises(error, match=text):
        client.fetch(lease, [memory()])


def test_numbers_may_be_of_any_kind(stored):
    client, prompt, lease = stored
    for kind in ("f4", [("O", "i8")], [("x", "f4", (2,)), ("y", "i8")]):
        into = numpy.zeros(SIZE // numpy.dtype(kind).itemsize, kind)
        client.fetch(lease, [into])
        assert into.tobytes() == prompt.data[0]


def test_wrong_tensors_are_named(stored):
    torch = pytest.importorskip("torch")
    client, _, lease = stored
    for tensor, text in [
        (torch.zeros(SIZE, 2, dtype=torch.uint8)[:, 0], "not contiguous"),
        (torch.zeros(SIZE, dtype=torch.uint8, device="meta"), "DLPack"),
        (torch.zeros(SIZE // 4, requires_grad=True), "detach"),
    ]:
        with pytest.raises(cairn.InvalidArgumentError, match=rf"'into\[0\]'.*Tensor.*{text}"):
            client.fetch(lease, [tensor])


@pytest.mark.parametrize("into", [None, 5, "text", numpy.zeros((), numpy.uint8)])
def test_memory_of_the_blocks_comes_in_a_list_or_in_rows(stored, into):
    client, _, lease = stored
    with pytest.raises(TypeError, match="'into'.*list or tuple"):
        client.fetch(lease, into)


@pytest.mark.parametrize(
    "make", [lambda *shape: numpy.zeros(shape, numpy.uint8), torch_rows], ids=["numpy", "torch"]
)
def test_an_array_has_a_row_for_each_block(client, serial, make):
    prompt = Prompt(client, opaque_spec(), serial(), 5, SIZE).push(client)
    into = make(7, SIZE)
    assert not client.get(prompt.namespace, prompt.keys, into[1:6], lookup_deadline=SLOW).failed
    assert [bytes(row.tolist()) for row in into[1:6]] == [bytes(part) for part in prompt.data]
    assert not into[0].any() and not into[6].any()
    with prompt.match(client) as match:
        again = make(2, 4, SIZE // 4)
        assert not client.fetch(match.lease, again, first_block=3).failed
        assert bytes(again.reshape(-1).tolist()) == bytes(prompt.data[3]) + bytes(prompt.data[4])
        with pytest.raises(cairn.OutOfRangeError, match="memory for 6 blocks"):
            client.fetch(match.lease, into[:6])
        with pytest.raises(cairn.OutOfRangeError, match="memory for 0 blocks"):
            client.fetch(match.lease, into[:0])
        with pytest.raises(cairn.InvalidArgumentError, match="'into'.*contiguous"):
            client.fetch(match.lease, make(5, 2 * SIZE)[:, ::2])
        with pytest.raises(cairn.InvalidArgumentError, match=f"{SIZE // 2} bytes"):
            client.fetch(match.lease, make(5, SIZE // 2))
    with pytest.raises(
        cairn.InvalidArgumentError, match="memory for 4 blocks, expected one for each of the 5 keys"
    ):
        client.get(prompt.namespace, prompt.keys, into[:4])


KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("part", "error", "text"),
    [
        (cairn.Part(b"short", b"x"), cairn.InvalidArgumentError, r"'parts\[0\].key'.*5"),
        (cairn.Part("text", b"x"), TypeError, r"'parts\[0\].key'.*str.*bytes"),
        (cairn.Part(KEY, b""), cairn.InvalidArgumentError, r"'parts\[0\].data'.*0 bytes"),
        (
            cairn.Part(KEY, bytes((1 << 20) + 1)),
            cairn.InvalidArgumentError,
            r"'parts\[0\].data'.*1048577.*1048576",
        ),
        (cairn.Part(KEY, 7), TypeError, r"'parts\[0\].data'.*int"),
        (cairn.Part(KEY, b"x", parent=b"p"), cairn.InvalidArgumentError, r"'parts\[0\].parent'"),
        (
            cairn.Part(KEY, b"x", first_position=-1),
            cairn.InvalidArgumentError,
            r"'parts\[0\].first_position'.*-1",
        ),
        (
            cairn.Part(KEY, b"x", rect=cairn.Rect(0, 1, 0, 2)),
            cairn.InvalidArgumentError,
            r"'parts\[0\].rect'.*heads \[0, 2\)",
        ),
        (cairn.Part(KEY, b"x", rect=(0, 1, 0, 1)), TypeError, r"'parts\[0\].rect'.*tuple.*Rect"),
        (
            cairn.Part(KEY, b"x", compute_seconds=float("nan")),
            cairn.InvalidArgumentError,
            r"'parts\[0\].compute_seconds'.*nan",
        ),
        ((KEY, b"x"), TypeError, r"'parts\[0\]'.*tuple.*Part"),
        (tuple.__new__(cairn.Part, ()), TypeError, r"'parts\[0\]'.*Part"),
        (tuple.__new__(cairn.Part, (KEY, b"x")), TypeError, r"'parts\[0\]'.*Part"),
    ],
)
def test_wrong_parts_are_named(stored, part, error, text):
    client, prompt, _ = stored
    with pytest.raises(error, match=text):
        client.push(prompt.namespace, [part])
