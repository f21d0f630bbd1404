"""A little reading of C++: enough to find functions and classes, no parser."""

import dataclasses
import re

# Words that may stand before an opening brace and are no function.
_NOT_A_FUNCTION = re.compile(
    r"^\s*(namespace|class|struct|enum|union|extern|if|for|while|switch|do|else|catch|try|return)\b"
)
_TOKEN = re.compile(
    r'R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
    r"|//[^\n]*|/\*.*?\*/",
    flags=re.S,
)


def without_comments_and_strings(text):
    """The same text, line for line, with comments and literals blanked."""
    return _TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def comments(text):
    """All comments of a text."""
    found = (m[0] for m in _TOKEN.finditer(text))
    return "\n".join(token for token in found if token.startswith(("//", "/*")))


@dataclasses.dataclass
class Function:
    """Lines are counted from 1, and include those of the signature."""

    signature: str
    first_line: int
    last_line: int

    @property
    def lines(self):
        return self.last_line - self.first_line + 1


def functions(text):
    """Every function body in a namespace or a class; lambdas belong to their function."""
    no_macros = re.sub(
        r"^[ \t]*#(?:.*\\\n)*.*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M
    )
    code = without_comments_and_strings(no_macros)
    found = []
    # Each open brace: the function that it opens, None for a namespace or class, False within one.
    open_braces = []
    begin = 0  # Where the present statement begins.
    for at in re.finditer(r"[{};]|\b(?:public|private|protected):", code):
        token = at[0]
        if token == "{" and at.start() > 0 and not code[at.start() - 1].isspace():
            open_braces.append("initializer")  # As in `: member_{value}`: the statement goes on.
            continue
        if token == "}" and open_braces and open_braces[-1] == "initializer":
            open_braces.pop()
            continue
        if token == "{":
            inside = any(b is not None for b in open_braces)
            head = code[begin : at.start()]
            is_function = (
                not inside
                and ")" in head
                and not _NOT_A_FUNCTION.match(head.strip())
                and not re.search(r"=\s*$", head)
            )
            if is_function:
                start = begin + len(head) - len(head.lstrip())
                line = code.count("\n", 0, start) + 1
                open_braces.append(Function(" ".join(head.split()), line, 0))
            elif inside:
                open_braces.append(False)
            else:
                open_braces.append(None)
        elif token == "}":
            opened = open_braces.pop() if open_braces else None
            if isinstance(opened, Function):
                opened.last_line = code.count("\n", 0, at.start()) + 1
                found.append(opened)
        begin = at.end()
    return found
