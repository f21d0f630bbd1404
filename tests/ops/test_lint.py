"""tools/lint.py: which files it compiles and checks, and that a finding fails."""

import json
import shutil

import pytest

from small_repository import Repository

CLEAN = "int {}() {{ return 0; }}\n"
WRONG = "int Wrong(int unused) { return 0; }\n"
CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
option(CAIRN_PYTHON "" OFF)
include_directories(${PROJECT_SOURCE_DIR})
add_compile_options(-Wall -Werror -Wthread-safety)
file(GLOB sources CONFIGURE_DEPENDS common/*.cc kernels/*.cc)
add_library(small OBJECT ${sources})
file(CONFIGURE OUTPUT header_checks/common/alone.cc CONTENT "#include \\"common/alone.h\\"\\n")
add_library(header_checks OBJECT ${PROJECT_BINARY_DIR}/header_checks/common/alone.cc)
add_custom_target(static_checks DEPENDS small header_checks)
file(GLOB tests CONFIGURE_DEPENDS tests/*.cc)
if(tests)
  add_library(tests OBJECT ${tests})
endif()
if(CAIRN_PYTHON)
  add_library(native OBJECT clients/python/src/native.cc)
endif()
"""
PRESETS = {
    "version": 6,
    "configurePresets": [
        {
            "name": "clang",
            "generator": "Ninja",
            "binaryDir": "${sourceDir}/build/clang",
            "cacheVariables": {"CMAKE_CXX_COMPILER": "clang++-14"},
        }
    ],
}
LOCK = """#pragma once
class __attribute__((capability("mutex"))) Lock {
 public:
  void Take() __attribute__((acquire_capability()));
  void Give() __attribute__((release_capability()));
};
struct Counted {
  Lock lock;
  int count = 0;
};
"""
HEADER_OF_ALONE = "build/clang/header_checks/common/alone.cc"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    tree = Repository(tmp_path_factory.mktemp("lint"))
    tree.write("CMakeLists.txt", CMAKE)
    tree.write("CMakePresets.json", json.dumps(PRESETS))
    tree.write("common/a.h", "#pragma once\n")
    tree.write("common/a.cc", '#include "common/a.h"\n' + CLEAN.format("A"))
    tree.write("common/alone.h", '#pragma once\n#include "common/lock.h"\n')
    tree.write("common/lock.h", LOCK)
    tree.write("common/lock.cc", '#include "common/lock.h"\n')
    tree.write(
        "common/user.cc", '#include "common/alone.h"\nint Add(Counted& c) { return ++c.count; }\n'
    )
    tree.write("kernels/b.cc", '#include "kernels/outer.inc.h"\n' + CLEAN.format("B"))
    tree.write("kernels/outer.inc.h", '#include "kernels/inner.inc.h"\n')
    tree.write("kernels/inner.inc.h", "")
    tree.write("clients/python/src/native.cc", CLEAN.format("Native"))
    tree.write("docs/page.md", "Text.\n")
    tree.commit()
    return tree


@pytest.fixture
def tree(shared):
    shared.reset()
    shutil.rmtree(shared.root / "build/venv", ignore_errors=True)
    return shared


def venv(tree):
    """Python with nanobind, as far as the tool can see."""
    tree.write("build/venv/bin/python", "#!/bin/sh\nexit 0\n")
    (tree.root / "build/venv/bin/python").chmod(0o755)


def lint(tree, *arguments):
    if "--base" not in arguments:
        arguments = ("--base", "HEAD", *arguments)
    return tree.tool("lint", *arguments)


def chosen(tree, *arguments):
    """(sources to compile, sources to check)"""
    done = lint(tree, "--list", *arguments)
    assert done.returncode == 0, done.stderr
    words = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return tuple([rest for word, rest in words if word == kind] for kind in ("compile", "check"))


@pytest.mark.parametrize(
    "name, compiled, checked",
    [
        ("common/a.cc", ["common/a.cc"], "common/a.cc"),
        ("common/a.h", ["common/a.cc"], "common/a.cc"),
        ("common/alone.h", [HEADER_OF_ALONE, "common/user.cc"], HEADER_OF_ALONE),
        (
            "common/lock.h",
            [HEADER_OF_ALONE, "common/lock.cc", "common/user.cc"],
            "common/lock.cc",
        ),
        ("kernels/inner.inc.h", ["kernels/b.cc"], "kernels/b.cc"),
    ],
)
def test_what_differs_is_checked_and_what_includes_it_is_compiled(tree, name, compiled, checked):
    tree.append(name)
    assert chosen(tree) == (compiled, [checked])


def test_nothing_affected_says_so_and_configures_nothing(tree):
    shutil.rmtree(tree.root / "build", ignore_errors=True)
    tree.append("docs/page.md")
    done = lint(tree)
    assert done.returncode == 0
    assert "no C++ file of the product is affected by the 1 file that differs" in done.stdout
    assert done.stdout.count("\n") == 1
    assert not (tree.root / "build").exists()


def test_tests_are_not_checked(tree):
    tree.write("tests/c.cc", CLEAN.format("C"))
    assert "no C++ file of the product" in lint(tree).stdout
    venv(tree)
    assert "tests/c.cc" not in chosen(tree, "--base", "all")[0]


def test_new_files_are_checked_and_deleted_ones_are_not(tree):
    tree.write("common/new.cc", CLEAN.format("New"))
    (tree.root / "kernels/b.cc").unlink()
    assert chosen(tree) == (["common/new.cc"], ["common/new.cc"])
    assert "not built" not in lint(tree, "--list").stdout


def test_a_source_that_includes_a_deleted_header_fails(tree):
    (tree.root / "kernels/inner.inc.h").unlink()
    done = lint(tree)
    assert done.returncode == 1
    assert "'kernels/inner.inc.h' file not found" in done.stdout


def test_all_sources_of_the_repository(tree):
    written = ["common/a.cc", "common/lock.cc", "common/user.cc", "kernels/b.cc"]
    # The native module is compiled, too, where everything is.
    venv(tree)
    every = ["clients/python/src/native.cc", *written]
    assert chosen(tree, "--base", "all") == ([HEADER_OF_ALONE, *every], every)
    assert chosen(tree, "--base", "all", "kernels") == (["kernels/b.cc"], ["kernels/b.cc"])


def test_a_file_that_is_not_compiled_is_named(tree):
    tree.write("model/elsewhere.cc", CLEAN.format("Elsewhere"))
    done = lint(tree)
    assert done.returncode == 0, done.stderr
    assert "not built by this preset, so not checked: model/elsewhere.cc" in done.stdout


def test_an_unknown_base_is_an_error(tree):
    done = lint(tree, "--base", "nonsense")
    assert done.returncode == 2
    assert "base: got 'nonsense', expected a commit of this clone, or 'all'" in done.stderr


def test_only_what_is_affected_is_compiled(tree):
    tree.write("common/a.cc", "int A( { return 0; }\n")
    tree.commit()
    tree.append("kernels/b.cc")
    done = lint(tree)
    tree.git("reset", "-q", "--hard", "HEAD~1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 sources compiled in" in done.stdout
    assert "1 checked in" in done.stdout


def test_a_finding_of_clang_tidy_fails(tree):
    tree.append("common/a.cc", WRONG)
    done = lint(tree)
    assert done.returncode == 1
    assert "misc-unused-parameters" in done.stdout
    assert "1 with findings" in done.stdout


def test_a_finding_in_a_changed_header_fails(tree):
    tree.append("common/alone.h", "inline " + WRONG)
    done = lint(tree)
    assert done.returncode == 1
    assert "common/alone.h:3" in done.stdout


def test_a_lock_of_a_header_that_its_user_does_not_take_fails(tree):
    guarded = LOCK.replace("count =", "count __attribute__((guarded_by(lock))) =")
    tree.write("common/lock.h", guarded)
    done = lint(tree)
    assert done.returncode == 1
    assert "common/user.cc:2" in done.stdout
    assert "requires holding mutex 'c.lock'" in done.stdout
    assert "Clang's compilation failed" in done.stdout


def test_the_native_module_needs_nanobind_only_if_it_is_affected(tree):
    tree.append("common/a.cc")
    assert chosen(tree) == (["common/a.cc"], ["common/a.cc"])
    tree.append("clients/python/src/native.cc")
    done = lint(tree)
    assert done.returncode == 2
    assert "build/venv: got no Python with nanobind" in done.stderr
    assert "clients/python/src/native.cc is affected" in done.stderr
    venv(tree)
    assert "clients/python/src/native.cc" in chosen(tree)[0]
