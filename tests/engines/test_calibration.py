"""The scripts of tools/calibration find the heads and directions that were planted. They need torch
and gguf, which the environment of tests/engines has; no model is read."""

import argparse
import hashlib
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/calibration"))

import duo_heads  # noqa: E402
import head_file  # noqa: E402
import headkv_heads  # noqa: E402
import infinigen_rotations  # noqa: E402
import razor_heads  # noqa: E402
import rotation_file  # noqa: E402
import sample_text  # noqa: E402

HEADS, KV_HEADS, DIM = 4, 2, 256


def planted(tokens, head, sees):
    """Queries and keys whose heads look at random, but query head `head` at row sees[i] from row i
    (-1: at random)."""
    draw = torch.Generator().manual_seed(3)
    k = torch.nn.functional.normalize(torch.randn(KV_HEADS, tokens, DIM, generator=draw), dim=-1)
    q = torch.randn(HEADS, tokens, DIM, generator=draw)
    for row, at in enumerate(sees):
        if at >= 0:
            q[head, row] = 200 * k[head * KV_HEADS // HEADS, at]
    return q, k


def test_razor_finds_induction_and_echo():
    period, repeats = 24, 3
    n = period * repeats
    # Row i of a repeat is row i - period of the one before; what followed it is one row later.
    induction = [-1 if i < period else i - period + 1 for i in range(n)]
    echo = [-1 if i < period else i - period for i in range(n)]
    of_echo, of_induction = razor_heads.head_scores(*planted(n, 2, induction), period)
    assert int(of_induction.argmax()) == 2
    assert of_induction[2] > 0.9
    assert of_echo[2] < 0.1
    of_echo, of_induction = razor_heads.head_scores(*planted(n, 1, echo), period)
    assert int(of_echo.argmax()) == 1
    assert of_echo[1] > 0.9
    assert of_induction[1] < 0.1


def test_razor_takes_one_head_by_echo_after_fourteen_by_induction():
    echo = torch.zeros(10, 3)
    induction = torch.arange(30, 0, -1.0).view(10, 3)
    echo[9, 2] = 1
    scores = razor_heads.in_one_order(echo, induction).flatten()
    order = torch.sort(scores, descending=True).indices.tolist()
    assert order[:14] == list(range(14))
    assert order[14] == 29
    assert order[15:] == list(range(14, 29))
    assert scores.max() == 1
    assert scores.min() == 0
    assert razor_heads.in_one_order(echo, induction).tolist() == (
        razor_heads.in_one_order(echo, induction).tolist()
    )


def test_razor_repeats_tokens_that_are_not_special():
    ids = razor_heads.repeated(1000, 16, 3, seed=5)
    assert ids.tolist() == ids[:16].tolist() * 3
    assert ids.min() >= 64


def test_duo_masks_all_but_the_first_and_the_most_recent_rows():
    mask = duo_heads.streaming_mask(10, sinks=2, recent=3)
    assert mask[9].tolist() == [True, True] + [False] * 5 + [True] * 3
    assert mask[1].tolist() == [True, True] + [False] * 8


def test_duo_mixes_full_and_streaming_attention_by_gates():
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(h, 40, 16, generator=draw) for h in (HEADS, KV_HEADS, KV_HEADS))
    visible = duo_heads.streaming_mask(40, 2, 5)
    full = duo_heads.full(0, q, k, v)
    at = lambda *gates: duo_heads.gated(torch.tensor([gates]), visible)(0, q, k, v)
    assert torch.allclose(at(1.0, 1.0), full, atol=1e-6)
    closed = at(0.0, 0.0)
    assert not torch.allclose(closed, full, atol=1e-2)
    # The second KV head belongs to the third and fourth query heads.
    mixed = at(1.0, 0.25)
    assert torch.allclose(mixed[:2], full[:2], atol=1e-6)
    assert torch.allclose(mixed[2:], 0.25 * full[2:] + 0.75 * closed[2:], atol=1e-5)


class Spaces:
    """A tokenizer of words."""

    def __init__(self):
        self.tokens = ["Ġ" + 3 * a + b for a in "abcdefg" for b in "qrstu"]
        self.ids = {}

    def encode(self, text):
        return [1000 + self.ids.setdefault(w, len(self.ids)) for w in text.split()]


def test_duo_asks_where_passkeys_are_foretold():
    contexts = duo_heads.Contexts(Spaces(), list(range(200, 900)), 2, 3, 160, seed=7)
    ids, asked = contexts.next()
    assert len(ids) == 160
    assert int(asked.sum()) == 2 * 3
    rows = torch.nonzero(asked)[:, 0]
    key = [int(ids[r + 1]) for r in rows[:3]]
    text = ids.tolist()
    first = next(i for i in range(160) if text[i : i + 3] == key)
    assert first < int(rows[0]), "the passkey stands in the context before it is asked for"


class TwoHeads:
    """A model of one layer in which each token looks at equal ones, whose values differ. Only what
    the first head finds is in the states."""

    layers, kv_heads = 1, 2

    def __init__(self):
        draw = torch.Generator().manual_seed(8)
        self.embedding = torch.randn(2000, 32, generator=draw)
        self.values = torch.randn(160, 32, generator=draw)

    def states(self, ids, attend):
        keys, values = (x.expand(2, -1, -1) for x in (self.embedding[ids], self.values))
        return attend(0, 2 * keys, keys, values)[0]


def test_duo_closes_the_gate_of_the_head_that_nothing_needs():
    contexts = duo_heads.Contexts(Spaces(), list(range(200, 900)), 2, 3, 160, seed=7)
    args = argparse.Namespace(
        tokens=160, sinks=2, recent=16, steps=30, contexts=3, rate=0.1, weight=0.05
    )
    (gates,), steps = duo_heads.train(TwoHeads(), contexts, args)
    assert steps == 30
    # In the mean over the steps, of which the first ones begin at 1.
    assert gates[0] > 0.8
    assert gates[1] < 0.6


def test_texts_are_joined_and_named(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"text of {name}", encoding="utf-8")
    texts = sample_text.SampleText([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert texts.text == "text of a.txt\n\ntext of b.txt"
    digest = hashlib.sha256(texts.text.encode()).hexdigest()
    assert texts.about == f"text: a.txt, b.txt, SHA-256 {digest}"


def test_headkv_scores_the_head_that_looks_at_the_needle():
    rows, needle = torch.arange(50, 54), (10, 18)
    sees = [-1] * 50 + [12, 13, 14, 15]
    scores = headkv_heads.needle_scores(*planted(54, 3, sees), needle, rows)
    assert int(scores.argmax()) == 3
    assert scores[3] > 0.9
    # Attention to the needle counts only where it is among the largest.
    away = [-1] * 50 + [30, 31, 32, 33]
    assert headkv_heads.needle_scores(*planted(54, 3, away), needle, rows)[3] < 0.05


def test_headkv_hides_the_needle_and_asks_for_its_end():
    needles = headkv_heads.Needles(Spaces(), list(range(200, 900)), 4, 120, seed=2)
    ids, (begin, end), rows = needles.next()
    assert len(ids) == 120
    answer = ids[rows + 1].tolist()
    assert ids[end - 4 : end].tolist() == answer
    assert begin < end < int(rows[0])
    again = headkv_heads.Needles(Spaces(), list(range(200, 900)), 4, 120, seed=2).next()
    assert again[0].tolist() == ids.tolist()


def test_a_file_is_named_by_its_digest_and_names_its_weights(tmp_path):
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"weights")
    path = head_file.write(tmp_path, "headkv", weights, [[0.5, 0.25], [1, 0]], ["by a test"])
    body = path.read_bytes()
    assert path.name == hashlib.sha256(body).hexdigest() + ".heads"
    assert body.decode().splitlines() == [
        "cairn head-scores 1",
        "# by a test",
        "method headkv",
        f"weights {hashlib.sha256(b'weights').hexdigest()}",
        "layers 2",
        "kv_heads 2",
        "0.50000 0.25000",
        "1.00000 0.00000",
    ]


def test_infinigen_finds_the_direction_in_which_queries_lie():
    draw = torch.Generator().manual_seed(4)
    planted = torch.nn.functional.normalize(torch.randn(8, generator=draw), dim=0)
    queries = 0.1 * torch.randn(500, 8, generator=draw)
    queries += 5 * torch.randn(500, 1, generator=draw) * planted
    directions, means = infinigen_rotations.rotation(queries)
    assert abs(float(directions[0].float() @ planted)) > 0.999
    assert torch.allclose(directions @ directions.T, torch.eye(8).double(), atol=1e-9)
    assert means[0] > 10 * means[1:].max()
    # Always the same one of a direction and its opposite.
    assert torch.equal(infinigen_rotations.rotation(-queries)[0], directions)


def test_a_file_of_rotations_has_the_queries_before_the_directions(tmp_path):
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"weights")
    head = (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0.5, 2.0]))
    path = rotation_file.write(tmp_path, weights, [[head]], ["by a test"])
    body = path.read_bytes()
    assert path.name == hashlib.sha256(body).hexdigest() + ".rotations"
    lines = [
        "cairn key-rotations 1",
        "# by a test",
        f"weights {hashlib.sha256(b'weights').hexdigest()}",
        "layers 1",
        "kv_heads 1",
        "head_dim 2",
    ]
    text = "".join(line + "\n" for line in lines).encode()
    assert body.startswith(text)
    numbers = torch.frombuffer(bytearray(body[len(text) :]), dtype=torch.float16)
    assert numbers.tolist() == [0.5, 2, 0, 1, 1, 0]
