"""tools/sanitize.py: which programs a change reaches, and which of them are run again."""

import json
import shutil

import pytest

from small_repository import Repository

# `first_test` owns the precompiled header of `second_test`, whose only source is a generated one.
CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
enable_testing()
include_directories(${PROJECT_SOURCE_DIR})
add_library(low STATIC common/low.cc)
add_library(high STATIC common/high.cc)
target_link_libraries(high PRIVATE low)
add_executable(first_test tests/first_test.cc)
target_precompile_headers(first_test PRIVATE <stddef.h>)
file(CONFIGURE OUTPUT second_test_0.cc CONTENT "#include \\"tests/second_test.cc\\"\\n")
add_executable(second_test ${PROJECT_BINARY_DIR}/second_test_0.cc)
target_precompile_headers(second_test REUSE_FROM first_test)
target_link_libraries(second_test PRIVATE high)
add_executable(third_test tests/third_test.cc)
target_link_libraries(third_test PRIVATE low)
foreach(test first_test second_test third_test)
  add_test(NAME ${test} COMMAND ${test} an_argument WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${test} PROPERTIES LABELS unit)
endforeach()
set_tests_properties(second_test PROPERTIES LABELS conformance)
# Another kind.
add_executable(process_test tests/first_test.cc)
add_test(NAME process_test COMMAND process_test)
set_tests_properties(process_test PROPERTIES LABELS integration)
"""
PRESETS = {
    "version": 6,
    "configurePresets": [
        {"name": "asan", "generator": "Ninja", "binaryDir": "${sourceDir}/build/asan"}
    ],
}
# Says that it runs, so that a test can count.
PROGRAM = """#include <stdio.h>
{includes}
int main() {{
  FILE* ran = fopen("build/ran", "a");
  fputs("{name}\\n", ran);
  fclose(ran);
  return {value};
}}
"""
SKIPPING = """#include <stdio.h>
#include <sys/stat.h>
int main() {
  mkdir("build/asan/test-results", 0777);
  FILE* xml = fopen("build/asan/test-results/first_test.xml", "w");
  fputs("<testsuites><testcase classname='S' name='C'><skipped message='no reason of ours'/>"
        "</testcase></testsuites>", xml);
  fclose(xml);
}
"""


def program(name, value="0", includes=""):
    return PROGRAM.format(name=name, value=value, includes=includes)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    tree = Repository(tmp_path_factory.mktemp("sanitize"))
    tree.write("CMakeLists.txt", CMAKE)
    tree.write("CMakePresets.json", json.dumps(PRESETS))
    tree.write("common/part.inc.h", "inline int Part() { return 0; }\n")
    tree.write("common/low.h", '#include "common/part.inc.h"\nint Low();\n')
    tree.write("common/low.cc", '#include "common/low.h"\nint Low() { return Part(); }\n')
    tree.write("common/high.h", "int High();\n")
    tree.write(
        "common/high.cc", '#include "common/high.h"\nint Low();\nint High() { return Low(); }\n'
    )
    tree.write("tests/data/words.txt", "one\n")
    tree.write("tests/helper.h", "int High();\n")
    tree.write("tests/first_test.cc", program("first"))
    tree.write("tests/second_test.cc", program("second", "High()", '#include "tests/helper.h"'))
    tree.write("tests/third_test.cc", program("third", "Low()", "int Low();"))
    tree.commit()
    return tree


@pytest.fixture
def tree(shared):
    shared.reset()
    (shared.root / "build/ran").unlink(missing_ok=True)
    return shared


def sanitize(tree, *arguments):
    return tree.tool("sanitize", "--preset", "asan", "--base", "HEAD", "--jobs", "2", *arguments)


def ran(tree):
    """The programs that ran since the last call."""
    log = tree.root / "build/ran"
    names = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return names


@pytest.mark.parametrize(
    "name, programs",
    [
        # A library that another one links, through two headers, and from a part of a source.
        ("common/part.inc.h", ["second_test", "third_test"]),
        ("common/low.cc", ["second_test", "third_test"]),
        ("common/high.h", ["second_test"]),
        # A source in a generated one, and what it includes.
        ("tests/second_test.cc", ["second_test"]),
        ("tests/helper.h", ["second_test"]),
        # Its precompiled header is not its source.
        ("tests/first_test.cc", ["first_test"]),
    ],
)
def test_a_change_reaches_the_programs_that_contain_it(tree, name, programs):
    tree.append(name)
    done = sanitize(tree, "--list")
    assert done.returncode == 0, done.stderr
    first, *listed = done.stdout.splitlines()
    assert first.startswith(
        f"asan: {len(programs)} of 3 programs are reached by the 1 file that differs from "
    )
    assert listed == programs


@pytest.mark.parametrize("name", ["tests/data/words.txt", "CMakeLists.txt", "README.md"])
def test_what_is_not_source_reaches_nothing(tree, name):
    tree.append(name, "# Changed.\n")
    done = sanitize(tree)
    assert done.returncode == 0, done.stderr
    assert "asan: no program is reached by the 1 file that differs" in done.stdout


def test_source_of_no_program_reaches_nothing(tree):
    tree.write("tests/nobody.cc", "int Nobody();\n")
    done = sanitize(tree)
    assert done.returncode == 0, done.stderr
    assert "asan: 0 of 3 programs are reached" in done.stdout
    assert ran(tree) == []


def test_all_reaches_all_programs(tree):
    done = tree.tool("sanitize", "--preset", "asan", "--base", "all", "--list")
    assert done.stdout.splitlines()[1:] == ["first_test", "second_test", "third_test"]


def test_an_unknown_base_or_preset_is_an_error(tree):
    done = tree.tool("sanitize", "--preset", "asan", "--base", "nonsense")
    assert done.returncode == 2
    assert "base: got 'nonsense', expected a commit of this clone, or 'all'" in done.stderr
    done = tree.tool("sanitize", "--preset", "release")
    assert done.returncode == 2
    assert "--preset: invalid choice: 'release' (choose from" in done.stderr


def test_two_tests_of_a_program_are_two_programs(tree):
    tree.append("tests/third_test.cc")
    # A script has nothing to sanitize.
    more = """
add_test(NAME other COMMAND third_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME script COMMAND python3 -c "")
set_tests_properties(other script PROPERTIES LABELS unit ENVIRONMENT A=b)
"""
    tree.write("CMakeLists.txt", CMAKE + more)
    done = sanitize(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asan: 2 of 4 programs are reached" in done.stdout
    assert ran(tree) == ["third", "third"]
    # In another environment it may fail.
    tree.write("CMakeLists.txt", CMAKE + more.replace("A=b", "A=c"))
    assert sanitize(tree).returncode == 0
    assert ran(tree) == ["third"]


def test_a_program_that_passed_is_not_run_again_until_it_changes(tree):
    tree.append("common/low.cc")
    assert sanitize(tree).returncode == 0
    assert ran(tree) == ["second", "third"]
    done = sanitize(tree)
    assert done.returncode == 0
    assert "0 run in" in done.stdout
    assert "2 unchanged since they passed" in done.stdout
    assert ran(tree) == []

    tree.append("tests/third_test.cc", "int changed;\n")
    assert sanitize(tree).returncode == 0
    assert ran(tree) == ["third"]
    assert sanitize(tree, "--again").returncode == 0
    assert ran(tree) == ["second", "third"]


def test_a_program_is_run_again_with_other_arguments(tree):
    tree.append("tests/first_test.cc")
    assert sanitize(tree).returncode == 0
    assert ran(tree) == ["first"]
    tree.write("CMakeLists.txt", CMAKE.replace("an_argument", "another"))
    assert sanitize(tree).returncode == 0
    assert ran(tree) == ["first"]


def test_a_program_that_fails_is_not_remembered(tree):
    tree.append("common/high.cc", "int unused;\n")
    tree.write("tests/third_test.cc", program("third", "Low() + 3", "int Low();"))
    for again in range(2):
        done = sanitize(tree)
        assert done.returncode == 1
        # The output of tools/failed_tests.py, after ctest's own words.
        assert "third_test:\n  no failed expectation" in done.stdout
        assert "FAILED" in done.stdout.splitlines()[-1]
        assert ran(tree) == (["third"] if again else ["second", "third"])


def test_a_program_that_fails_when_it_is_run_again_is_forgotten(tree):
    # It passes only if the file is there.
    tree.write(
        "tests/first_test.cc", program("first", 'fopen("tests/data/words.txt", "r") == nullptr')
    )
    assert sanitize(tree).returncode == 0
    (tree.root / "tests/data/words.txt").unlink()
    assert sanitize(tree).returncode == 0
    assert sanitize(tree, "--again").returncode == 1
    assert sanitize(tree).returncode == 1


def test_a_build_that_fails_says_so(tree):
    tree.append("tests/first_test.cc", "#error broken\n")
    done = sanitize(tree)
    assert done.returncode == 1
    assert "asan: the build failed" in done.stdout
    assert ran(tree) == []


def test_a_skip_without_a_rule_fails_and_is_told_again(tree):
    tree.write("tests/first_test.cc", SKIPPING)
    for _ in range(2):
        done = sanitize(tree)
        assert done.returncode == 1
        assert "NOT ALLOWED: no reason of ours" in done.stdout


def test_a_fresh_folder_remembers_nothing(tree):
    tree.append("tests/first_test.cc")
    assert sanitize(tree).returncode == 0
    shutil.rmtree(tree.root / "build/asan")
    assert sanitize(tree).returncode == 0
    assert ran(tree) == ["first", "first"]
