"""docs/methods/fidelity-claims.md says of papers' claims what the reports in benchmarks/results
say."""

import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks/fidelity"))
import claims
import paired

PAGE = ROOT / "docs/methods/fidelity-claims.md"
LEAST_OVERLAP = 0.98


def page():
    return PAGE.read_text(encoding="utf-8")


def reports():
    """The arguments of the command that the page gives for its tables."""
    command = re.search(r"^python3 benchmarks/fidelity/claims\.py ((?:.*\\\n)*.*)$", page(), re.M)
    given = []
    for argument in shlex.split(command[1].replace("\\\n", " ")):
        label, equals, path = argument.rpartition("=")
        given.append(f"{label}{equals}{ROOT / path}")
    return given


@pytest.fixture(scope="module")
def rows():
    return claims.Rows(reports())


@pytest.fixture(scope="module")
def table(rows):
    return claims.table(rows)


def test_the_claims_are_those_of_the_reports(table):
    lines = page().splitlines()
    for line in table:
        assert line in lines


def test_the_values_are_those_of_the_reports(rows):
    lines = page().splitlines()
    for line in claims.values(rows):
        assert line in lines


def test_every_question_of_selections_and_codecs_has_an_answer(table):
    for question in claims.SELECTIONS + claims.CODECS:
        begin = f"| {question.paper} | {question.asked} |"
        assert any(line.startswith(begin) for line in table), begin


def methods():
    """The names in the table of docs/methods/selections-methods.md."""
    text = (ROOT / "docs/methods/selections-methods.md").read_text(encoding="utf-8")
    table = text[text.index("| name | source |") :].split("\n\n", 1)[0]
    return re.findall(r"^\| `([\w-]+)`", table, re.M)


def overlaps():
    """Method and mean overlap of each row of an end-to-end comparison with a reference."""
    row = re.compile(r"^\| `([\w-]+):[^`]*` \| (?:kvpress|own)-[^|]+ \| \d+ \| ([\d.]+) \|", re.M)
    for name in ("fidelity-claims.md", "fidelity-selections.md"):
        for method, mean in row.findall((ROOT / "docs/methods" / name).read_text(encoding="utf-8")):
            yield method, float(mean)


def test_every_method_keeps_the_rows_of_its_reference_end_to_end():
    found = list(overlaps())
    assert len(methods()) > 20
    assert not set(methods()) - {method for method, _ in found}
    for method, mean in found:
        assert mean >= LEAST_OVERLAP, method


def test_sizes_say_what_is_read_and_what_is_stored():
    read, stored = {"read_bits_per_number": 0.742, "bits_per_number": 5}, {"bits_per_number": 3.2}
    assert claims.sizes(read, stored) == "0.74 bits read, 3.20 bits stored"
    assert claims.sizes(read, read) == "0.74, 0.74 bits read"
    assert claims.sizes(stored, stored) == "3.20, 3.20 bits"


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks/fidelity" / program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("claims.py", [[]]),
        ("compare.py", [["--cairn"]]),
        ("selections.py", [["--cairn"]]),
        ("reading.py", [["--cairn"]]),
        ("reading.py", [["--bench"]]),
        ("kept_neighbours.py", [[]]),
        ("kept_overlap.py", [["--cairn"], ["--reference"]]),
    ],
)
def test_files_that_are_no_reports_are_named_without_a_traceback(program, flags, tmp_path):
    texts = {"none.json": None, "page.md": "# A page", "list.json": "[]", "other.json": '{"a": 1}'}
    rows = '{"rows": [{"suite": "prose"}], "recipes": [{"recipe": "raw"}]}'
    for name, text in (texts | {"rows.json": rows}).items():
        path = tmp_path / name
        if text is not None:
            path.write_text(text, encoding="utf-8")
        done = run(program, *(word for flag in flags for word in [*flag, str(path)]))
        assert done.returncode == 2, (name, done.stderr)
        assert f"error: {path}: " in done.stderr
        assert "Traceback" not in done.stderr


def documents(*kls):
    return {"suite": "prose", "texts": [[kl, 10] for kl in kls]}


def contexts(*answers):
    return {"suite": "needles", "texts": list(answers)}


def test_documents_are_compared_by_the_ratio_of_kl():
    found = paired.difference(documents(1, 2, 3), documents(2, 4, 6))
    assert (found.value, found.low, found.high, found.texts) == (0.5, 0.5, 0.5, 3)
    assert found.words() == "KL x 0.500 (0.500 to 0.500)"
    assert found.answer() == "yes"
    assert paired.difference(documents(2, 4), documents(1, 2)).answer() == "no"


def test_questions_are_compared_where_full_kv_answers_them():
    found = paired.difference(contexts([1, 1, None], [1, 0, 1]), contexts([0, 1, 1], [0, None, 1]))
    assert found.value == 50  # 4 of 4 cases to 2 of 4.
    assert found.words().startswith("+50.0 points (")
    assert paired.difference(contexts([None]), contexts([1])) is None


def test_rows_of_different_lengths_are_compared_over_the_texts_of_both():
    found = paired.difference(documents(1, 1), documents(1, 1, 50))
    assert (found.value, found.texts) == (1, 2)


def test_differences_with_both_signs_are_not_told_apart():
    texts = [[1, 1], [0, 0], [1, 1], [0, 0]]
    found = paired.difference(contexts(*texts), contexts(*reversed(texts)))
    assert found.low < 0 < found.high
    assert found.answer() == "not told apart"


def test_contexts_with_other_cases_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        paired.difference(contexts([1, 0]), contexts([1, 0, 1]))
