"""The tasks of `cairn fidelity` are what their generator makes, and can be answered."""

import json
import re
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks/fidelity"))
import build_tasks  # noqa: E402

TEXTS = ROOT / "benchmarks/fidelity/texts"


def contexts(split, suite):
    return json.loads((TEXTS / f"{split}-{suite}.json").read_text(encoding="utf-8"))["contexts"]


def test_files_are_the_generators(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["build_tasks.py", "--out", str(tmp_path)])
    build_tasks.main()
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) == len(build_tasks.SEEDS) * len(build_tasks.SUITES)
    for name in made:
        assert (tmp_path / name).read_bytes() == (TEXTS / name).read_bytes(), name


def test_splits_differ():
    for suite in build_tasks.SUITES:
        ours, theirs = contexts("tuning", suite), contexts("published", suite)
        assert not {json.dumps(c) for c in ours} & {json.dumps(c) for c in theirs}


def test_facts_give_the_answers():
    for context in contexts("published", "keys"):
        for case in context["cases"]:
            assert f"{case['opening'].rsplit('. ', 1)[-1]}{case['answer']}." in context["facts"]
    for context in contexts("published", "tracking"):
        for case in context["cases"]:
            name = re.search(r"(\w+) lives in the city of$", case["opening"])[1]
            same = [f for f in context["facts"] if f.startswith(f"{name} lives in the same city")]
            first = same[0].rsplit(" ", 1)[1].rstrip(".") if same else name
            assert f"{first} lives in the city of{case['answer']}." in context["facts"]


def test_the_word_that_comes_most_often_is_asked_for():
    for context in contexts("published", "aggregation"):
        words = [word for row in context["hay"] for word in re.findall(r"\w+", row)]
        often = max(set(words), key=words.count)
        assert all(case["answer"].strip() == often for case in context["cases"])


def test_sums_are_right():
    for context in contexts("published", "sums"):
        shots = [re.sub(r"^Question: ", "", shot) for shot in context["facts"] + context["hay"]]
        for text in [*shots, *(c["question"] + c["answer"] for c in context["cases"])]:
            a, b, total, said = map(
                int, re.search(r"(\d+) \+ (\d+) = (\d+)\. The answer is (\d+)", text).groups()
            )
            assert a + b == total == said
