"""Rules of form that a machine can hold: CONTRIBUTING.md has them in words."""

import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT
from cpp_source import functions, without_comments_and_strings
from test_docs import FILES

LIMIT = 100
MAX_FUNCTION_LINES = 80
# Its long lines are texts in many scripts, which are what it makes fixtures of.
MAY_BE_LONG = {"tests/data/tokenizer/make_fixtures.py"}
CPP = [p for p in FILES if p.suffix in (".h", ".cc")]
OTHER_CODE = [
    p
    for p in FILES
    if p.suffix in (".py", ".proto", ".sh", ".cmake") or p.name in ("CMakeLists.txt", "Makefile")
]
PYTHON = [p for p in FILES if p.suffix in (".py", ".pyi")]
PROSE = [p for p in FILES if p.suffix == ".md"]


def name(path):
    return path.relative_to(ROOT).as_posix()


def long_lines(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(n, line) for n, line in enumerate(lines, 1) if len(line) > LIMIT]


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
        elif not in_code and not line.startswith("    ") and not line.startswith(("|", "![")):
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
            if function.lines > MAX_FUNCTION_LINES and not any("Long: " in a for a in above):
                wrong.append(
                    f"{name(path)}:{function.first_line}: {function.lines} lines, "
                    f"expected at most {MAX_FUNCTION_LINES}, or a comment '// Long: reason'"
                )
    assert not wrong, "\n".join(wrong)


THREAD_WORDS = re.compile(r"thread|lock|concurren|any time|one at a time|immutable", flags=re.I)


def test_headers_with_a_class_say_how_threads_use_it():
    product = ("common/", "clients/", "kernels/", "model/", "protocol/", "services/", "tools/")
    wrong = []
    for path in CPP:
        if path.suffix != ".h" or not name(path).startswith(product):
            continue
        text = path.read_text(encoding="utf-8")
        code = without_comments_and_strings(text)
        if re.search(r"^class\s+\w+[^;{]*\{", code, flags=re.M) and not THREAD_WORDS.search(text):
            wrong.append(name(path))
    assert not wrong, "no word on threads in: " + " ".join(wrong)


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
