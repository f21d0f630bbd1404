#!/usr/bin/env python3
"""Encodes real keys and values, and edge cases, as docs/inside/formats/codecs.md says, with numpy
alone.

    python3 tests/data/codecs/make_fixtures.py

Reads ../smollm2/kv.f16; writes edge.f16, one file per recipe, and fixtures.inc, their list for the
C++ test. Written from the page, not from the C++ code: codes, scales and bytes must agree exactly.
Everything is float32; np.rint and astype(float16) round to nearest even.
"""

import importlib.util
import pathlib
import zlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
F = np.float32
LAYERS = [0, 7, 15, 29]
LAYER = 7  # The tenant whose two blocks are kept.
TOKENS = 64
KEYS, VALUES = 0, 1


def half(x):
    return x.astype(np.float16)


def decoded(x):
    return half(np.clip(x, F(-65504), F(65504)))


def reciprocal(scale):
    """1 / scale, 0 where the scale is 0. `scale`: float16."""
    s = scale.astype(F)
    return np.where(s > 0, F(1) / np.where(s > 0, s, F(1)), F(0)).astype(F)


def tree_sum(x):
    """Sums over the last axis: 16 partial sums, then 8 and 8, 4 and 4, 2 and 2, 1 and 1."""
    part = np.zeros(x.shape[:-1] + (16,), F)
    for at in range(0, x.shape[-1], 16):
        part = part + x[..., at : at + 16]
    for n in (8, 4, 2, 1):
        part = part[..., :n] + part[..., n : 2 * n]
    return part[..., 0]


def nibbles(codes):
    """[rows][dim] codes to [rows][dim / 2] bytes: of each 32 numbers, i and 16 + i share byte i."""
    c = codes.astype(np.uint8).reshape(codes.shape[0], -1, 2, 16)
    return (c[:, :, 0] | c[:, :, 1] << 4).reshape(codes.shape[0], -1)


def by_rows(*columns):
    """Columns of each row's record, any dtype, to bytes."""
    return np.concatenate(
        [np.ascontiguousarray(c).view(np.uint8).reshape(c.shape[0], -1) for c in columns], axis=1
    ).tobytes()


class Raw:
    def encode(self, x, layer, plane, first):
        return x.tobytes(), x


class Int8:
    def __init__(self, group):
        self.group = group

    def encode(self, x, layer, plane, first):
        rows, dim = x.shape
        g = x.astype(F).reshape(rows, -1, min(self.group, dim))
        scale = half(np.abs(g).max(-1) / F(127))
        codes = np.clip(np.rint(g * reciprocal(scale)[..., None]), -127, 127).astype(np.int8)
        back = decoded(codes.astype(F) * scale.astype(F)[..., None]).reshape(rows, dim)
        return by_rows(scale, codes.reshape(rows, dim)), back


def affine(x, axis):
    """int4 codes (float32), scale, minimum over `axis`."""
    least = x.min(axis, keepdims=True) + F(0)
    scale = half((x.max(axis, keepdims=True) + F(0) - least) / F(15))
    codes = np.clip(np.rint((x - least) * reciprocal(scale)), 0, 15).astype(F)
    return codes, scale, half(least), decoded(codes * scale.astype(F) + least)


class Int4Token:
    def __init__(self, group):
        self.group = group

    def encode(self, x, layer, plane, first):
        rows, dim = x.shape
        codes, scale, least, back = affine(x.astype(F).reshape(rows, -1, min(self.group, dim)), -1)
        pairs = np.stack([scale[..., 0], least[..., 0]], -1).reshape(rows, -1)
        return by_rows(pairs, nibbles(codes.reshape(rows, dim))), back.reshape(rows, dim)


class Int4Channel:
    def __init__(self, group):
        self.group = group

    def encode(self, x, layer, plane, first):
        out, backs, t = b"", [], 0
        while t < len(x):
            n = min(self.group - (first + t) % self.group, len(x) - t)
            codes, scale, least, back = affine(x[t : t + n].astype(F), 0)
            out += scale.tobytes() + least.tobytes() + nibbles(codes).tobytes()
            backs.append(back)
            t += n
        return out, np.concatenate(backs) if backs else x


LEVELS = {
    2: [0.452780035, 1.51041761],
    3: [0.245094179, 0.756005281, 1.34390928, 2.1519457],
    4: [
        0.12839503,
        0.388048299,
        0.656759119,
        0.942340456,
        1.2562312,
        1.61804639,
        2.06901723,
        2.73258957,
    ],
}
MASK = (1 << 64) - 1


def signs(layer, plane, dim):
    state = (0x436169726E54514B + (2 * layer + plane) * 0xD1342543DE82EF95) & MASK
    out = []
    for d in range(dim):
        if d % 64 == 0:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            z = state
            z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
            z ^= z >> 31
        out.append(-1.0 if z >> d % 64 & 1 else 1.0)
    return np.array(out, F)


def hadamard(z):
    distance = 1
    while distance < z.shape[-1]:
        pairs = z.reshape(z.shape[0], -1, 2, distance)
        z = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).reshape(
            z.shape
        )
        distance *= 2
    return z


class Turbo:
    def __init__(self, bits):
        self.bits = bits

    def encode(self, x, layer, plane, first):
        rows, dim = x.shape
        positive = np.array(LEVELS[self.bits], F)
        levels = np.concatenate([-positive[::-1], positive])
        borders = F(0.5) * (positive[:-1] + positive[1:])
        f = x.astype(F)
        z = hadamard(f * signs(layer, plane, dim))
        norm = np.sqrt(tree_sum(f * f))
        inverse = np.where(norm > 0, F(1) / np.where(norm > 0, norm, F(1)), F(0)).astype(F)
        t = z * inverse[:, None]
        above = (np.abs(t)[..., None] > borders).sum(-1)
        n = len(positive)
        codes = np.where(t < 0, n - 1 - above, n + above)
        c = levels[codes]
        gain = half(np.minimum(tree_sum(z * c) / tree_sum(c * c), F(65504)))
        back = hadamard(c) * (gain.astype(F) / F(dim))[:, None] * signs(layer, plane, dim)
        if self.bits == 4:
            return by_rows(gain[:, None], nibbles(codes)), decoded(back)
        q = (codes & 3).astype(np.uint8).reshape(rows, -1, 4, 16)
        parts = [
            gain[:, None],
            (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).reshape(rows, -1),
        ]
        if self.bits == 3:
            parts.append(np.packbits((codes >> 2).astype(np.uint8), axis=1, bitorder="little"))
        return by_rows(*parts), decoded(back)


def e4m3_values():
    out = [m * 2.0**-9 for m in range(8)]
    out += [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)]
    return np.array(out[:127], np.float64)


class Fp8:
    def encode(self, x, layer, plane, first):
        f = x.astype(F)
        scale = half(np.abs(f).max(1) / F(448))
        a = f * reciprocal(scale)[:, None]
        values = e4m3_values()
        m = np.minimum(np.abs(a), F(448)).astype(np.float64)
        # The nearest value; of two as near, the even code.
        low = np.clip(np.searchsorted(values, m, side="right") - 1, 0, 126)
        high = np.minimum(low + 1, 126)
        to_low, to_high = m - values[low], values[high] - m
        codes = np.where((to_high < to_low) | ((to_high == to_low) & (low % 2 == 1)), high, low)
        codes = np.where(low == 126, 126, codes)
        back = (
            np.where(np.signbit(a), -values[codes], values[codes]).astype(F)
            * scale.astype(F)[:, None]
        )
        return by_rows(
            scale[:, None], (codes | np.where(np.signbit(a), 0x80, 0)).astype(np.uint8)
        ), decoded(back)


class Mixed:
    def __init__(self, group, outliers):
        self.inner, self.outliers = Int4Token(group), outliers

    def encode(self, x, layer, plane, first):
        top = np.abs(x).max(0)
        channels = np.sort(
            np.argsort(-top.astype(np.float64), kind="stable")[: self.outliers]
        ).astype(np.uint16)
        rest = x.copy()
        rest[:, channels] = 0
        body, back = self.inner.encode(rest, layer, plane, first)
        back[:, channels] = x[:, channels]
        return channels.tobytes() + np.ascontiguousarray(x[:, channels]).tobytes() + body, back


def cachegen_tables():
    """reach, frequencies of each table; class limits. As kernels/codecs/cachegen/make_tables.py
    describes them."""
    spec = importlib.util.spec_from_file_location(
        "make_tables", HERE.parents[2] / "kernels/codecs/cachegen/make_tables.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    variances = [2.0 ** (c - 4) + 1 / 12 for c in range(20)]
    limits = [round(1024 * (variances[c] * variances[c + 1]) ** 0.5) for c in range(19)]
    return [module.table(2.0 ** ((c - 4) / 2)) for c in range(11)], limits


class CacheGen:
    """A whole slice; steps in 64ths of the head's rms."""

    def __init__(self, k, v):
        self.steps = (k, v)
        self.tables, self.limits = cachegen_tables()

    def class_of(self, squares, count, base):
        return max(
            base, min(base + 15, sum(squares * 1024 > limit * count for limit in self.limits))
        )

    def put(self, state, words, cls, n):
        """Python's own integers, with a true division."""
        shift = 0
        while cls >= len(self.tables):
            cls, shift = cls - 2, shift + 1
        reach, freq = self.tables[cls]
        rounded = n + ((1 << shift) >> 1)
        high, bits = rounded >> shift, []
        if abs(high) > reach:
            zigzag = 2 * n if n >= 0 else -2 * n - 1
            symbol, bits = (
                2 * reach + 1,
                [(zigzag & 255, 8), (zigzag >> 8 & 255, 8), (zigzag >> 16, 8)],
            )
        else:
            symbol = high + reach
            if shift:
                bits = [(rounded & ((1 << shift) - 1), shift)]
        for value, count in bits:
            if state >= 1 << (31 - count):
                words.append(state & 0xFFFF)
                state >>= 16
            state = state << count | value
        f, start = freq[symbol], sum(freq[:symbol])
        if state >= f << 20:
            words.append(state & 0xFFFF)
            state >>= 16
        return (state // f << 11) + state % f + start

    def encode_slice(self, planes, sink):
        out, back = b"\0", np.empty_like(planes)
        for plane, step64 in zip((KEYS, VALUES), self.steps):
            base = {1: 4, 2: 2, 3: 2}.get(step64, 0)
            heads, models = b"", []
            for h, head in enumerate(planes[plane]):
                f = head[sink:].astype(F)
                part = np.zeros(16, F)
                for row in f:
                    for at in range(0, f.shape[1], 16):
                        part = part + row[at : at + 16] * row[at : at + 16]
                mean = tree_sum(part) / F(f.size)
                step = half(np.array(np.sqrt(mean) * (F(step64) / F(64)), F))
                n = np.rint(f * reciprocal(step)).astype(np.int64)
                back[plane, h, :sink] = head[:sink]
                back[plane, h, sink:] = decoded(n.astype(F) * step.astype(F))
                rows = len(n)
                anchors = [int(2 * column.sum() + rows) // (2 * rows) for column in n.T]
                classes = [
                    self.class_of(int(((column - a) ** 2).sum()), rows, base)
                    for column, a in zip(n.T, anchors)
                ]
                own = self.class_of(sum(a * a for a in anchors), len(anchors), base)
                heads += head[:sink].tobytes() + step.tobytes() + bytes([own - base])
                heads += bytes(
                    a - base | b - base << 4 for a, b in zip(classes[::2], classes[1::2])
                )
                models.append((n, anchors, classes, own))
            streams = []
            dim = planes.shape[-1]
            for side in (range(dim // 2), range(dim // 2, dim)):
                state, words = 1 << 15, []
                for n, anchors, classes, own in reversed(models):
                    for d in reversed(side):
                        for value in n[::-1, d]:
                            state = self.put(state, words, classes[d], int(value) - anchors[d])
                    for d in reversed(side):
                        state = self.put(state, words, own, anchors[d])
                streams.append(
                    state.to_bytes(4, "little") + np.array(words[::-1], np.uint16).tobytes()
                )
            out += (
                b"".join(len(s).to_bytes(4, "little") for s in streams) + heads + b"".join(streams)
            )
        if len(out) > 1 + planes.nbytes:
            return b"\1" + planes.tobytes(), planes
        return out, back


# recipe, keys, values, sink
RECIPES = [
    ("raw", Raw(), Raw(), 0),
    ("int8:group=64,sink=0", Int8(64), Int8(64), 0),
    ("int8:group=16,sink=1", Int8(16), Int8(16), 1),
    ("int4:group=64,sink=1", Int4Channel(64), Int4Token(64), 1),
    ("int4:group=32,sink=0", Int4Channel(32), Int4Token(32), 0),
    ("turbo:bits=4,sink=1", Turbo(4), Turbo(4), 1),
    ("turbo:bits=3,sink=1", Turbo(3), Turbo(3), 1),
    ("turbo:bits=3,v=2,sink=0", Turbo(3), Turbo(2), 0),
    ("fp8:sink=0", Fp8(), Fp8(), 0),
    ("mixed:group=64,outliers=2,sink=1", Mixed(64, 2), Int4Token(64), 1),
    ("cachegen:k=12,v=24,sink=1", CacheGen(12, 24), None, 1),
    ("cachegen:k=4,v=64,sink=0", CacheGen(4, 64), None, 0),
    ("cachegen:k=1,v=3,sink=1", CacheGen(1, 3), None, 1),
]


def encode_slice(recipe, planes, layer, first_position):
    """planes: [K, V][heads][tokens][dim] float16. Bytes and what they decode to."""
    _, keys, values, sink = recipe
    sink = min(sink, planes.shape[2]) if first_position == 0 else 0
    if isinstance(keys, CacheGen):
        return keys.encode_slice(planes, sink)
    out, back = b"", np.empty_like(planes)
    for plane, codec in ((KEYS, keys), (VALUES, values)):
        for h, head in enumerate(planes[plane]):
            encoded, rows = codec.encode(head[sink:], layer, plane, sink)
            out += head[:sink].tobytes() + encoded
            back[plane, h, :sink], back[plane, h, sink:] = head[:sink], rows
    return out, back


def edge_cases():
    """One head of 64 dimensions, 16 tokens, for K and V alike."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(16, 64)).astype(np.float16)
    x[0] = 0
    x[1] = np.float16(-0.0)
    x[2] = 1.5
    x[3] = 65504
    x[4] = -65504
    x[5, ::2], x[5, 1::2] = 65504, -65504
    x[6] = np.float16(6e-8)
    x[7] = rng.normal(scale=1e-6, size=64)
    x[8] = 0
    x[8, 13] = 1
    x[9, 0] = 1000
    x[10] = np.arange(64) - 32
    x[11] = (np.arange(64) - 32) / 127
    x[12, ::2] = 0
    return np.stack([x[None], x[None]])


def main():
    kv = np.fromfile(HERE.parent / "smollm2/kv.f16", np.float16).reshape(
        len(LAYERS), 2, 3, 2 * TOKENS, 64
    )
    edge = edge_cases()
    edge.tofile(HERE / "edge.f16")
    cases = []
    with np.errstate(over="ignore"):
        for recipe in RECIPES:
            name = recipe[0].replace(":", "-").replace(",", "-").replace("=", "")
            slices = [
                (kv[LAYERS.index(LAYER), :, :, :TOKENS], 0),
                (kv[LAYERS.index(LAYER), :, :, TOKENS:], TOKENS),
                (edge, 0),
            ]
            data, lengths, crcs, errors = b"", [], [], []
            for planes, first in slices:
                encoded, back = encode_slice(recipe, planes, LAYER, first)
                data += encoded
                lengths.append(len(encoded))
                crcs.append(zlib.crc32(back.tobytes()))
                e = back.astype(np.float64) - planes.astype(np.float64)
                x = planes.astype(np.float64)
                errors.append(
                    [
                        float(np.sqrt((e[p] ** 2).mean() / (x[p] ** 2).mean()))
                        for p in (KEYS, VALUES)
                    ]
                )
            if name != "raw":
                (HERE / f"{name}.bin").write_bytes(data)
                codec, _, values = recipe[0].partition(":")
                given = dict(pair.split("=") for pair in values.split(","))
                if codec == "turbo":
                    given = {
                        "bits": given["bits"],
                        "v": given.get("v", given["bits"]),
                        "sink": given["sink"],
                    }
                cases.append(
                    f'{{"{name}.bin", "{codec}", {{{", ".join(given.values())}}}, '
                    f"{{{', '.join(f'{c:#010x}' for c in crcs)}}}}},\n"
                )
            print(
                f"{recipe[0]:34} {8 * lengths[1] / (2 * 3 * TOKENS * 64):6.3f} bits  "
                f"err K, V {errors[1][0]:.4f} {errors[1][1]:.4f}"
            )
    seeds = HERE.parents[1] / "fuzz/corpus/codec_cachegen"
    coarse, fine = (
        next(r for r in RECIPES if r[0] == f"cachegen:{steps},sink=1")
        for steps in ("k=12,v=24", "k=1,v=3")
    )
    for name, recipe, choice, first, tokens in (
        ("position0", coarse, 0, 0, 4),
        ("position64", coarse, 4, 64, 4),
        ("five", coarse, 7, 64, 5),
        ("fine", fine, 0x27, 64, 5),
    ):
        planes = kv[1, :, :1, 30 : 30 + tokens, :16]
        (seeds / name).write_bytes(bytes([choice]) + encode_slice(recipe, planes, 0, first)[0])
    (HERE / "fixtures.inc").write_text("".join(cases))


if __name__ == "__main__":
    main()
