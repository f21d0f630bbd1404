"""Configures build/PRESET for the tools that build only a part of it. A module, not a command."""

import hashlib
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Written after a configuration: the SHA-256 of the presets that it was made with.
STAMP = "configured_with"


class Error(Exception):
    """The error of CMake, with the command."""


def folder(preset):
    return ROOT / "build" / preset


def _run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(f"{done.stdout}{done.stderr}\n`{shlex.join(command)}` failed")


def configure(preset, definitions=(), needs=None):
    """Brings build/PRESET up to date with the CMake files, and returns the folder.

    `definitions` are (variable, value). `needs`, a path in the folder, must be there afterwards.
    CMake runs again only if something changed: it takes ten seconds. Ninja knows that of all files
    but the presets.
    """
    build = folder(preset)
    presets = (ROOT / "CMakePresets.json").read_bytes()
    digest = hashlib.sha256(presets).hexdigest()
    stamp, cache = build / STAMP, build / "CMakeCache.txt"
    if stamp.is_file() and stamp.read_text() == digest and (needs is None or needs.exists()):
        known = cache.read_text(encoding="utf-8") if cache.is_file() else ""
        wanted = (rf"^{re.escape(name)}:\w+={re.escape(value)}$" for name, value in definitions)
        if (build / "build.ninja").is_file() and all(
            re.search(line, known, re.MULTILINE) for line in wanted
        ):
            _run(["cmake", "--build", str(build), "--target", "build.ninja"])
            return build
    print(f"configuring build/{preset}", file=sys.stderr, flush=True)
    _run(["cmake", "--preset", preset, *(f"-D{name}={value}" for name, value in definitions)])
    stamp.write_text(digest)
    return build


def compile_targets(build, targets, jobs, most_errors=10):
    """Builds; ninja prints its progress. Returns whether all could be made."""
    command = ["cmake", "--build", str(build), "-j", str(jobs), "--target", *targets]
    # A broken header breaks all that include it: the first few say what is wrong.
    done = subprocess.run([*command, "--", "-k", str(most_errors)], cwd=ROOT, check=False)
    return done.returncode == 0
