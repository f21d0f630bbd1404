"""The answer of tools/failed_tests.py to ctest's log."""

import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import failed_tests  # noqa: E402

LOG = """Start testing
1/3 Testing: cache_test
"cache_test" start time: Nov 26 10:00 UTC
Output:
----------------------------------------------------------
[ RUN      ] CacheTest.Good
[       OK ] CacheTest.Good (1 ms)
[ RUN      ] CacheTest.Bad
tests/cache_test.cc:12: Failure
Expected equality of these values:
  blocks
    Which is: 59
  60u
[  FAILED  ] CacheTest.Bad (3 ms)
<end of output>
Test time = 1 sec
"python" start time: Nov 26 10:00 UTC
Output:
----------------------------------------------------------
    def test_sum():
>       assert 1 + 1 == 3
E       assert 2 == 3
E         +2

tests/test_sum.py:3: AssertionError
<end of output>
"killed_test" start time: Nov 26 10:00 UTC
Output:
----------------------------------------------------------
[ RUN      ] CacheTest.Hangs
waits
<end of output>
"""


def test_failed_expectations_are_named_with_their_case():
    said = failed_tests.summary(["cache_test"], LOG)
    assert "CacheTest.Bad" in said and "CacheTest.Good" not in said
    assert "tests/cache_test.cc:12: Failure" in said and "Which is: 59" in said
    assert "FAILED" not in said


def test_pytest_is_read_too():
    said = failed_tests.summary(["python"], LOG)
    assert said.count("assert 2 == 3") == 1 and "+2" in said


def test_a_program_without_a_failed_expectation_shows_its_last_lines():
    said = failed_tests.summary(["killed_test", "lost_test"], LOG)
    assert "    waits" in said
    assert "lost_test:" in said


def test_many_failures_are_counted():
    many = "".join(f"a.cc:{n}: Failure\nvalue {n}\n[ RUN      ] A.B\n" for n in range(9))
    log = f'"m" start time: now\nOutput:\n---\n{many}<end of output>\n'
    said = failed_tests.summary(["m"], log)
    assert "value 5" in said and "value 6" not in said and "and 3 more" in said
