"""docs/operate/security-model.md and docs/inside/robustness.md: each test that they name is in the
tree, and each row of what was found, and of kinds of faults, says what holds it."""

import re

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs/operate/security-model.md").read_text(encoding="utf-8")
KINDS_PAGE = (ROOT / "docs/inside/robustness.md").read_text(encoding="utf-8")
PAGES = {"security-model.md": PAGE, "robustness.md": KINDS_PAGE}
RECIPES = ROOT / "tests/fault/adversary/recipes.cc"
CASES = ROOT / "tests/cases"

# `Suite.Case`, or `Suite.*` for all of its cases.
NAMED = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+|\*)`")
DECLARED = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
NAMED_RECIPES = re.compile(r"[Rr]ecipes?\s((?:`\w+`(?:,\s|\s?and\s)?)+)")
NAMED_FILES = re.compile(r"`(?:tests/)?((?:\w+/)+test_\w+\.py)`")
ROWS = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", PAGE, flags=re.MULTILINE)
# The letter of a kind, and what holds it.
KINDS = re.findall(r"^\| ([A-Z]) \|.*\| ([^|]*) \|$", KINDS_PAGE, flags=re.MULTILINE)


def all_tests():
    """(suite, case) of all tests in C++."""
    return {
        test
        for path in (ROOT / "tests").rglob("*_test.cc")
        for test in DECLARED.findall(path.read_text(encoding="utf-8"))
    }


def missing(named, tests):
    suites = {suite for suite, _ in tests}
    return [
        f"{suite}.{case}"
        for suite, case in named
        if ((suite not in suites) if case == "*" else ((suite, case) not in tests))
    ]


def missing_files(text):
    return [name for name in NAMED_FILES.findall(text) if not (ROOT / "tests" / name).is_file()]


@pytest.mark.parametrize(("page", "least"), [("security-model.md", 100), ("robustness.md", 20)])
def test_each_test_on_the_page_exists(page, least):
    named = NAMED.findall(PAGES[page])
    assert len(named) > least
    assert not missing(named, all_tests())
    assert NAMED_FILES.findall(PAGES[page])
    assert not missing_files(PAGES[page])


def test_a_name_that_no_test_has_is_found():
    assert missing(
        [("Gone", "*"), ("Here", "*"), ("Here", "Old"), ("Here", "Now")], {("Here", "Now")}
    ) == ["Gone.*", "Here.Old"]
    text = "`cases/test_gone.py`, `tests/ops/test_gone.py`, `ops/test_security_model.py`"
    assert missing_files(text) == ["cases/test_gone.py", "ops/test_gone.py"]


def test_each_recipe_on_the_page_exists():
    declared = set(
        re.findall(r'^    \{"(\w+)"', RECIPES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    named = {name for run in NAMED_RECIPES.findall(PAGE) for name in re.findall(r"`(\w+)`", run)}
    assert len(declared) > 30 and len(named) > 20
    assert not named - declared


def test_each_row_of_what_was_found_has_a_test_or_says_that_there_is_none():
    assert [int(number) for number, _ in ROWS] == list(range(1, 57))
    silent = [number for number, tests in ROWS if not NAMED.search(tests) and "o test" not in tests]
    assert not silent


def test_each_kind_of_fault_has_a_test():
    assert "".join(letter for letter, _ in KINDS) == "ABCDEFGHIJKLMNOPQ"
    silent = [k for k, tests in KINDS if not NAMED.search(tests) and not NAMED_FILES.search(tests)]
    assert not silent


def test_each_case_of_strangers_stands_for_a_kind():
    # Each file in tests/cases is on the page, so that its kind is known.
    named = {name.rpartition("/")[2] for name in NAMED_FILES.findall(KINDS_PAGE)}
    assert sorted({path.name for path in CASES.glob("test_*.py")} - named) == []
