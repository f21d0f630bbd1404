"""The connector in the real vLLM with prompts that are no tokens: embeddings, and sounds
between words."""

import random

import numpy
import pytest
import torch

from conftest import ALONE, ENGINE, Counts, Engine, made, same
from make_model import SOUND

BYPASSED = 0


def ask(engine, prompt, cached, answer):
    [found] = engine.ask(prompt)
    same([found], [answer])
    assert found["cached"] == cached


@pytest.fixture(scope="module")
def prompts_of_embeddings(tmp_path_factory):
    """Two that differ in one number, and the first in another type."""
    folder = tmp_path_factory.mktemp("embeddings")
    rows = torch.randn(992, 128, generator=torch.Generator().manual_seed(5)) * 0.3
    other = rows.clone()
    other[5, 7] += 3.0
    found = []
    for name, tensor in (("one", rows), ("other", other), ("half", rows.to(torch.float16))):
        torch.save(tensor, folder / name)
        found.append({"embeddings": str(folder / name)})
    return found


def test_embeddings(tiny, engine_log, start_node, prompts_of_embeddings):
    one, other, half = prompts_of_embeddings
    options = {**ENGINE, **ALONE, "enable_prompt_embeds": True}
    node = start_node()
    with Engine(tiny, engine_log(), **options) as engine:
        expected = [engine.ask(prompt)[0] for prompt in (one, other)]
    assert expected[0]["ids"] != expected[1]["ids"]

    with Counts(node) as counts:
        with Engine(tiny, engine_log(), connector={"address": node.grpc}, **options) as engine:
            ask(engine, one, 0, expected[0])
            counts.wait_blocks(31)
            ask(engine, one, 960, expected[0])
            # The first block differs, and so all keys do.
            ask(engine, other, 0, expected[1])
            counts.wait_blocks(62)
            # Of another type than the model's: neither found nor stored.
            [rounded] = engine.ask(half)
            assert rounded["cached"] == BYPASSED
        with Engine(tiny, engine_log(), connector={"address": node.grpc}, **options) as engine:
            ask(engine, one, 960, expected[0])
            ask(engine, other, 960, expected[1])
        assert counts.blocks() == 62


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Two of a second each."""
    folder, found = tmp_path_factory.mktemp("recordings"), []
    for seed in (1, 2):
        path = folder / f"{seed}.npy"
        numpy.save(path, numpy.random.default_rng(seed).normal(size=16000).astype("float32"))
        found.append(str(path))
    return found


def test_sounds(engine_log, start_node, recordings):
    """A prompt of 100 bytes, a sound of 25 tokens, and 180 bytes: 9 blocks of 32 tokens."""
    model, draw = made("sounds"), random.Random(3)
    before, behind = ("".join(draw.choices("abcdefgh", k=count)) for count in (100, 180))
    text = f"{before}{SOUND}{behind}"
    one, other = ({"text": text, "sound": recording} for recording in recordings)
    named = [{**one, "uuid": "a cat"}, {**other, "uuid": "a dog"}]
    options = {**ENGINE, **ALONE, "limit_mm_per_prompt": {"audio": 1}}
    with Engine(model, engine_log(), **options) as engine:
        expected = [engine.ask(prompt)[0] for prompt in (one, other)]
    assert expected[0]["ids"] != expected[1]["ids"]

    node = start_node()
    with Counts(node) as counts:
        bypass = {"address": node.grpc}
        with Engine(model, engine_log(), connector=bypass, **options) as engine:
            for _ in range(2):
                ask(engine, one, BYPASSED, expected[0])
        assert counts.blocks() == 0
        trust = {"address": node.grpc, "media": "engine"}
        with Engine(model, engine_log(), connector=trust, **options) as engine:
            ask(engine, one, 0, expected[0])
            counts.wait_blocks(9)
            ask(engine, one, 288, expected[0])
            # Alike up to the sound: three blocks, and six of its own.
            ask(engine, other, 96, expected[1])
            counts.wait_blocks(15)
            # A name that a caller chose names no contents.
            for prompt, answer in zip(named, expected):
                ask(engine, prompt, BYPASSED, answer)
        with Engine(model, engine_log(), connector=trust, **options) as engine:
            ask(engine, other, 288, expected[1])
            ask(engine, one, 288, expected[0])
        assert counts.blocks() == 15
