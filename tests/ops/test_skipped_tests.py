"""tools/skipped_tests.py: what it reads, what it allows, and that a skip without a rule fails."""

import subprocess
import sys

import pytest

from conftest import ROOT

GTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="3" name="AllTests">
  <testsuite name="FaultDiskTest" tests="2" skipped="1">
    <testcase name="Runs" status="run" result="completed" classname="FaultDiskTest" />
    <testcase name="Full" status="run" result="skipped" classname="FaultDiskTest">
      <skipped message="/src/full_test.cc:27&#x0A;PERMISSION_DENIED: mount"><![CDATA[x]]></skipped>
    </testcase>
  </testsuite>
</testsuites>
"""
PYTEST = """<testsuites><testsuite name="pytest" tests="1" skipped="1">
<testcase classname="python.test_memory" name="test_gpu"><skipped type="pytest.skip"
message="could not import 'torch'">test_memory.py:29: Skipped: torch</skipped></testcase>
</testsuite></testsuites>
"""


def run(tmp_path, rules, **files):
    results = tmp_path / "build/test-results"
    results.mkdir(parents=True)
    for name, text in files.items():
        (results / f"{name}.xml").write_text(text, encoding="utf-8")
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(rules, encoding="utf-8")
    return subprocess.run(
        [
            sys.executable,
            ROOT / "tools/skipped_tests.py",
            tmp_path / "build",
            f"--allowed={allowed}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_skip_without_a_rule_fails_and_is_named(tmp_path):
    done = run(tmp_path, "# none\n", fault_test=GTEST)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 cases of the tests' programs, 1 skipped" in done.stdout
    assert "NOT ALLOWED: PERMISSION_DENIED: mount" in done.stdout
    assert "fault_test.FaultDiskTest.Full" in done.stdout


@pytest.mark.parametrize(
    "rule, status",
    [
        ("fault_test.FaultDiskTest.* | *mount* | needs a mount", 0),
        ("*.Full | PERMISSION_DENIED: mount | needs a mount", 0),
        ("fault_test.FaultDiskTest.* | *ptrace* | another reason", 1),
        ("fault_test.FaultOther.* | * | another test", 1),
    ],
)
def test_a_rule_allows_its_tests_for_its_reason_only(tmp_path, rule, status):
    done = run(tmp_path, rule + "\n", fault_test=GTEST)
    assert done.returncode == status, done.stdout
    # A fault that is not tried is named even when that is allowed.
    assert "fault_test.FaultDiskTest.Full" in done.stdout


def test_reasons_of_all_programs_are_counted(tmp_path):
    rules = "* | *mount* | a\n* | could not import 'torch' | b\n"
    done = run(tmp_path, rules, fault_test=GTEST, python=PYTEST)
    assert done.returncode == 0, done.stdout
    assert "3 cases of the tests' programs, 2 skipped" in done.stdout
    assert "could not import 'torch'" in done.stdout


@pytest.mark.parametrize(
    "rules, files, word",
    [("", {}, "run ctest first"), ("one | two\n", {"a": GTEST}, "line 1"), ("", {"a": "<"}, "")],
)
def test_nothing_to_read_is_not_success(tmp_path, rules, files, word):
    done = run(tmp_path, rules, **files)
    assert done.returncode == 2
    assert word in done.stderr


def test_the_list_of_the_repository_can_be_read(tmp_path):
    done = run(tmp_path, (ROOT / "tests/allowed_skips.txt").read_text(encoding="utf-8"), a=PYTEST)
    assert done.returncode in (0, 1), done.stderr
