#!/usr/bin/env python3
"""Says why tests failed, in few lines, after the last `ctest` of a build.

    tools/failed_tests.py build/release

ctest prints the whole output of a test that fails, in the order in which tests end: with hundreds
of cases in a program, the line that says what is wrong is far above the end, and is lost where only
the end of a log is kept. This prints it again: each failed expectation of GoogleTest and pytest, or
the last lines of a program that ended without one (killed, out of time).

Exit status: 0 it said why, or no test failed; 2 there is nothing to read.
"""

import argparse
import pathlib
import re
import sys

# Limits for a program, and for an expectation.
MOST_FAILURES = 6
MOST_LINES = 12
LAST_LINES = 15

SECTION = re.compile(
    r'^"(?P<name>[^"]+)" start time.*?^Output:\n-+\n(?P<output>.*?)^<end of output>',
    re.MULTILINE | re.DOTALL,
)
# The lines after a failed expectation belong to it up to one of these.
END = re.compile(r"^\[ |^\S+: Failure$|^E? *$|^=+ |^_+ ")


def outputs(log):
    """The output of each test, by its name."""
    return {found["name"]: found["output"] for found in SECTION.finditer(log)}


def failures(output):
    """The failed expectations of a test's output, each a list of lines with the case first."""
    found, case = [], ""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("[ RUN      ] "):
            case = line.removeprefix("[ RUN      ] ")
        elif line.endswith(": Failure") or line.startswith("E   "):
            pytest = line.startswith("E   ")
            if pytest and number > 0 and lines[number - 1].startswith("E   "):
                continue
            block = [line]
            for more in lines[number + 1 : number + MOST_LINES]:
                if not more.startswith("E   ") if pytest else END.match(more):
                    break
                block.append(more)
            found.append(([case] if case and not pytest else []) + block)
    return found


def reasons(name, output):
    """Why the test `name` failed that printed `output`, as lines."""
    lines = [f"{name}:"]
    some = failures(output)
    if not some:
        lines.append("  no failed expectation; its last lines:")
        lines += [f"    {line}" for line in output.splitlines()[-LAST_LINES:]]
    for block in some[:MOST_FAILURES]:
        lines += [f"  {block[0]}"] + [f"    {line}" for line in block[1:]]
    if len(some) > MOST_FAILURES:
        lines.append(f"  and {len(some) - MOST_FAILURES} more")
    return lines


def summary(failed, log):
    """The text for the tests named in `failed`, from the text of ctest's log."""
    printed = outputs(log)
    return "\n".join(line for name in failed for line in reasons(name, printed.get(name, "")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help="build folder, such as build/release")
    folder = parser.parse_args().build / "Testing" / "Temporary"
    log = folder / "LastTest.log"
    if not log.is_file():
        print(f"failed_tests: no {log}: run ctest first", file=sys.stderr)
        sys.exit(2)
    failed = folder / "LastTestsFailed.log"
    lines = failed.read_text().splitlines() if failed.is_file() else []
    names = [line.split(":", 1)[1] for line in lines if ":" in line]
    if names:
        print(summary(names, log.read_text(errors="replace")))


if __name__ == "__main__":
    main()
