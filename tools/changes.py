#!/usr/bin/env python3
"""Says which files differ from a commit, and which files include them.

    tools/changes.py [--base COMMIT] [--json]

A file differs if its committed text, or the text in the folder, is not that of the commit: new,
renamed and deleted files too. A file includes another if it says so, or includes a file that does.
That is read from the text of the includes, so it needs no build. `make check` compiles, analyses
and tests only what this names.

- `#include` is from the repository's root, from the file's own folder, or from a folder named
  include/. A part of a source (*.inc.h) and CUDA code count as every other file does.
- x.pb.h and x.grpc.pb.h are made of x.proto, a header of the template with `.in` after its name.
- The meaning of CMake files, scripts and data for a build is not known here: they include nothing.

The default commit is the newest one, along first parents, that was made 4 hours or more before
HEAD: the work of hours is checked, not only its last commit. Without one it is the oldest commit of
this clone, and with one commit only, everything differs.

Exit status: 0, or 2 if there is no such commit.
"""

import argparse
import bisect
import collections
import dataclasses
import json
import pathlib
import posixpath
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULT_AGE_SECONDS = 4 * 3600
# The files that have includes.
SOURCES = (".h", ".cc", ".c", ".cu", ".cuh", ".inc", ".in", ".proto")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
IMPORT = re.compile(r'^[ \t]*import[ \t]+(?:public[ \t]+|weak[ \t]+)?(")([^"\n]+)"', re.MULTILINE)
# Folders from which the compilers look for a name, besides the root.
FOLDERS = ("include", "proto")
GENERATED = re.compile(r"(\.grpc)?\.pb\.h$")


class Error(Exception):
    """The caller's mistake, or a repository that git cannot read."""


def git(*arguments):
    """The output of git; None if it fails."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def names(*arguments):
    """The file names that git prints."""
    printed = git(*arguments)
    if printed is None:
        # Nothing would seem to differ.
        raise Error(f"`git {' '.join(arguments)}` failed")
    return [name for name in printed.split("\0") if name]


class Tree:
    """The files of the repository and which of them include which."""

    def __init__(self, deleted=()):
        """A file that includes one of `deleted` counts as if that one were still there."""
        listed = names("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        self.names = set(listed) | set(deleted)
        self._users = collections.defaultdict(set)
        self._tails = collections.defaultdict(list)
        for name in self.names:
            parts = name.split("/")
            for number, part in enumerate(parts[:-1], 1):
                if part in FOLDERS:
                    self._tails["/".join(parts[number:])].append(name)

    def included(self, name, text):
        """Names of the repository's files that the text of the file `name` includes."""
        found = set()
        pattern = IMPORT if name.endswith(".proto") else INCLUDE
        for kind, included in pattern.findall(text):
            found.update(self._tails.get(included, ()))
            templates = [included, included + ".in"]
            if kind == '"':
                templates.append(posixpath.normpath(posixpath.join(name, "..", included)))
            if GENERATED.search(included):
                proto = GENERATED.sub(".proto", included)
                templates.append(proto)
                found.update(self._tails.get(proto, ()))
            found.update(template for template in templates if template in self.names)
        found.discard(name)
        return found

    def _read(self):
        for name in self.names:
            if name.endswith(SOURCES):
                for included in self.included(name, read(ROOT / name)):
                    self._users[included].add(name)

    def including(self, wanted):
        """Names of the files that include one of `wanted`, or a file that does. Not `wanted`."""
        if not self._users:
            self._read()
        found = set(wanted)
        waiting = list(found)
        while waiting:
            for user in self._users[waiting.pop()] - found:
                found.add(user)
                waiting.append(user)
        return found - set(wanted)


def read(path):
    """The text of a file; empty if the file is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclasses.dataclass
class Changes:
    """The files that differ. All names are relative to the repository."""

    commit: str | None  # None: everything differs.
    why: str  # Why this commit.
    differing: set = dataclasses.field(default_factory=set)
    including: set = dataclasses.field(default_factory=set)
    tree: Tree | None = None

    @property
    def everything(self):
        return self.commit is None

    @property
    def affected(self):
        """The files that differ, and those that include them."""
        return self.differing | self.including

    def __str__(self):
        """'the 3 files that differ from 0123456789ab (why)'"""
        if self.everything:
            return f"everything ({self.why})"
        count = len(self.differing)
        files = "file that differs" if count == 1 else "files that differ"
        return f"the {count} {files} from {self.commit[:12]} ({self.why})"


def default_base():
    """(commit or None, why)"""
    log = git("log", "--first-parent", "--format=%H %ct", "HEAD") or ""
    commits = [line.split() for line in log.splitlines()]
    for commit, seconds in commits:
        if int(commits[0][1]) - int(seconds) >= DEFAULT_AGE_SECONDS:
            return commit, "the newest commit 4 hours older than HEAD"
    if len(commits) > 1:
        return commits[-1][0], "the oldest commit here, as none is 4 hours older than HEAD"
    return None, "this clone has no earlier commit"


def find(base=None, most=None):
    """The changes since `base`: a commit, "all", or nothing for the default. Error if it is none of
    these. `most`: see add_base; without effect on "all"."""
    if base == "all":
        return Changes(None, "all")
    changes = since(base)
    if most is None or changes.everything or len(affected_sources(changes)) <= most:
        return changes
    log = git("log", "--first-parent", "--format=%H", f"{changes.commit}..HEAD") or ""
    commits = log.split()  # From HEAD on. The earlier, the more differs.
    first = bisect.bisect_right(
        range(len(commits)), most, key=lambda i: len(affected_sources(since(commits[i])))
    )
    if first == 0:
        return changes
    later = since(commits[first - 1])
    print(
        f"changes: {changes} reach more than {most} sources, so only what differs from"
        f" {later.commit[:12]} is looked at; `make check-all` looks at everything",
        file=sys.stderr,
    )
    return later


def affected_sources(changes):
    return [name for name in changes.affected if name.endswith(SOURCES)]


def since(base):
    """The changes since a commit, or since the default one."""
    if base:
        commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
        if commit is None:
            raise Error(f"base: got '{base}', expected a commit of this clone, or 'all'")
        commit, why = commit.strip(), base
    else:
        commit, why = default_base()
        if commit is None:
            return Changes(None, why)
    # A rename is a file that is gone and a new one.
    differing = set(names("diff", "--name-only", "--no-renames", "-z", commit, "--"))
    differing |= set(names("ls-files", "-z", "--others", "--exclude-standard"))
    tree = Tree(differing)
    including = tree.including(differing) if differing else set()
    return Changes(commit, why, differing, including, tree)


def add_base(parser):
    """Adds --base to a parser of a tool."""
    parser.add_argument(
        "--base",
        default="",
        metavar="COMMIT",
        help="the commit to compare with; `all`: as if everything differed"
        " (default: the newest that is 4 hours older than HEAD)",
    )
    parser.add_argument(
        "--most",
        type=int,
        metavar="N",
        help="compare with a later commit if that reaches more than N sources, as a move does",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_base(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    try:
        changes = find(arguments.base, arguments.most)
    except Error as error:
        print(f"changes: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        told = {
            "commit": changes.commit,
            "why": changes.why,
            "everything": changes.everything,
            "differing": sorted(changes.differing),
            "including": sorted(changes.including),
        }
        print(json.dumps(told, indent=1))
        return 0
    print(f"changes: {changes}; {len(changes.including)} files include them")
    for kind, some in (("differs", changes.differing), ("includes", changes.including)):
        for name in sorted(some):
            print(f"{kind} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
