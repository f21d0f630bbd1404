"""A root folder that has a C and C++ runtime, one Python and one virtual environment, and nothing
else: what is not there, no loader can find."""

import json
import os
import pathlib
import re
import shutil
import subprocess

# What each Linux has (manylinux: glibc, libstdc++, libgcc, zlib), by the loader's names.
RUNTIME = re.compile(
    r"ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec|gcc_s|stdc\+\+|z)(\.so)(\.\d+)+"
)
_FACTS = """
import json, os, sys, sysconfig
print(json.dumps({
    "programs": os.path.dirname(os.path.realpath(sys.executable)),
    "program": os.path.realpath(sys.executable),
    "modules": sysconfig.get_path("stdlib"),
    "base": [sys.base_prefix, sys.base_exec_prefix],
    "prefix": sys.prefix,
}))
"""
# Parts of a Python that take long to copy.
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "config-*", "dist-packages", "ensurepip", "idlelib", "site-packages", "test"
)
_ENTER = """
mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"
"""


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def linked(file):
    """{name: path} of the libraries that this machine's loader finds for a file."""
    found = {}
    for line in run("ldd", file).splitlines():
        words = line.split()
        if "=>" in words:
            assert "not found" not in line, f"{file}: {line}"
            found[words[0]] = pathlib.Path(words[2])
        elif words[0].startswith("/"):
            found[pathlib.Path(words[0]).name] = pathlib.Path(words[0])
    return found


def _link(source, target):
    """A second name where the file system allows it, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class BareRoot:
    """`python` is that of a virtual environment, which has the same path inside. `files` are linked
    with the runtime that comes along. `unavailable` says why no process can be started inside; it
    is empty if one can."""

    def __init__(self, folder, python, files):
        self.folder = folder
        facts = json.loads(run(python, "-I", "-c", _FACTS))
        libraries = dict(linked(facts["program"]))
        self.of_python = set(libraries)
        for file in files:
            libraries |= {n: p for n, p in linked(file).items() if RUNTIME.fullmatch(n)}
        for name, path in libraries.items():
            self._place(path.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self._place(path.parent) / name)
        shutil.copytree(
            facts["modules"], self._place(facts["modules"]), ignore=_LEFT_OUT, copy_function=_link
        )
        programs = self._place(facts["programs"])
        programs.mkdir(parents=True, exist_ok=True)
        for file in pathlib.Path(facts["programs"]).glob("python*"):
            shutil.copy(file, programs / file.name, follow_symlinks=False)
        shutil.copytree(facts["prefix"], self._place(facts["prefix"]), symlinks=True)
        for name in ("proc", "dev", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        self._places = [facts["prefix"], *facts["base"]]
        self._words, self.unavailable = self._find_a_way(python)

    def _place(self, path):
        return self.folder / str(path).lstrip("/")

    def _find_a_way(self, python):
        reason = "unshare is not installed"
        for way in (["--mount"], ["--mount", "--map-root-user"]):
            words = ["unshare", *way, "sh", "-c", _ENTER, str(self.folder)]
            try:
                done = subprocess.run(
                    [*words, python, "-c", "pass"], capture_output=True, text=True, check=False
                )
            except FileNotFoundError:
                break
            if done.returncode == 0:
                return words, ""
            reason = done.stderr.strip()
            # Python itself must start there: only what makes and enters the root may be refused.
            assert re.match(r"(unshare|mount|chroot|sh): ", reason), reason
        return [], reason

    def command(self, *words):
        """The words that run a program inside. It has the process id of what they start."""
        return [*self._words, *map(str, words)]

    def strange(self, maps):
        """Shared libraries in a process's maps that are neither of the runtime nor in the
        environment nor Python's own."""
        files = {pathlib.Path(line.split()[-1]) for line in maps.splitlines() if ".so" in line}
        return sorted(
            str(file)
            for file in files
            if not RUNTIME.fullmatch(file.name)
            and file.name not in self.of_python
            and not any(pathlib.Path(place) in file.parents for place in self._places)
        )
