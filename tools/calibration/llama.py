"""Llama in PyTorch with attention that a caller brings, and its tokenizer: what calibrations run.

Weights come from a GGUF file, in float32.
"""

import pathlib
import re
import sys

import gguf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/compare/worker"))
# Needs the path above; for who imports this module.
from torch_bench import Llama, full  # noqa: E402, F401


class Tokenizer:
    """Byte-level BPE of a GGUF file whose pre-tokenizer sets digits apart, for plain English:
    letters beyond ASCII split otherwise here than in a worker."""

    WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+|\d| ?[^\sA-Za-z\d]+|\s+(?!\S)|\s+")

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        strings = lambda key: [
            bytes(fields[key].parts[i]).decode("utf-8") for i in fields[key].data
        ]
        self.tokens = strings("tokenizer.ggml.tokens")
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.ranks = {
            tuple(m.split(" ")): r for r, m in enumerate(strings("tokenizer.ggml.merges"))
        }
        # GPT-2's names of bytes: printable ones stand for themselves, the others follow from 256
        # on.
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in plain]
        self.letter = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}

    def encode(self, text):
        ids = []
        for word in self.WORDS.findall(text):
            parts = [self.letter[b] for b in word.encode("utf-8")]
            while len(parts) > 1:
                rank, at = min(
                    (self.ranks.get(pair, 1 << 30), i)
                    for i, pair in enumerate(zip(parts, parts[1:]))
                )
                if rank == 1 << 30:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            ids += [self.ids[p] for p in parts]
        return ids
