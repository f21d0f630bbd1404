"""Subjects of commits begin with a verb of the list in docs/inside/style.md."""

import re
import subprocess

import pytest

from conftest import ROOT

# Older subjects follow no list.
BASE = "209faf02b94d"
PAGE = "docs/inside/style.md"


def verbs(page):
    """The list, from the line behind "usual verb:" to its period."""
    listed = re.search(r"usual verb:\n(.*?)\.\n", page, flags=re.DOTALL)[1]
    return [verb.strip() for verb in listed.replace("\n", " ").split(",")]


VERBS = verbs((ROOT / PAGE).read_text(encoding="utf-8"))


def wrong(subjects):
    return [s for s in subjects if not any(s.startswith(verb + " ") for verb in VERBS)]


def git(*arguments):
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def test_subjects_begin_with_a_verb_of_the_list():
    if git("merge-base", "--is-ancestor", BASE, "HEAD") is None:
        pytest.skip(f"no git, or a clone without {BASE}: the commits since then are unknown")
    subjects = git("log", "--no-merges", "--format=%s", f"{BASE}..HEAD").splitlines()
    found = wrong(subjects)
    assert not found, f"expected one of {', '.join(VERBS)} ({PAGE}):\n" + "\n".join(found)


@pytest.mark.parametrize(
    "subject, right",
    [
        ("Add a tier", True),
        ("Speed up the match", True),
        ("Adds a tier", False),
        ("Let a tier grow", False),
        ("wip", False),
    ],
)
def test_which_subjects_are_right(subject, right):
    assert (not wrong([subject])) == right
