#!/usr/bin/env python3
"""Says which tests were skipped, and fails if one was skipped for a reason that is not allowed.

    tools/skipped_tests.py build/release

It reads what the last `ctest` of that build wrote into BUILD/test-results (GoogleTest and pytest
write JUnit's XML there), and tests/allowed_skips.txt, one rule a line:

    PATTERN OF THE TEST | PATTERN OF THE REASON | why it may be skipped

A test is named PROGRAM.SUITE.CASE; patterns are those of a shell. A test that nobody skips any more
may stay in the list: another machine may skip it.

Exit status: 0 all skips are allowed, 1 some are not, 2 there is nothing to read.
"""

import argparse
import collections
import fnmatch
import pathlib
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tests" / "allowed_skips.txt"

Skip = collections.namedtuple("Skip", "test reason")
Rule = collections.namedtuple("Rule", "test reason why")


def fail(message):
    print(f"skipped_tests: {message}", file=sys.stderr)
    sys.exit(2)


def rules(text):
    """The rules of a list. ValueError names the line that is none."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3 or not all(fields):
            raise ValueError(f"line {number}: got {line!r}, expected TEST | REASON | WHY")
        found.append(Rule(*fields))
    return found


def reason_of(skipped):
    """The text of a <skipped>: GoogleTest's has the place first, and both have many lines."""
    message = skipped.get("message") or ""
    text = message if message.strip() else (skipped.text or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # "/path/file.cc:12", then what the test said.
    if len(lines) > 1 and lines[0].rsplit(":", 1)[-1].isdigit():
        lines = lines[1:]
    return " ".join(lines).removeprefix("Skipped: ") or "no reason"


def read(path):
    """(number of cases, skips) of one file."""
    skips = []
    cases = 0
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        cases += 1
        skipped = case.find("skipped")
        if skipped is not None:
            name = f"{path.stem}.{case.get('classname', '')}.{case.get('name', '')}"
            skips.append(Skip(name, reason_of(skipped)))
    return cases, skips


def allowed_by(skip, known):
    for rule in known:
        if fnmatch.fnmatchcase(skip.test, rule.test) and fnmatch.fnmatchcase(
            skip.reason, rule.reason
        ):
            return rule
    return None


def report(cases, skips, known):
    """Prints the summary. Returns the skips that no rule allows."""
    by_reason = collections.defaultdict(list)
    for skip in skips:
        by_reason[skip.reason].append(skip)
    print(f"{cases} cases of the tests' programs, {len(skips)} skipped")
    wrong = []
    for reason, of_it in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        bad = [skip for skip in of_it if allowed_by(skip, known) is None]
        wrong += bad
        print(f"{len(of_it):6} {'' if not bad else 'NOT ALLOWED: '}{reason}")
        # Faults that are not tried are named, even if that is allowed.
        for skip in of_it:
            if skip in bad or skip.test.startswith("fault_test."):
                print(f"         {skip.test}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help="the build folder, after ctest")
    parser.add_argument("--allowed", type=pathlib.Path, default=ALLOWED, help="the list")
    options = parser.parse_args()
    results = sorted((options.build / "test-results").glob("*.xml"))
    if not results:
        fail(f"no *.xml in {options.build / 'test-results'}: run ctest first")
    try:
        known = rules(options.allowed.read_text(encoding="utf-8"))
        read_results = [read(path) for path in results]
    except (ValueError, xml.etree.ElementTree.ParseError) as error:
        fail(str(error))
    skips = [skip for _, of_file in read_results for skip in of_file]
    wrong = report(sum(cases for cases, _ in read_results), skips, known)
    if wrong:
        print(f"{len(wrong)} tests were skipped for reasons that {options.allowed} does not allow")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
