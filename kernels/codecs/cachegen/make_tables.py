#!/usr/bin/env python3
"""Writes cachegen_tables.inc: the frequencies of the entropy coder, part of the format.

    python3 kernels/codecs/cachegen/make_tables.py \\
        > kernels/include/cairn/kernels/codec/cachegen_tables.inc

Class c stands for whole numbers drawn from a normal distribution with a standard deviation of 2^((c
- 4) / 2), rounded. Eleven classes have a table of 2048; its symbols are -r ... r, then the escape.
A little of a wider normal is mixed in, since real channels have tails.
"""

import math

SLOTS = 2048
CLASSES = 11
LARGEST = 31


def cdf(x, sigma):
    return 0.5 * (1 + math.erf(x / (sigma * math.sqrt(2))))


def probability(n, sigma):
    return sum(w * (cdf(n + 0.5, s) - cdf(n - 0.5, s)) for w, s in ((0.9, sigma), (0.1, 2 * sigma)))


def table(sigma):
    reach = min(LARGEST, math.ceil(5 * sigma) + 1)
    p = [probability(n, sigma) for n in range(-reach, reach + 1)]
    p.append(max(1 - sum(p), 0.0))
    counts = [max(1, round(SLOTS * x)) for x in p]
    while sum(counts) != SLOTS:
        # One more or one less where it costs least.
        step = 1 if sum(counts) < SLOTS else -1
        able = [i for i, c in enumerate(counts) if c + step >= 1]
        best = min(able, key=lambda i: -p[i] * math.log((counts[i] + step) / counts[i]))
        counts[best] += step
    return reach, counts


def main():
    print("// Made by make_tables.py: part of the format.")
    tables = [table(2.0 ** ((c - 4) / 2)) for c in range(CLASSES)]
    print("inline constexpr uint8_t kReach[] = {" + ", ".join(str(r) for r, _ in tables) + "};")
    print("inline constexpr uint16_t kFrequencies[][64] = {")
    for _, counts in tables:
        print("    {" + ", ".join(map(str, counts)) + "},")
    print("};")
    # Steps under 4 use a window of the classes that begins higher, see
    # docs/inside/formats/codecs.md: hence 20. A channel has class c when the mean of its squares,
    # times 1024, is above the limits below c: geometric means of neighbours' variances after
    # rounding (+ 1/12).
    variances = [2.0 ** (c - 4) + 1 / 12 for c in range(20)]
    limits = [round(1024 * math.sqrt(variances[c] * variances[c + 1])) for c in range(19)]
    print("inline constexpr int64_t kClassLimits[] = {" + ", ".join(map(str, limits)) + "};")


if __name__ == "__main__":
    main()
