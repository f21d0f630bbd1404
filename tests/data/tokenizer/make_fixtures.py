#!/usr/bin/env python3
"""Writes the tokenizer fixtures of this folder, with Hugging Face `tokenizers` as the reference.

Usage: make_fixtures.py MODEL.gguf [--output DIR]     (Python packages: gguf 0.19, tokenizers 0.23)

MODEL.gguf is SmolLM2-135M-Instruct (tools/fetch_model.py). The files are described in README.md.
"""

import argparse
import hashlib
import json
import pathlib
import random
import struct
import unicodedata

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

CONTROL = 3
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Every character with the White_Space property, and some that are often taken for one.
SPACES = list(" \n\t\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000")
SPACES += ["\r\n", "\u180e", "\u200b", "\ufeff", "\x1c", "\x1f", "\x00"]
# Specials (whole and broken), contractions in all cases, numbers that are no ASCII digits.
MARKS = ["<|im_start|>", "<|im_end|>", "<|im_", "<|endoftext|>", "<repo_name>", "<<|im_end|>>"]
MARKS += ["'s", "'S", "'\u017f", "'ll", "'LL", "'re", "'Ve", "'d", "''", "\u2019s"]
MARKS += ["\u00bd", "\u00b2", "\u2167", "\u0663", "\u0967\u0968\u0969", "\u212a", "\U0001d7d8"]
PROSE = """\
Die Größe des Übergangs überraschte niemanden; „schön“, sagte sie – und ging. 3,14 ≈ π.
Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
いろはにほへと ちりぬるを 色は匂へど散りぬるを。天地玄黄，宇宙洪荒。다람쥐 헌 쳇바퀴에 타고파.
نص حكيم له سر قاطع وذو شأن عظيم. דג סקרן שט בים מאוכזב. ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण।
👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 e\u0301 \u1e9b\u0323 ﬁ ﷺ
int main() {\n\tprintf("%5.2f\\n", 1e-10 * 0xFFu);\n\treturn 0; // it's done\n}\r\n
"""


def reference(tokens, types, merges, pre):
    bpe = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
        ignore_merges=pre == "llama-bpe",
    )
    tokenizer = Tokenizer(bpe)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "llama-bpe")
    first = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")],
    }[pre]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(first + [byte_level])
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types)
            if kind == CONTROL
        ]
    )
    return tokenizer


def corpus(rng):
    """Prose, a random mix of hard cases, and characters of every assigned range."""
    assigned = [
        chr(c)
        for c in range(0x30000)
        if not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c)) not in ("Cn", "Co")
    ]
    rare = [c for c in assigned if not 0x3400 <= ord(c) <= 0xD7FF and ord(c) < 0x20000]
    letters = "etaoinshrdluETAOIN0123456789"
    parts = [PROSE]
    for _ in range(12000):
        kind = rng.random()
        if kind < 0.3:
            parts.append(chr(rng.randrange(32, 127)))
        elif kind < 0.45:
            parts.append(rng.choice(assigned))
        elif kind < 0.65:
            parts.append(rng.choice(SPACES) * rng.randint(1, 3))
        elif kind < 0.75:
            parts.append(rng.choice(MARKS))
        else:
            parts.append("".join(rng.choice(letters) for _ in range(rng.randint(1, 7))))
    parts.append("".join(rng.sample(rare, 20000)))
    parts.append("a" * 3000 + " " * 2000 + "\n" * 500 + "=" * 1500 + "1" * 700)
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    args = parser.parse_args()

    fields = GGUFReader(args.model).fields
    tokens, types, merges = (
        fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")
    )
    # The vocabulary is control tokens, single bytes, then one token per merge, in order.
    base = len(tokens) - len(merges)
    assert all(tokens[base + i] == merge.replace(" ", "") for i, merge in enumerate(merges))
    assert [kind == CONTROL for kind in types] == [i < 17 for i in range(len(tokens))]
    with open(args.output / "smollm2.base.txt", "w", encoding="utf-8", newline="") as out:
        out.write("".join(token + "\n" for token in tokens[:base]))
    with open(args.output / "smollm2.merges.txt", "w", encoding="utf-8", newline="") as out:
        out.write("".join(merge + "\n" for merge in merges))

    text = corpus(random.Random(20240601))
    with open(args.output / "corpus.txt", "w", encoding="utf-8", newline="") as out:
        out.write(text)
    digests = {}
    for pre in ("smollm", "gpt-2", "llama-bpe"):
        ids = reference(tokens, types, merges, pre).encode(text, add_special_tokens=False).ids
        raw = struct.pack(f"<{len(ids)}i", *ids)
        digests[pre] = {"count": len(ids), "sha256": hashlib.sha256(raw).hexdigest()}
    with open(args.output / "corpus.json", "w", encoding="utf-8") as out:
        json.dump(digests, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
