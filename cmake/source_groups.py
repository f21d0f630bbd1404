"""Says which sources of a program are compiled together: one line a group, paths with ";".

Most of a compilation is headers, for tests also templates of gtest and gmock, once for each file.
Files of one group share them. Two files that define the same name at the outermost level,
such as a helper in an unnamed namespace, must not share a compilation, so they never meet here.
"""

import re
import sys
from pathlib import Path

# A group takes at most so many bytes of sources, so that all cores have work and one edit does not
# compile half of a program again.
GROUP_BYTES = 60_000

# clang-format puts what is in a namespace at the beginning of the line.
DEFINITIONS = [
    re.compile(r"^(?:template <.*> )?(?:class|struct|union|enum class|enum) (?:\w+\(.*\) )?(\w+)"),
    re.compile(r"^using (\w+) ="),
    re.compile(r"^using (?:\w+::)+(\w+);"),
    re.compile(r"^namespace (\w+) = "),
    re.compile(r"^#define (\w+)"),
    re.compile(r"^MATCHER\w*\((\w+)"),
    re.compile(r"^ACTION\w*\((\w+)"),
    # A function, or a variable: the name before its first bracket or its value.
    re.compile(r"^[A-Za-z_][\w:<>,*&\[\] ]*?[ *&>](\w+) ?(?:\(|\[|\{| = |;)"),
]
# What begins a line and defines nothing that another file could define again.
OTHER = re.compile(
    r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST\w*|INSTANTIATE\w*|REGISTER\w*|BENCHMARK|return|"
    r"namespace \w+ \{|namespace \{|extern)\b"
)


def defined_names(text):
    """The names that a source defines at the outermost level of its namespaces."""
    names = set()
    for line in text.splitlines():
        if OTHER.match(line):
            continue
        for pattern in DEFINITIONS:
            if found := pattern.match(line):
                names.add(found.group(1))
                # "constexpr int kOne = 1, kTwo = 2;"
                names.update(re.findall(r", (\w+) = ", line))
                break
    return names


def meaning_of_testing(text):
    """What "testing::" means in a source: gtest's namespace, ours where a header declares
    cairn::testing, or nothing. The same word cannot mean both in one compilation."""
    if not re.search(r"(?<![:\w])testing::", text):
        return ""
    ours = re.search(r'#include "(?:tests/|common/status/matchers.h)', text)
    return "cairn::testing" if ours else "::testing"


def groups(sources):
    """Lists of paths. Each source is in one list; `sources` are (path, text)."""
    made = []  # [paths, names, bytes, meaning of testing]
    for path, text in sources:
        names, size, meaning = defined_names(text), len(text), meaning_of_testing(text)
        # It would make names of others ambiguous.
        alone = "using namespace" in text
        for group in made:
            if alone or group[1] is None or names & group[1] or group[3] != meaning:
                continue
            if group[2] + size <= GROUP_BYTES:
                group[0].append(path)
                group[1] |= names
                group[2] += size
                break
        else:
            made.append([[path], None if alone else names, size, meaning])
    return [group[0] for group in made]


def main():
    sources = [(path, Path(path).read_text()) for path in sys.argv[1:]]
    for group in groups(sources):
        print(";".join(group))


if __name__ == "__main__":
    main()
