"""Rules of form that a machine can hold: CONTRIBUTING.md has them in words."""

import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT
from cpp_source import comments, functions, without_comments_and_strings
from test_docs import FILES

LIMIT = 100
MAX_FUNCTION_LINES = 80
# Its long lines are texts in many scripts, which are what it makes fixtures of.
MAY_BE_LONG = {"tests/data/tokenizer/make_fixtures.py"}
CPP = [p for p in FILES if p.suffix in (".h", ".cc", ".cuh", ".cu")]
HEADERS = [p for p in CPP if p.suffix in (".h", ".cuh")]
OTHER_CODE = [
    p
    for p in FILES
    if p.suffix in (".py", ".pyi", ".proto", ".sh", ".cmake", ".in", ".toml")
    or p.name in ("CMakeLists.txt", "Makefile", "Dockerfile")
    or p.parent == ROOT / ".ci"
]
PYTHON = [p for p in FILES if p.suffix in (".py", ".pyi")]
PROSE = [p for p in FILES if p.suffix == ".md"]
PRODUCT = ("common/", "clients/", "kernels/", "model/", "protocol/", "services/", "tools/")


def name(path):
    return path.relative_to(ROOT).as_posix()


def long_lines(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(n, line) for n, line in enumerate(lines, 1) if len(line) > LIMIT]


@pytest.mark.parametrize(
    "kind",
    [".h", ".cc", ".cuh", ".cu", ".py", ".pyi", ".proto", ".sh", ".cmake", "CMakeLists.txt", ".md"],
)
def test_each_kind_of_file_is_read(kind):
    assert any(p.name.endswith(kind) for p in CPP + OTHER_CODE + PROSE)


def test_no_line_of_code_is_over_100_columns():
    wrong = [
        f"{name(p)}:{number}: {len(line)} columns"
        for p in CPP + OTHER_CODE
        if name(p) not in MAY_BE_LONG
        for number, line in long_lines(p)
    ]
    assert not wrong, "\n".join(wrong)


def prose_lines(text):
    """(number, line) of a page without code blocks, tables and lines that are a link."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith(("|", "![")):
            yield number, line


def test_no_line_of_prose_is_over_100_columns():
    wrong = []
    for page in PROSE:
        for number, line in prose_lines(page.read_text(encoding="utf-8")):
            without_targets = re.sub(r"\]\([^)]*\)", "]", line)
            if len(without_targets) > LIMIT:
                wrong.append(f"{name(page)}:{number}: {len(without_targets)} columns")
    assert not wrong, "\n".join(wrong)


def test_cpp_is_formatted():
    """With the one version that everybody has: others break lines elsewhere."""
    program = shutil.which("clang-format-14")
    assert program, "clang-format-14 is not installed: run tools/setup/setup.sh"
    done = subprocess.run(
        [program, "--dry-run", "-Werror", "--ferror-limit=1", *map(str, CPP)],
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stderr, flags=re.M)))
    assert done.returncode == 0, "run clang-format-14 -i on: " + " ".join(wrong)


def test_python_is_formatted():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *map(str, PYTHON)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_uses_what_it_names():
    """Imports and variables. F811: a test's argument has the name of an imported fixture."""
    rules = ["--isolated", "--select", "F", "--ignore", "F811"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", *rules, *map(str, PYTHON)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_long_functions_say_why():
    """Above a function of more than 80 lines stands a comment with the word "Long" and a reason."""
    wrong = []
    for path in CPP:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for function in functions(text):
            above = []
            at = function.first_line - 2
            while at >= 0 and re.match(r"\s*(//|template)", lines[at]):
                above.append(lines[at])
                at -= 1
            reason = any(re.search(r"// Long: \w", a) for a in above)
            if function.lines > MAX_FUNCTION_LINES and not reason:
                wrong.append(
                    f"{name(path)}:{function.first_line}: {function.lines} lines, "
                    f"expected at most {MAX_FUNCTION_LINES}, or a comment '// Long: reason'"
                )
    assert not wrong, "\n".join(wrong)


CONDITION = re.compile(r"^[ \t]*(?:(?:\} )?else )?(?:if(?: constexpr)?|for|while) \(", flags=re.M)


def conditions_without_braces(text):
    """Numbers of lines that end a condition whose statement stands on the next line, without
    braces. Macros have forms of their own."""
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M)
    code = without_comments_and_strings(code)
    found = []
    for head in CONDITION.finditer(code):
        depth, end = 1, head.end()
        while depth > 0 and end < len(code):
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        rest = re.match(r"[ \t]*\n\s*([^\s{])", code[end:])
        if rest:
            found.append(code.count("\n", 0, end) + 1)
    return found


def test_a_condition_without_braces_is_found():
    text = "if (a(b) &&\n    c)\n  d();\nif (e) f();\nwhile (g) {\n}\nfor (;;)  // why\n  h();\n"
    assert conditions_without_braces(text) == [2, 7]


def test_a_statement_on_a_line_of_its_own_has_braces():
    wrong = [
        f"{name(path)}:{number}: expected braces"
        for path in CPP
        if name(path).startswith(PRODUCT)
        for number in conditions_without_braces(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


# Whole words: a "block" is no lock.
THREAD_WORDS = re.compile(
    r"\b(threads?|lock(s|ed)?|concurren\w+|any time|one at a time|immutable|atomic)\b", flags=re.I
)
CLASS = re.compile(r"^\s*class\s+\w[^;{}]*\{", flags=re.M)


def says_nothing_of_threads(text):
    """True for a header with a class and no comment on threads."""
    has_class = CLASS.search(without_comments_and_strings(text)) is not None
    return has_class and THREAD_WORDS.search(comments(text)) is None


def test_headers_with_a_class_say_how_threads_use_it():
    wrong = [
        name(path)
        for path in HEADERS
        if name(path).startswith(PRODUCT)
        and says_nothing_of_threads(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "no comment on threads in: " + " ".join(wrong)


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("// Holds a block.\nclass A final : public B {\n};\n", True),
        ("#include <thread>\nclass ABSL_LOCKABLE A {\n  Lock lock;\n};\n", True),
        ("// Not thread-safe.\nclass A {\n};\n", False),
        ("class A;\nenum class B { kC };\nstruct D {\n};\n", False),
    ],
)
def test_what_counts_as_a_word_on_threads(text, wrong):
    assert says_nothing_of_threads(text) == wrong


INCLUDE = re.compile(r'^#include\s*[<"]([^>"]+)[>"]', flags=re.M)


def test_sources_include_their_own_header_first():
    """So a header is known to compile alone when its source compiles (cmake/StaticChecks.cmake)."""
    wrong = []
    for path in CPP:
        own = path.with_suffix(".h")
        if path.suffix == ".cc" and own in CPP:
            first = INCLUDE.search(path.read_text(encoding="utf-8"))
            if first is None or first[1] != name(own):
                wrong.append(f"{name(path)}: expected {name(own)} as the first include")
    assert not wrong, "\n".join(wrong)


def test_who_names_the_file_system_includes_it():
    """Some headers of the library bring <filesystem> along, and others no longer do: a test that
    leaned on one compiled here, and not where another header was compiled in front of it."""
    wrong = []
    for path in CPP:
        text = path.read_text(encoding="utf-8")
        if "std::filesystem" in without_comments_and_strings(text):
            if "filesystem" not in INCLUDE.findall(text):
                wrong.append(f"{name(path)}: expected #include <filesystem>")
    assert not wrong, "\n".join(wrong)


def test_headers_have_a_guard():
    """All but the parts of sources (*.inc.h), which are read once for each instruction set."""
    wrong = [
        name(path)
        for path in HEADERS
        if not path.name.endswith(".inc.h")
        and not path.read_text(encoding="utf-8").startswith("#pragma once\n")
    ]
    assert not wrong, "no #pragma once at the top of: " + " ".join(wrong)


def without_reason(text):
    """Numbers of the lines that turn a check off and do not say which, or why."""
    lines = text.splitlines()
    wrong = []
    for number, line in enumerate(lines, 1):
        above = lines[number - 2] if number > 1 else ""
        explained = above.lstrip().startswith("//")
        if "ABSL_NO_THREAD_SAFETY_ANALYSIS" in line and not explained:
            wrong.append(number)
        if "NOLINT" in line and not re.search(r"NOLINT(NEXTLINE)?\([\w.,*-]+\): \w", line):
            wrong.append(number)
    return wrong


def test_exceptions_to_the_static_checks_have_a_reason():
    """ABSL_NO_THREAD_SAFETY_ANALYSIS: a comment above. NOLINT: `// NOLINT(check): reason`."""
    wrong = [
        f"{name(path)}:{number}"
        for path in CPP
        for number in without_reason(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "no reason at: " + " ".join(wrong)


@pytest.mark.parametrize(
    "text, lines",
    [
        ("int a;  // NOLINT\n", [1]),
        ("int a;  // NOLINT(bugprone-x)\n", [1]),
        ("int a;  // NOLINT(bugprone-x): because of b.\n", []),
        ("int a;\nvoid F() ABSL_NO_THREAD_SAFETY_ANALYSIS {\n", [2]),
        ("// Locked by the caller.\nvoid F() ABSL_NO_THREAD_SAFETY_ANALYSIS {\n", []),
    ],
)
def test_what_counts_as_a_reason(text, lines):
    assert without_reason(text) == lines


@pytest.mark.parametrize(
    "text, lines",
    [
        ("void f() {\n  g();\n}\n", [3]),
        ("class A {\n  int f(int x) const {\n    return x;\n  }\n  int y = 0;\n};\n", [3]),
        ("namespace a {\nA::A(int b)\n    : b_{b} {\n  if (b) {\n  }\n}\n}\n", [5]),
        ("constexpr int kX[] = {1, 2};\nstruct B {\n  int a = 0;\n};\n", []),
        ('void f() {\n  auto g = [] { return "}"; };  // }\n}\n', [3]),
    ],
)
def test_the_reader_of_functions_counts_right(text, lines):
    assert [f.lines for f in functions(text)] == lines
