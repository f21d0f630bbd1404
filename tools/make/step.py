#!/usr/bin/env python3
"""Runs one step of a goal of the Makefile, and notes how long it took.

  tools/make/step.py LABEL -- COMMAND ...           its output is shown
  tools/make/step.py --quiet LABEL -- COMMAND ...   its output goes to build/logs/LABEL.log, and is
                                                    shown if it fails
  tools/make/step.py --build LABEL -- COMMAND ...   the same for ninja, whose progress is one line
                                                    that moves
  tools/make/step.py --end                          says where the time of the goal went

A step that fails ends with a line that says what to do. Exit status: that of the command, 130 if it
was interrupted.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"
# The second of the goal's begin, then a line a step: seconds, tab, label (goal.sh begins it).
STEPS = ROOT / "build" / ".steps"
# Off a terminal, a line of progress so often.
SECONDS_BETWEEN_LINES = 60
FULL_MEGABYTES = 50

# The output of a failed step, and advice.
REASONS = [
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full: free some space (`make clean` removes build/)",
    ),
    (
        r"Could not resolve|Temporary failure in name resolution|Temporary failure resolving"
        r"|NewConnectionError|Network is unreachable|No matching distribution found"
        r"|Failed to establish a new connection",
        "the package index cannot be reached: check the network, or the proxy of pip and apt",
    ),
    (
        r"Killed signal terminated program|cannot allocate memory|out of memory allocating",
        "the compiler ran out of memory: use fewer jobs (JOBS=1)",
    ),
    (r"Cairn needs (?:GCC|Clang|a compiler)[^\n]*", None),
    (r"No such file or directory: '?(?:ninja|cmake)|ninja: not found", "run `make setup` first"),
]


def goal():
    return os.environ.get("CAIRN_GOAL", "")


def say(text):
    print(text, file=sys.stderr, flush=True)


def duration(seconds):
    """45 s, 3 min 5 s"""
    seconds = round(seconds)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"


class Progress:
    """One line that moves on a terminal; elsewhere a line at the beginning, and one a minute. Not
    thread-safe."""

    def __init__(self, label, stream=sys.stderr):
        self.label, self.stream = label, stream
        self.terminal = stream.isatty()
        self.began = self.said = time.monotonic()
        stream.write(f"{label} ..." + ("" if self.terminal else "\n"))
        stream.flush()

    def show(self, done, total):
        now = time.monotonic()
        text = f"{self.label}: {done} of {total}"
        # The first steps generate code and say little of what compiling will take.
        if done * 10 > total:
            left = (now - self.began) / done * (total - done)
            text += f", about {duration(left)} left"
        if self.terminal:
            self.stream.write(f"\r\033[K{text}")
        elif now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            self.stream.write(text + "\n")
        self.stream.flush()

    def clear(self):
        if self.terminal:
            self.stream.write("\r\033[K")
            self.stream.flush()


class Command:
    """A command that ends when we are told to. One at a time."""

    def __init__(self):
        self.interrupted = self.told = False
        self.process = None
        # Ctrl-C reaches the command as well, being of our process group. TERM comes from a make
        # that is ended, to us alone.
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number, _frame):
        self.interrupted = True
        self.told = number == signal.SIGTERM
        self._end_if_told_meanwhile()

    def _end_if_told_meanwhile(self):
        """The signal may come while the command is being started."""
        if self.told and self.process is not None:
            self.process.terminate()

    def run(self, command):
        """The status of a command whose output is shown."""
        with subprocess.Popen(command) as self.process:
            self._end_if_told_meanwhile()
            return self.process.wait()

    def run_logged(self, command, log, progress, build):
        """The status of a command whose output goes to a file. `build`: it is ninja's."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            open(log, "w", buffering=1, encoding="utf-8", errors="replace") as file,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=dict(os.environ, NINJA_STATUS="[%f/%t] "),
            ) as self.process,
        ):
            self._end_if_told_meanwhile()
            for line in self.process.stdout:
                file.write(line)
                if build and (found := re.match(r"\[(\d+)/(\d+)\] ", line)):
                    progress.show(int(found[1]), int(found[2]))
            status = self.process.wait()
        progress.clear()
        return status


def reason(text):
    """Advice about the output of a step; "" if there is none."""
    for pattern, advice in REASONS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return advice or found[0]
    return ""


def failed_part(text, build):
    """The part of the output that a reader needs: if it is ninja's, the lines of steps that
    failed."""
    lines = text.splitlines()
    if build:
        kept, keep = [], False
        for line in lines:
            if line.startswith("FAILED: "):
                keep = True
            elif re.match(r"\[\d+/\d+\] |ninja: build stopped", line):
                keep = False
            # The command is longer than what it says.
            if keep and not re.match(r"(/\S+/)?(ccache|cmake|c\+\+|clang|g\+\+|: && )", line):
                kept.append(line)
        lines = kept or lines
    return "\n".join(lines[-60:])


def end_of_failure(label, status, seconds, text, log):
    """Prints why a step failed and what to do."""
    free = shutil.disk_usage(ROOT).free // 2**20
    advice = reason(text)
    if free < FULL_MEGABYTES:
        advice = REASONS[0][1]
    said = f"make {goal()}: `{label}` failed after {duration(seconds)} (status {status})"
    if log:
        said += f", all that it printed is in {os.path.relpath(log, ROOT)}"
    if advice:
        said += f": {advice}"
    say(f"{said}; `make {goal()}` goes on from there")


def run(label, words, quiet, build):
    began = time.monotonic()
    text, log = "", None
    command = Command()
    try:
        if quiet or build:
            log = LOGS / (re.sub(r"\W+", "_", label) + ".log")
            status = command.run_logged(words, log, Progress(label), build)
            text = log.read_text(encoding="utf-8", errors="replace")
        else:
            status = command.run(words)
    except OSError as error:
        status, text = 127, str(error)
        say(text)
    seconds = time.monotonic() - began
    with open(STEPS, "a", encoding="utf-8") as steps:
        steps.write(f"{seconds:.1f}\t{label}\n")
    if command.interrupted or status in (-signal.SIGINT, -signal.SIGTERM):
        say(f"make {goal()}: interrupted in `{label}`; `make {goal()}` goes on from there")
        return 130
    if status != 0:
        if log:
            say(failed_part(text, build))
        end_of_failure(label, status, seconds, text, log)
        return status if 0 < status < 256 else 1
    return 0


def report():
    """The line that says where the time went."""
    first, *rest = STEPS.read_text(encoding="utf-8").splitlines()
    total = {}
    for line in rest:
        seconds, label = line.split("\t", 1)
        total[label] = total.get(label, 0) + float(seconds)
    steps = ", ".join(f"{label} {duration(seconds)}" for label, seconds in total.items())
    say(f"make {goal()}: done in {duration(time.time() - float(first))} ({steps})")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--end", action="store_true")
    parser.add_argument("label", nargs="?")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.end:
        report()
        return 0
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not options.label or not command:
        parser.error("expected LABEL -- COMMAND ...")
    return run(options.label, command, options.quiet, options.build)


if __name__ == "__main__":
    sys.exit(main())
