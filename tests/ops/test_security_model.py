"""docs/operate/security-model.md: each test that it names is in the tree, and each row of what was
found says what holds it."""

import re

from conftest import ROOT

PAGE = (ROOT / "docs/operate/security-model.md").read_text(encoding="utf-8")
RECIPES = ROOT / "tests/fault/adversary/recipes.cc"

# `Suite.Case`, or `Suite.*` for all of its cases.
NAMED = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+|\*)`")
DECLARED = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
NAMED_RECIPES = re.compile(r"[Rr]ecipes?\s((?:`\w+`(?:,\s|\s?and\s)?)+)")
ROWS = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", PAGE, flags=re.M)


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


def test_each_test_on_the_page_exists():
    named = NAMED.findall(PAGE)
    assert len(named) > 100
    assert not missing(named, all_tests())


def test_a_name_that_no_test_has_is_found():
    assert missing(
        [("Gone", "*"), ("Here", "*"), ("Here", "Old"), ("Here", "Now")], {("Here", "Now")}
    ) == ["Gone.*", "Here.Old"]


def test_each_recipe_on_the_page_exists():
    declared = set(re.findall(r'^    \{"(\w+)"', RECIPES.read_text(encoding="utf-8"), flags=re.M))
    named = {name for run in NAMED_RECIPES.findall(PAGE) for name in re.findall(r"`(\w+)`", run)}
    assert len(declared) > 30 and len(named) > 20
    assert not named - declared


def test_each_row_of_what_was_found_has_a_test_or_says_that_there_is_none():
    assert [int(number) for number, _ in ROWS] == list(range(1, 54))
    silent = [number for number, tests in ROWS if not NAMED.search(tests) and "o test" not in tests]
    assert not silent
