"""The numbers that Cairn's selections draw (kernels/selections/stages/random_numbers.h)."""

import numpy as np


def split_mix(seed, of, count):
    """The first numbers of SplitMix64 with a seed of its own for each list of integers: uint64
    [count]."""

    def mixed(z):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    gamma = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        state = np.uint64(seed)
        for x in of:
            state = mixed((state ^ np.uint64(x)) + gamma)
        return mixed(state + gamma * np.arange(1, count + 1, dtype=np.uint64))
