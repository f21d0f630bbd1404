"""Byte-level BPE of a GGUF file whose pre-tokenizer is `smollm`, as a worker has it
(model/pre_tokenizer.h): control tokens are found first, then every digit stands alone, and then
GPT-2's rule splits each part between digits, as if nothing stood around it.
"""

import itertools
import re
import unicodedata

CONTROL = 3  # The kind of control tokens in GGUF files.
CONTRACTION = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
# GPT-2's rule but the contractions, on a text in which every letter is `a`, every white space but
# the plain one a line end, and everything else `!`.
WORD = re.compile(r" ?a+| ?!+|[ \n]+(?![a!])|[ \n]+")
# Unicode's White_Space. Python's \s also has the separators U+001C to U+001F.
WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)


def is_number(character):
    return unicodedata.category(character)[0] == "N"


def shape(character):
    if character in WHITE_SPACE:
        return " " if character == " " else "\n"
    return "a" if unicodedata.category(character)[0] == "L" else "!"


def between_digits(text):
    """Digits alone, and what lies between them."""
    begin = 0
    for i, character in enumerate(text):
        if is_number(character):
            if begin < i:
                yield text[begin:i]
            yield character
            begin = i + 1
    if begin < len(text):
        yield text[begin:]


def words(text):
    for part in between_digits(text):
        if is_number(part[0]):
            yield part
            continue
        shapes, at = "".join(map(shape, part)), 0
        while at < len(part):
            end = (CONTRACTION.match(part, at) or WORD.match(shapes, at)).end()
            yield part[at:end]
            at = end


class Tokenizer:
    """Thread-compatible. Strings of bytes are spelled as GPT-2 spells them: printable bytes stand
    for themselves, the others follow from 256 on."""

    def __init__(self, tokens, merges, control=()):
        """tokens: the spelling of each id. merges: pairs of spellings, the first one to be merged
        first. control: tokens that texts contain as they are."""
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.control = re.compile(f"({'|'.join(map(re.escape, control))})") if control else None
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in plain]
        self.letter = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}

    @classmethod
    def of_file(cls, path):
        """The tokenizer of a GGUF file. ValueError if its pre-tokenizer is another one."""
        import gguf  # Only files need it.

        fields = gguf.GGUFReader(path).fields
        strings = lambda key: [
            bytes(fields[key].parts[i]).decode("utf-8") for i in fields[key].data
        ]
        name = strings("tokenizer.ggml.pre")[0]
        if name != "smollm":
            raise ValueError(f"tokenizer.ggml.pre: got '{name}', expected 'smollm'")
        tokens = strings("tokenizer.ggml.tokens")
        types = fields["tokenizer.ggml.token_type"]
        kinds = [int(types.parts[i][0]) for i in types.data]
        control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
        merges = [tuple(m.split(" ")) for m in strings("tokenizer.ggml.merges")]
        return cls(tokens, merges, control)

    def encode(self, text):
        """Ids of a text. Bytes that the vocabulary lacks are left out, as in a worker."""
        ids = []
        for i, part in enumerate(self.control.split(text) if self.control else [text]):
            if i % 2:  # The parts that the pattern found stand between the others.
                ids.append(self.ids[part])
                continue
            for word in words(part):
                ids += self._merged(word)
        return ids

    def _merged(self, word):
        parts = [self.letter[b] for b in word.encode("utf-8")]
        while len(parts) > 1:
            rank, at = min(
                (self.ranks.get(pair, len(self.ranks)), i)
                for i, pair in enumerate(itertools.pairwise(parts))
            )
            if rank == len(self.ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[p] for p in parts if p in self.ids]
