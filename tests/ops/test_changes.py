"""tools/changes.py: what differs from which commit, and what includes it."""

import json
import subprocess
import sys

import pytest

from small_repository import Repository

HOUR = 3600
NOON = 1_800_000_000
FILES = {
    "common/a.h": "#pragma once\n",
    "common/b.h": '#include "common/a.h"\n',
    "common/c.inc.h": '#  include "common/b.h"  // Why.\n',
    "services/d.cc": '#include <vector>\n\n#include "common/c.inc.h"\n',
    "common/include/cairn/common/public.h": "#pragma once\n",
    "services/public.cc": '#include "cairn/common/public.h"\n',
    "proto/cairn/v1/common.proto": 'syntax = "proto3";\n',
    "proto/cairn/v1/cache.proto": 'import "cairn/v1/common.proto";\n',
    "services/rpc.h": '#include "cairn/v1/cache.grpc.pb.h"\n',
    "services/message.cc": '#include "cairn/v1/common.pb.h"\n',
    "common/version.h.in": "#pragma once\n",
    "common/version.cc": '#include "common/version.h"\n',
    "kernels/cuda/tiles.cuh": "#pragma once\n",
    "kernels/cuda/copy.cu": '#include "tiles.cuh"\n',
    "kernels/tables.inc": "1, 2\n",
    "kernels/tables.cc": 'int table[] = {\n#include "kernels/tables.inc"\n};\n',
    # These do not include it.
    "kernels/cuda/quiet.cu": '#include <tiles.cuh>\n// #include "tiles.cuh"\n',
    "docs/page.md": '#include "common/a.h"\n',
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    repository = Repository(tmp_path_factory.mktemp("changes"))
    for name, text in FILES.items():
        repository.write(name, text)
    repository.commit(NOON)
    return repository


@pytest.fixture
def tree(shared):
    shared.reset()
    return shared


def changes(tree, *arguments):
    done = tree.tool("changes", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name, including",
    [
        ("common/a.h", ["common/b.h", "common/c.inc.h", "services/d.cc"]),
        ("common/c.inc.h", ["services/d.cc"]),
        ("services/d.cc", []),
        ("common/include/cairn/common/public.h", ["services/public.cc"]),
        (
            "proto/cairn/v1/common.proto",
            ["proto/cairn/v1/cache.proto", "services/message.cc", "services/rpc.h"],
        ),
        ("proto/cairn/v1/cache.proto", ["services/rpc.h"]),
        ("common/version.h.in", ["common/version.cc"]),
        ("kernels/cuda/tiles.cuh", ["kernels/cuda/copy.cu"]),
        ("kernels/tables.inc", ["kernels/tables.cc"]),
    ],
)
def test_a_change_reaches_all_that_include_it(tree, name, including):
    assert changes(tree, "--base", "HEAD")["differing"] == []
    tree.append(name)
    told = changes(tree, "--base", "HEAD")
    assert told["differing"] == [name]
    assert told["including"] == including


def test_what_includes_a_deleted_file_is_affected(tree):
    (tree.root / "common/a.h").unlink()
    told = changes(tree, "--base", "HEAD")
    assert told["differing"] == ["common/a.h"]
    assert told["including"] == ["common/b.h", "common/c.inc.h", "services/d.cc"]


def test_what_includes_the_old_name_of_a_file_is_affected(tree):
    tree.git("mv", "common/b.h", "common/renamed.h")
    told = changes(tree, "--base", "HEAD")
    assert told["differing"] == ["common/b.h", "common/renamed.h"]
    assert told["including"] == ["common/c.inc.h", "services/d.cc"]


def test_a_new_file_differs_and_includes(tree):
    tree.write("common/new.h", '#include "common/a.h"\n')
    tree.write("services/new.cc", '#include "common/new.h"\n')
    tree.write("build/ignored.cc", '#include "common/new.h"\n')
    told = changes(tree, "--base", "HEAD")
    assert told["differing"] == ["common/new.h", "services/new.cc"]
    assert told["including"] == []


def test_files_that_include_each_other_end(tree):
    tree.write("common/a.h", '#include "common/b.h"\n')
    assert "services/d.cc" in changes(tree, "--base", "HEAD")["including"]


def test_all_is_everything(tree):
    told = changes(tree, "--base", "all")
    assert told["everything"]
    assert told["commit"] is None


def test_an_unknown_base_is_an_error(tree):
    for base in ("nonsense", "--output=x"):
        done = tree.tool("changes", f"--base={base}")
        assert done.returncode == 2
        assert f"base: got '{base}', expected a commit of this clone, or 'all'" in done.stderr


def test_the_text_names_the_commit_and_both_kinds(tree):
    tree.append("common/c.inc.h")
    said = tree.tool("changes", "--base", "HEAD").stdout
    commit = tree.git("rev-parse", "HEAD")
    assert f"the 1 file that differs from {commit[:12]} (HEAD)" in said
    assert "differs common/c.inc.h\nincludes services/d.cc\n" in said


@pytest.mark.parametrize(
    "ages, chosen",
    [
        # Hours before HEAD, the oldest first. HEAD is the last one.
        ([40, 5, 3, 0], 1),
        ([40, 4, 3.9, 0], 1),
        ([40, 5, 4.5, 0], 2),
        # Its author's clock was wrong: the newest one in order counts.
        ([40, 2, 20, 1, 0], 2),
        # A young repository.
        ([3, 2, 0], 0),
    ],
)
def test_the_default_base_is_four_hours_older_than_head(tmp_path, ages, chosen):
    tree = Repository(tmp_path)
    commits = []
    for age in ages:
        tree.write("common/a.h", f"// {age}\n")
        commits.append(tree.commit(NOON - int(age * HOUR)))
    told = changes(tree)
    assert told["commit"] == commits[chosen]
    assert told["differing"] == ["common/a.h"]
    assert ("the oldest commit here" in told["why"]) == (chosen == 0)


@pytest.mark.parametrize("most, chosen", [(100, 0), (3, 0), (2, 1), (1, 2), (0, 3)])
def test_a_base_that_reaches_too_much_gives_way_to_a_later_one(tmp_path, most, chosen):
    tree = Repository(tmp_path)
    commits = [tree.commit(NOON - 9 * HOUR)]
    for hours, name in ((3, "common/a.h"), (2, "common/b.h"), (1, "common/c.h")):
        tree.write(name, f"// {hours}\n")
        commits.append(tree.commit(NOON - hours * HOUR))
    told = changes(tree, "--most", str(most))
    assert told["commit"] == commits[chosen]
    assert len(told["differing"]) == 3 - chosen


def test_only_first_parents_are_a_default_base(tmp_path):
    tree = Repository(tmp_path)
    root = tree.commit(NOON - 100 * HOUR)
    main = tree.git("symbolic-ref", "--short", "HEAD")
    tree.git("checkout", "-q", "-b", "branch")
    tree.commit(NOON - 13 * HOUR)
    tree.git("checkout", "-q", main)
    tree.commit(NOON - 2 * HOUR)
    tree.git("merge", "-q", "--no-ff", "-m", "A merge", "branch", date=NOON)
    assert changes(tree)["commit"] == root


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_compares_with_its_oldest_commit_or_takes_everything(tmp_path, depth):
    origin = tmp_path / "origin"
    origin.mkdir()
    tree = Repository(origin)
    commits = [tree.commit(NOON - age * HOUR) for age in (30, 1, 0)]
    clone = tmp_path / "clone"
    tree.git("clone", "-q", "--depth", str(depth), f"file://{origin}", str(clone))
    done = subprocess.run(
        [sys.executable, "tools/changes.py", "--json"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["everything"] == (depth == 1)
    assert told["commit"] == (None if depth == 1 else commits[1])
