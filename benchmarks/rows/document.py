"""The text that rows make their prompts of: about 4k tokens."""

import pathlib

_TEXTS = pathlib.Path(__file__).resolve().parents[2] / "examples/demo"


def document():
    return "\n".join(
        (_TEXTS / name).read_text(encoding="utf-8")
        for name in ("opticks-definitions.txt", "opticks-queries.txt")
    )
