"""Comments, pages and help texts have none of the words that docs/inside/style.md advises against:
the left columns of its tables."""

import fnmatch
import functools
import re

import pytest

from conftest import ROOT
from prose import own_words, paragraphs, strings
from test_docs import FILES

PAGE = "docs/inside/style.md"
PRODUCT = (
    "benchmarks/*",
    "calibration/*",
    "clients/*",
    "cmake/*",
    "common/*",
    "deploy/*",
    "docs/*",
    "examples/*",
    "helm/*",
    "kernels/*",
    "model/*",
    "proto/*",
    "protocol/*",
    "services/*",
    "tools/*",
    "*README.md",
    "CHANGELOG.md",
    "CMakeLists.txt",
    "CONTRIBUTING.md",
    "Makefile",
    "SECURITY.md",
)
# Where settings, metrics and commands have the texts that users see.
HELP_TEXTS = ("services/*/rpc/*_config.cc", "services/*config.cc", "services/*metrics.cc") + (
    "tools/cairn/commands/*.cc",
    "kernels/selections/*.h",
)
# (files, phrase): why it is right there.
EXCEPTIONS = {
    (PAGE, "*"): "It quotes what it advises against.",
    ("benchmarks/results/*", "*"): "Reports of the past are not rewritten.",
    ("kernels/selections/methods/*pyramidkv.h", "beside"): "A parameter has this name.",
    ("services/worker/engine/*", "*"): "Some files there are being replaced.",
}


def rules(page):
    """(phrase, pattern) of each word or sentence in a table whose columns are "not" and "but"."""
    found = []
    for table in re.findall(r"^\| not \| but \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in table.splitlines():
            cell = row.split("|")[1].strip()
            for phrase in re.findall(r"`([^`]+)`", cell) or [cell]:
                found.append((phrase, pattern(phrase)))
    return found


def pattern(phrase):
    """Dots at its end: it begins a sentence that is no question. Else it is anywhere."""
    words = re.escape(phrase.removesuffix("...").strip())
    if not phrase.endswith("..."):
        return re.compile(rf"\b{words}\b", re.IGNORECASE)
    start = r"(?:^|[.?!:;]\S* |^[-*] |^\d+\. )[\[(*_`']*"
    return re.compile(rf"{start}{words} (?!(?:[^.?!]|\.(?=\S))*\?)")


def test_style_has_the_words():
    phrases = [phrase for phrase, _ in RULES]
    assert {"anew", "so many", "Of ...", "What ..."} < set(phrases)
    assert len(phrases) > 20


def hits(text):
    """Phrases of the table that are in a paragraph."""
    words = own_words(text)
    return [phrase for phrase, found in RULES if found.search(words)]


RULES = rules((ROOT / PAGE).read_text(encoding="utf-8"))


def is_any(name, patterns):
    return any(fnmatch.fnmatch(name, p) for p in patterns)


def wrong_words(name, text):
    """(file, phrase, where) of each hit."""
    found = paragraphs(name, text)
    if is_any(name, HELP_TEXTS):
        found += strings(text)
    return [
        (name, phrase, f"{name}:{p.line}: {phrase!r} in: {p.text[:120]}")
        for p in found
        for phrase in hits(p.text)
    ]


@functools.cache
def product():
    wrong = []
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if is_any(name, PRODUCT) and not name.startswith("tests/"):
            try:
                wrong += wrong_words(name, path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue
    return wrong


def is_excepted(name, phrase, exception):
    files, which = exception
    return fnmatch.fnmatch(name, files) and which in ("*", phrase)


def test_product_comments_pages_and_help_texts_are_plain():
    wrong = [
        where
        for name, phrase, where in product()
        if not any(is_excepted(name, phrase, e) for e in EXCEPTIONS)
    ]
    assert not wrong, f"{len(wrong)} times, see {PAGE}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=str)
def test_each_exception_is_needed(exception):
    assert any(is_excepted(name, phrase, exception) for name, phrase, _ in product())


@pytest.mark.parametrize(
    "name, text, lines",
    [
        ("a.h", "// Of a\n// block.\nint a;\n", [1]),
        ("a.h", "int a;  // Of a block.\nint b;  // Bytes.\n", [1]),
        ("a.h", "// Bytes. Of a\n// block, so\n// many.\n", [1, 1]),
        ("a.h", '// The paper "What is This". See `Of x`.\nF("// Of a");\n', []),
        ("a.h", "// Bytes of a block. What\n// is it?\n", []),
        ("a.h", "//   Who waits, waits.\n//\n// - What waits: nobody.\n", [1, 3]),
        ("a.proto", "message A {\n  string a = 1;  // Whose it is.\n}\n", [2]),
        ("a.py", '"""What\nit does."""\nx = 1  # Anew.\ny = "# Of a"\n', [1, 3]),
        ("a.py", 'def f():\n    """It is made.\n\n    Of\n    a block."""\n', [4]),
        ("CMakeLists.txt", 'set(A b)  # For ever.\nset(C "Of a")\n', [1]),
        ("a.md", "# What it is\nText.\n\n```sh\n# Of a\n```\n\nbeside\nit\n", [8]),
        ("a.md", "| a | What is it? |\n|---|---|\n| b | Of c |\n", [3]),
        ("a.md", "1. **What a node does**: x\n2. [What it\n   is](b.md)\n", [1, 2]),
    ],
)
def test_what_is_found(name, text, lines):
    found = [p.line for p in paragraphs(name, text) for _ in hits(p.text)]
    assert sorted(found) == lines


def test_words_of_help_texts_are_found():
    text = 'schema.Text("a",\n    "Empty: none. "\n    "Of others.");\n'
    assert [hits(p.text) for p in strings(text)] == [["Of ..."]]
