"""tools/lint.py: which files it checks, and that a finding fails."""

import json
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

CLEAN = "int Zero() { return 0; }\n"
WRONG = "int Zero(int unused) { return 0; }\n"


class Tree:
    """A small repository with the script, and compile commands of its sources."""

    def __init__(self, root):
        self.root = root
        self.git("init", "-q")
        self.write(".gitignore", "/build/\n")
        for name in ("tools/lint.py", ".clang-tidy"):
            self.write(name, (ROOT / name).read_text(encoding="utf-8"))
        self.sources = []

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def add(self, name, text):
        """A source that is compiled."""
        self.write(name, text)
        self.sources.append(name)
        commands = [
            {"directory": str(self.root), "file": source, "command": f"clang++ -I. -c {source}"}
            for source in self.sources
        ]
        self.write("build/clang/compile_commands.json", json.dumps(commands))

    def git(self, *arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "A commit")

    def lint(self, *arguments):
        return subprocess.run(
            [sys.executable, "tools/lint.py", *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )

    def chosen(self, *arguments):
        done = self.lint("--list", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path)
    tree.add("common/a.cc", '#include "common/a.h"\n' + CLEAN)
    tree.write("common/a.h", "#pragma once\n")
    tree.write("common/alone.h", "#pragma once\n")
    tree.add("build/clang/header_checks/common/alone.cc", '#include "common/alone.h"\n')
    tree.add("kernels/b.cc", '#include "kernels/outer.inc.h"\n' + CLEAN)
    tree.write("kernels/outer.inc.h", '#include "kernels/inner.inc.h"\n')
    tree.write("kernels/inner.inc.h", "")
    tree.commit()
    tree.commit()
    return tree


@pytest.mark.parametrize(
    "name, source",
    [
        ("common/a.cc", "common/a.cc"),
        ("common/a.h", "common/a.cc"),
        ("common/alone.h", "build/clang/header_checks/common/alone.cc"),
        ("kernels/inner.inc.h", "kernels/b.cc"),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_a_changed_file_is_checked_through_a_source(tree, name, source, committed):
    assert tree.chosen() == []
    with (tree.root / name).open("a", encoding="utf-8") as file:
        file.write("// Changed.\n")
    if committed:
        tree.commit()
    assert tree.chosen() == [source]


def test_tests_are_not_checked(tree):
    tree.add("tests/c.cc", CLEAN)
    assert tree.chosen() == []
    assert "tests/c.cc" not in tree.chosen("--base", "all")


def test_new_files_are_checked_and_deleted_ones_are_not(tree):
    tree.add("common/new.cc", CLEAN)
    (tree.root / "common/a.h").unlink()
    assert tree.chosen() == ["common/new.cc"]


def test_all_sources_of_the_repository(tree):
    assert tree.chosen("--base", "all") == ["common/a.cc", "kernels/b.cc"]
    assert tree.chosen("--base", "all", "kernels") == ["kernels/b.cc"]


def test_a_file_that_is_not_compiled_is_named(tree):
    tree.write("common/elsewhere.cc", CLEAN)
    assert tree.chosen() == [
        "lint: not built by this preset, so not checked: common/elsewhere.cc",
    ]


def test_a_shallow_clone_is_not_checked_and_says_so(tree, tmp_path_factory):
    clone = tmp_path_factory.mktemp("clone") / "c"
    tree.git("clone", "-q", "--depth", "1", f"file://{tree.root}", str(clone))
    shutil.copytree(tree.root / "build", clone / "build")
    done = subprocess.run(
        [sys.executable, "tools/lint.py"], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "no HEAD~1" in done.stdout


def test_an_unknown_base_is_an_error(tree):
    done = tree.lint("--base", "nonsense")
    assert done.returncode == 2
    assert "base: got 'nonsense'" in done.stderr


def test_a_finding_fails(tree):
    assert tree.lint("--base", "all").returncode == 0
    tree.add("common/a.cc", WRONG)
    done = tree.lint()
    assert done.returncode == 1
    assert "misc-unused-parameters" in done.stdout
    assert "1 with findings" in done.stdout


def test_a_finding_in_a_changed_header_fails(tree):
    tree.write("common/alone.h", "#pragma once\ninline " + WRONG)
    done = tree.lint()
    assert done.returncode == 1
    assert "common/alone.h:2" in done.stdout
