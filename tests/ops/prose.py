"""The sentences of a file that people read: comments, docstrings and pages. A little reading, no
parser."""

import dataclasses
import re

CPP = (".h", ".cc", ".cuh", ".cu", ".proto")
PYTHON = (".py", ".pyi")
HASH = (".sh", ".cmake", ".yaml", ".toml", ".tpl", ".in")
HASH_NAMES = ("CMakeLists.txt", "Makefile", "Dockerfile")

_CPP_COMMENT = re.compile(r'(?P<code>[^\s/](?:[^"\n]|"(?:\\.|[^"\\\n])*")*?)?\s*//+<?(?P<text>.*)$')
_HASH_COMMENT = re.compile(r"(?P<code>.*\S)?\s*(?<!\S)#+:?(?!\S*})(?P<text>.*)$")
_ITEM = re.compile(r"\s*([-*] |\d+\. |\|)")
# These are not our own words: code, quotations, targets of links.
_QUOTED = re.compile(r'``.*?``|`[^`]*`|"[^"]{0,300}"|\]\([^)]*\)')
_STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*')


@dataclasses.dataclass
class Paragraph:
    line: int  # The line of the first word, counted from 1.
    text: str  # All in one line, without marks of comments.


def _paragraphs(lines):
    """Joins (number, text, joins) to paragraphs. `joins`: it goes on with the line before."""
    found = []
    for number, text, joins in lines:
        if not text.strip():
            found.append(None)
        elif joins and found and found[-1] is not None and not _ITEM.match(text):
            found[-1].text += " " + text.strip()
        else:
            found.append(Paragraph(number, text.strip()))
    return [p for p in found if p is not None]


def _comments(text, pattern):
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        match = pattern.match(line.strip())
        if match:
            lines.append((number, match["text"], not match["code"]))
        else:
            lines.append((number, "", False))
    return _paragraphs(lines)


def _docstrings(text):
    lines = []
    for match in re.finditer(r'^[ \t]*r?"""(.*?)"""', text, flags=re.DOTALL | re.MULTILINE):
        first = text.count("\n", 0, match.start(1)) + 1
        lines += [(first + n, line, True) for n, line in enumerate(match[1].split("\n"))]
        lines.append((first, "", False))
    return _paragraphs(lines)


def _page(text):
    lines = []
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        in_code ^= fence
        if fence or in_code or line.startswith("#"):
            lines.append((number, "", False))
        elif line.lstrip().startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)
            lines += [(number, cell, False) for cell in cells]
        else:
            lines.append((number, line, True))
    return _paragraphs(lines)


def paragraphs(name, text):
    """The paragraphs of a file; headings, code and tables' rules are none. Empty for files without
    prose."""
    if name.endswith(".md"):
        return _page(text)
    if name.endswith(CPP):
        return _comments(text, _CPP_COMMENT)
    if name.endswith(PYTHON):
        blank = re.sub(r'"""(.*?)"""', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
        return _docstrings(text) + _comments(blank, _HASH_COMMENT)
    if name.endswith(HASH) or name.rsplit("/", 1)[-1] in HASH_NAMES:
        return _comments(text, _HASH_COMMENT)
    return []


def strings(text):
    """The string literals of C++ that are sentences: those with a space."""
    found = []
    for match in _STRINGS.finditer(text):
        joined = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', match[0]))
        if " " in joined:
            found.append(Paragraph(text.count("\n", 0, match.start()) + 1, joined))
    return found


def own_words(text):
    """The text without code, quotations and targets of links."""
    return _QUOTED.sub("`", text)
