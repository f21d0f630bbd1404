"""The programs of Cairn, carried by a package that pip installs.

The commands `cairn`, `cairn-cache`, `cairn-router` and `cairn-worker` are the functions below. Each
becomes the program of its name: same process, same arguments, nothing of Python is left.
"""

import os
import pathlib
import signal
import sys
from typing import NoReturn

__version__ = "0.1.0"
__all__ = ["cache", "cairn", "path", "router", "worker"]


def path(program: str) -> pathlib.Path:
    """The file of a program, such as "cairn-cache". It works without Python, too."""
    return pathlib.Path(__file__).resolve().parent / "bin" / program


def _become(program: str) -> NoReturn:
    # Python ignores these at its start, and a program inherits what is ignored. A program whose
    # reader has gone must end.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    file = path(program)
    try:
        os.execv(file, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{program}: {file} cannot be started: {error.strerror}: install cairn-node again")


def cairn() -> NoReturn:
    """Becomes the command line."""
    _become("cairn")


def cache() -> NoReturn:
    """Becomes the cache node."""
    _become("cairn-cache")


def router() -> NoReturn:
    """Becomes the router."""
    _become("cairn-router")


def worker() -> NoReturn:
    """Becomes the reference worker."""
    _become("cairn-worker")
