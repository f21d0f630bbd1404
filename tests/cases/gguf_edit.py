"""Copies of a GGUF file with another text in its metadata."""

import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, LIST = 8, 9
ALIGNMENT = 32


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def text(self):
        return self.take(self.number("Q"))

    def skip(self, kind):
        if kind == TEXT:
            self.text()
        elif kind == LIST:
            kind, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip(kind)
        else:
            self.take(SIZES[kind])


def with_text(source, target, key, text):
    """Writes `source` to `target` with this text, or without the key if it is None."""
    data = source.read_bytes()
    reader = Reader(data)
    magic, version = reader.take(4), reader.number("I")
    tensors, count = reader.number("Q"), reader.number("Q")
    entries = []
    for _ in range(count):
        begin = reader.at
        name = reader.text().decode()
        reader.skip(reader.number("I"))
        if name != key:
            entries.append(data[begin : reader.at])
    if text is not None:
        name, value = key.encode(), text.encode()
        entries.append(
            struct.pack("<Q", len(name)) + name + struct.pack("<IQ", TEXT, len(value)) + value
        )
    infos = reader.at
    for _ in range(tensors):
        reader.text()
        reader.take(8 * reader.number("I") + 4 + 8)
    body = -(-reader.at // ALIGNMENT) * ALIGNMENT
    head = magic + struct.pack("<IQQ", version, tensors, len(entries))
    head += b"".join(entries) + data[infos : reader.at]
    head += bytes(-len(head) % ALIGNMENT)
    target.write_bytes(head + data[body:])
    return target
