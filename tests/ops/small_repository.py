"""A small repository in a temporary folder, with this repository's tools in it."""

import os
import shutil
import subprocess
import sys

from conftest import ROOT

TOOLS = (
    "changes.py",
    "failed_tests.py",
    "lint.py",
    "presets.py",
    "sanitize.py",
    "skipped_tests.py",
)


class Repository:
    """All paths are relative to `root`. Nothing is committed before `commit`."""

    def __init__(self, root):
        self.root = root
        self.git("init", "-q")
        self.write(".gitignore", "/build/\n__pycache__/\n")
        for name in [f"tools/{tool}" for tool in TOOLS] + [
            "tests/allowed_skips.txt",
            ".clang-tidy",
        ]:
            self.write(name, (ROOT / name).read_text(encoding="utf-8"))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def append(self, name, text="// Changed.\n"):
        with (self.root / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def git(self, *arguments, date=None):
        """The output of git. `date` is that of a commit: seconds since 1970."""
        environment = dict(os.environ)
        if date is not None:
            environment["GIT_COMMITTER_DATE"] = f"{date} +0000"
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def commit(self, date=None):
        """The new commit, of all that there is."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "A commit", date=date)
        return self.git("rev-parse", "HEAD")

    def reset(self):
        """Back to the last commit. Built files stay."""
        self.git("reset", "-q", "--hard")
        self.git("clean", "-fdq")
        for passed in self.root.glob("build/*/passed"):
            shutil.rmtree(passed)

    def tool(self, name, *arguments):
        return subprocess.run(
            [sys.executable, f"tools/{name}.py", *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
