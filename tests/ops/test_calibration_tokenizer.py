"""The tokenizer that calibrations use gives the ids of Cairn's, which the same files hold to
Hugging Face's."""

import hashlib
import json
import struct
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools/calibration"))
import tokenizer

FILES = ROOT / "tests/data/tokenizer"


def lines(name):
    return (FILES / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.fixture(scope="module")
def smollm2():
    base = lines("smollm2.base.txt")
    merges = [tuple(line.split(" ")) for line in lines("smollm2.merges.txt")]
    tokens = base + [a + b for a, b in merges]
    return tokenizer.Tokenizer(tokens, merges, base[:17])


def test_ids_are_those_of_the_reference(smollm2):
    reference = json.loads((FILES / "reference.json").read_text(encoding="utf-8"))
    for case in reference["encode"]:
        assert smollm2.encode(case["text"]) == case["ids"], case["name"]


def test_ids_of_hard_cases_are_those_of_the_reference(smollm2):
    expected = json.loads((FILES / "corpus.json").read_text(encoding="utf-8"))["smollm"]
    ids = smollm2.encode((FILES / "corpus.txt").read_bytes().decode("utf-8"))
    assert len(ids) == expected["count"]
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
    assert digest == expected["sha256"]


def test_white_space_before_a_digit_stays_whole():
    assert list(tokenizer.words("at  7\n\n 8")) == ["at", "  ", "7", "\n\n ", "8"]


def test_letters_beyond_ascii_are_letters():
    assert list(tokenizer.words("it's naïve café")) == ["it", "'s", " naïve", " café"]
