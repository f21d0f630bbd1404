"""Says which sources of a program are compiled together: one line a group, paths with ";".

Most of a compilation is headers, for tests also templates of gtest and gmock, once for each file.
Files of one group share them. Two files that define the same name at the outermost level,
such as a helper in an unnamed namespace, must not share a compilation, so they never meet here.
"""

import re
import sys

# A group takes at most this many bytes of sources, so that all cores have work and one edit does
# not compile half of a program again.
GROUP_BYTES = 100_000

# clang-format puts what is in a namespace at the beginning of the line.
DEFINITIONS = [
    re.compile(r"^(?:template <.*> )?(?:class|struct|union|enum class|enum) (?:\w+\(.*\) )?(\w+)"),
    re.compile(r"^#define (\w+)"),
    re.compile(r"^MATCHER\w*\((\w+)"),
    re.compile(r"^ACTION\w*\((\w+)"),
    # A function, or a variable: the name before its first bracket or its value.
    re.compile(r"^[A-Za-z_][\w:<>,*&\[\] ]*?[ *&>](\w+) ?(?:\(|\[|\{| = |;)"),
]
# A function that others may call, or a member of a class: headers declare it, so the same name with
# other parameters is an overload of it, as where one file includes both headers. The parameters: as
# many as are on the line.
FUNCTION = re.compile(r"^[A-Za-z_][\w:<>,*&\[\] ]*?[ *&>](\w+)(\(.*)")
# Another name for something: two files may say the same, not two things.
ALIASES = [
    re.compile(r"^(?:using|namespace) (?P<name>\w+) = (?P<meaning>.*)"),
    # "cairn::fuzz::Expect" in one place is "fuzz::Expect" in another.
    re.compile(r"^using (?:::)?(?:\w+::)*(?P<meaning>\w+::(?P<name>\w+));"),
]
# Beginnings of lines that define nothing that another file could define again.
OTHER = re.compile(
    r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST\w*|INSTANTIATE\w*|REGISTER\w*|BENCHMARK|return|namespace|"
    r"using namespace|extern)\b(?!.* = )"
)


def defined_names(text):
    """The names that a source defines at the outermost level of its namespaces: by its name, what
    it is another name for, or "" for a new one."""
    names = {}
    unnamed = False
    for line in text.splitlines():
        if line == "namespace {":
            unnamed = True
        elif line == "}  // namespace":
            unnamed = False
        if OTHER.match(line):
            continue
        function = None if unnamed or line.startswith("static ") else FUNCTION.match(line)
        if function:
            names[function[1] + function[2]] = ""
            # Anything that is no function must not have its name.
            names.setdefault(function[1], "function")
            continue
        if alias := next(filter(None, (pattern.match(line) for pattern in ALIASES)), None):
            names[alias["name"]] = alias["meaning"]
            continue
        for pattern in DEFINITIONS:
            if found := pattern.match(line):
                # "constexpr int kOne = 1, kTwo = 2;"
                for name in [found.group(1), *re.findall(r", (\w+) = ", line)]:
                    names[name] = ""
                break
    return names


def clash(names, others):
    """Whether two sources give one name two meanings."""
    return any(not names[name] or names[name] != others[name] for name in names.keys() & others)


def meaning_of_testing(text):
    """The meaning of "testing::" in a source: gtest's namespace, ours where a header declares
    cairn::testing, or nothing. The same word cannot mean both in one compilation."""
    if not re.search(r"(?<![:\w])testing::", text):
        return ""
    ours = re.search(r'#include "(?:tests/|common/status/matchers.h)', text)
    return "cairn::testing" if ours else "::testing"


def used_namespaces(text):
    """The namespaces that "using namespace" opens for a whole source. Only sources that open the
    same meet, since it would make names of the others ambiguous. Inside a function it does no
    harm."""
    return frozenset(re.findall(r"^using namespace ([\w:]+);", text, re.MULTILINE))


def groups(sources):
    """Lists of paths. Each source is in one list; `sources` are (path, text)."""
    made = []  # [paths, names, bytes, what words mean in them]
    for path, text in sources:
        names, size = defined_names(text), len(text)
        meaning = meaning_of_testing(text), used_namespaces(text)
        for group in made:
            if group[3] != meaning or group[2] + size > GROUP_BYTES or clash(names, group[1]):
                continue
            group[0].append(path)
            group[1].update(names)
            group[2] += size
            break
        else:
            made.append([[path], names, size, meaning])
    return [group[0] for group in made]


def main():
    sources = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            sources.append((path, file.read()))
    for group in groups(sources):
        print(";".join(group))


if __name__ == "__main__":
    main()
