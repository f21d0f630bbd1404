"""KV codecs as their papers define them, in torch: what Cairn's own are compared with.

Each takes a plane [layers][heads][tokens][dim] in float32 (binary16 values) and gives back what a
reader would decode, and the bits per number that its stored form takes, scales and zeros in
binary16 and entropy tables included. Tokens are the positions 0, 1, ...; blocks of BLOCK tokens are
coded alone.
"""

import math

import torch

BLOCK = 64


def half(x):
    return x.to(torch.float16).to(torch.float32)


def symmetric(x, levels, group):
    """Per token, groups along the dimension."""
    shape = x.shape
    g = x.reshape(*shape[:-1], shape[-1] // group, group)
    scale = half(g.abs().amax(-1, keepdim=True) / levels)
    code = torch.where(scale > 0, (g / scale).round().clamp(-levels, levels), torch.zeros_like(g))
    return (code * scale).reshape(shape)


def asymmetric(x, bits, axis, group):
    """min and scale over `group` numbers along the axis."""
    x = x.movedim(axis, -1)
    shape = x.shape
    g = x.reshape(*shape[:-1], shape[-1] // group, group)
    low = half(g.amin(-1, keepdim=True))
    scale = half((g.amax(-1, keepdim=True) - low) / (2**bits - 1))
    code = torch.where(
        scale > 0, ((g - low) / scale).round().clamp(0, 2**bits - 1), torch.zeros_like(g)
    )
    return (low + code * scale).reshape(shape).movedim(-1, axis)


def keep_first(x, coded):
    """Token 0 in binary16."""
    out = coded.clone()
    out[:, :, 0] = x[:, :, 0]
    return out


def without_first(x):
    """Token 0 replaced by token 1, so that it spoils nobody's range."""
    y = x.clone()
    y[:, :, 0] = x[:, :, 1]
    return y


def sink_bits(x):
    return 16.0 / x.shape[2]


def int8(k, v):
    return symmetric(k, 127, 64), symmetric(v, 127, 64), 8 + 16 / 64


def fp8(k, v):
    def code(x):
        scale = half(x.abs().amax(-1, keepdim=True) / 448)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return (x / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale

    return code(k), code(v), 8 + 16 / k.shape[-1]


def kivi(bits):
    """KIVI without its residual window, groups of 64 aligned to positions, token 0 apart."""

    def codec(k, v):
        kk = keep_first(k, asymmetric(without_first(k), bits, -2, BLOCK))
        vv = keep_first(v, asymmetric(v, bits, -1, 64))
        return kk, vv, bits + 32 / 64 + sink_bits(k)

    return codec


def hadamard(n):
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    return h / math.sqrt(n)


LEVELS = {
    2: [0.4528, 1.5104],
    3: [0.2451, 0.7560, 1.3439, 2.1519],
    4: [0.1284, 0.3880, 0.6568, 0.9423, 1.2562, 1.6180, 2.0690, 2.7326],
}


def turbo(bits):
    """TurboQuant's MSE form with the norm correction: the codes are scaled to the vector's length.
    Token 0 apart."""

    def rotate_and_code(x):
        dim = x.shape[-1]
        signs = (
            torch.randint(0, 2, (dim,), generator=torch.Generator().manual_seed(7)).float() * 2 - 1
        )
        h = hadamard(dim)
        norm = half(x.norm(dim=-1, keepdim=True))
        u = (x * signs) @ h / torch.where(norm > 0, norm, torch.ones_like(norm)) * math.sqrt(dim)
        levels = torch.tensor(sorted([-a for a in LEVELS[bits]] + LEVELS[bits]))
        borders = (levels[1:] + levels[:-1]) / 2
        c = levels[torch.bucketize(u, borders)]
        c = c / c.norm(dim=-1, keepdim=True)
        return (c @ h) * signs * norm

    def codec(k, v):
        return (
            keep_first(k, rotate_and_code(k)),
            keep_first(v, rotate_and_code(v)),
            bits + 16 / k.shape[-1] + sink_bits(k),
        )

    return codec


def cachegen(k, v):
    """The released quantiser (one scale per layer and token over all channels), an ideal entropy
    coder per layer and channel over the whole text, and the tables that it needs at 16 bits a
    symbol and block of 1,536 tokens."""
    layers, heads, tokens, dim = k.shape
    total_bits = 0.0
    out = []
    for plane, bins_of in (
        (k, lambda i: 32 if i < layers * 10 / 32 else 16),
        (v, lambda i: 32 if i < layers * 2 / 32 else 16),
    ):
        x = plane.permute(0, 2, 1, 3).reshape(layers, tokens, heads * dim)
        y = torch.empty_like(x)
        for i in range(layers):
            c = bins_of(i) // 2 - 1
            top = half(x[i].abs().amax(-1, keepdim=True))
            top = torch.where(top > 0, top, torch.ones_like(top))
            code = (x[i] * c / top).round()
            y[i] = code / c * top
            counts = torch.zeros(2 * c + 1, heads * dim, dtype=torch.float64)
            counts.scatter_add_(0, (code + c).long(), torch.ones_like(code, dtype=torch.float64))
            p = counts / tokens
            total_bits += float(-(counts * torch.where(p > 0, p, torch.ones_like(p)).log2()).sum())
            total_bits += tokens * 16 + heads * dim * bins_of(i) * 16
        out.append(y.reshape(layers, tokens, heads, dim).permute(0, 2, 1, 3))
    return out[0], out[1], total_bits / (2 * layers * heads * tokens * dim)


CODECS = {
    "int8-g64": int8,
    "fp8-e4m3": fp8,
    "kivi4-sink1": kivi(4),
    "kivi3-sink1": kivi(3),
    "kivi2-sink1": kivi(2),
    "turbo4-sink1": turbo(4),
    "turbo3-sink1": turbo(3),
    "turbo2-sink1": turbo(2),
    "cachegen": cachegen,
}
