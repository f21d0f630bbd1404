#!/usr/bin/env python3
"""Runs the libFuzzer programs one after the other, and says how far each came.

Each target starts from tests/fuzz/corpus/NAME and from what earlier runs left in
build/fuzz/corpus/NAME. Afterwards inputs that reach new code go into tests/fuzz/corpus/NAME, evenly
over their sizes, until the folder is full (--keep-files, --keep-bytes). The report adds up the
executions of all runs of a target; delete it to begin again.

The first crash, hang or leak ends everything: its input lies in build/fuzz/crashes, and the
command that replays it is printed.

Exit status: 0 nothing found, 1 a target failed, 2 the run itself cannot work.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests/fuzz"
CORPUS = SOURCES / "corpus"

# Bytes of the longest input. Short inputs are quick, and these reach everything that is known.
MAX_LENGTH = 512
MAX_LENGTHS = {
    "block_record": 160,
    "codec_turbo": 1024,
    "disk_format": 160,
    "engine_calls": 768,
    "gguf": 6144,
    "local_message": 640,
    "local_session": 4096,
    "ring_decoder": 4608,
    "setting_text": 96,
    "tokenizer": 128,
}
# A slow input is a finding, too, and so is one that takes much memory.
LIMITS = ["-timeout=20", "-rss_limit_mb=2048", "-malloc_limit_mb=512"]
PROGRESS = re.compile(r"^#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
EXECUTIONS = re.compile(r"^stat::number_of_executed_units:\s+(\d+)")


def fail(message):
    print(f"fuzz: {message}", file=sys.stderr)
    sys.exit(2)


def git(*arguments):
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} CPUs"


def environment():
    # A small quarantine: else most of a run's memory holds what was freed.
    own = {"ASAN_OPTIONS": "quarantine_size_mb=16", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {**own, **os.environ}


class Target:
    """One libFuzzer program and its folders."""

    def __init__(self, name, build):
        self.name = name
        self.program = build / "fuzz" / f"{name}_fuzz"
        self.seeds = CORPUS / name
        self.found = build / "corpus" / name
        self.crashes = build / "crashes"
        for folder in (self.seeds, self.found, self.crashes):
            folder.mkdir(parents=True, exist_ok=True)

    def command(self, *options):
        length = MAX_LENGTHS.get(self.name, MAX_LENGTH)
        command = [str(self.program), f"-max_len={length}", *LIMITS]
        dictionary = SOURCES / "dictionaries" / f"{self.name}.dict"
        if dictionary.exists():
            command.append(f"-dict={dictionary}")
        return command + [f"-artifact_prefix={self.crashes}/{self.name}-", *options]

    def run(self, seconds):
        """Runs for `seconds`. The addition to the report, and a failure's last lines or None."""
        command = self.command(
            f"-max_total_time={seconds}", "-print_final_stats=1", self.found, self.seeds
        )
        start = time.monotonic()
        done = {"executions": 0, "coverage": 0, "features": 0, "inputs": 0, "quiet_seconds": 0.0}
        new_at, tail = start, []
        with subprocess.Popen(
            [str(word) for word in command],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=environment(),
        ) as process:
            for line in process.stderr:
                tail = [*tail[-80:], line]
                if match := PROGRESS.match(line):
                    executions, coverage, features, inputs = map(int, match.groups())
                    if coverage > done["coverage"]:
                        new_at = time.monotonic()
                    done.update(coverage=coverage, features=features, inputs=inputs)
                    done["executions"] = executions
                elif match := EXECUTIONS.match(line):
                    done["executions"] = int(match.group(1))
        end = time.monotonic()
        done.update(seconds=end - start, quiet_seconds=end - new_at)
        return done, None if process.returncode == 0 else tail

    def keep(self, most_files, most_bytes):
        """Adds found inputs that reach new code to the seeds. Returns how many."""
        kept = {file.name: file for file in sorted(self.seeds.iterdir())}
        room_files = most_files - len(kept)
        room_bytes = most_bytes - sum(file.stat().st_size for file in kept.values())
        with tempfile.TemporaryDirectory() as folder:
            for name, file in kept.items():
                shutil.copy(file, pathlib.Path(folder) / name)
            merged = subprocess.run(
                [str(word) for word in self.command("-merge=1", folder, self.found)],
                capture_output=True,
                check=False,
                cwd=ROOT,
                env=environment(),
            )
            if merged.returncode != 0:
                fail(
                    f"{self.name}: merging failed: {merged.stderr[-500:].decode(errors='replace')}"
                )
            new = [file for file in pathlib.Path(folder).iterdir() if file.name not in kept]
            new.sort(key=lambda file: (file.stat().st_size, file.name))
            if len(new) > room_files:
                new = [new[i * len(new) // room_files] for i in range(max(0, room_files))]
            added = 0
            for file in new:
                data = file.read_bytes()
                if len(data) > room_bytes:
                    break
                (self.seeds / hashlib.sha1(data).hexdigest()).write_bytes(data)
                room_bytes -= len(data)
                added += 1
        return added

    def newest_crash(self):
        files = list(self.crashes.glob(f"{self.name}-*"))
        return max(files, key=lambda file: file.stat().st_mtime, default=None)


def add_up(before, run):
    """The report's entry of a target after one more run."""
    quiet = run["quiet_seconds"]
    if before.get("coverage", 0) >= run["coverage"]:
        quiet += before.get("quiet_seconds", 0)
    return {
        "executions": before.get("executions", 0) + run["executions"],
        "seconds": round(before.get("seconds", 0) + run["seconds"]),
        "coverage": run["coverage"],
        "features": run["features"],
        "inputs": run["inputs"],
        "quiet_seconds": round(quiet),
        "commit": git("rev-parse", "--short=12", "HEAD"),
    }


def table(report):
    """The report as Markdown."""
    lines = [
        "| target | executions | minutes | a second | edges | features | inputs | quiet minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in sorted(report["targets"].items()):
        rate = entry["executions"] / max(1, entry["seconds"])
        lines.append(
            f"| `{name}` | {entry['executions']:,} | {entry['seconds'] / 60:.0f} | {rate:,.0f} "
            f"| {entry['coverage']:,} | {entry['features']:,} | {entry['inputs']:,} "
            f"| {entry['quiet_seconds'] / 60:.0f} |"
        )
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", default="build/fuzz", help="folder of the preset fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="of each target (default 600)")
    parser.add_argument("--targets", default="", help="names with commas or spaces; default: all")
    parser.add_argument("--keep-files", type=int, default=64, help="most seeds of a target")
    parser.add_argument("--keep-bytes", type=int, default=32 << 10, help="most bytes of its seeds")
    parser.add_argument("--no-keep", action="store_true", help="leave tests/fuzz/corpus as it is")
    parser.add_argument("--table", action="store_true", help="print the report, run nothing")
    return parser.parse_args()


def main():
    options = arguments()
    build = (ROOT / options.build).resolve()
    report_file = build / "report.json"
    report = {"targets": {}}
    if report_file.exists():
        report = json.loads(report_file.read_text(encoding="utf-8"))
    if options.table:
        print(table(report))
        return 0
    programs = sorted((build / "fuzz").glob("*_fuzz"))
    known = [program.name.removesuffix("_fuzz") for program in programs]
    names = options.targets.replace(",", " ").split() or known
    if not known or not set(names) <= set(known):
        fail(
            f"targets: got '{' '.join(names)}', expected some of '{' '.join(known)}'; "
            "build them with `cmake --build --preset fuzz`"
        )
    report.update(machine=machine(), command=" ".join(sys.argv))
    for name in names:
        target = Target(name, build)
        print(f"fuzz: {name} for {options.seconds} s", flush=True)
        run, failure = target.run(options.seconds)
        report["targets"][name] = add_up(report["targets"].get(name, {}), run)
        report["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
        report_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if failure is not None:
            crash = target.newest_crash()
            print("".join(failure))
            print(f"fuzz: {name} failed after {run['executions']} executions")
            print(f"fuzz: the input is {crash}; replay it with\n  {target.program} {crash}")
            return 1
        added = 0 if options.no_keep else target.keep(options.keep_files, options.keep_bytes)
        print(
            f"fuzz: {name}: {run['executions']:,} executions, {run['coverage']:,} edges, "
            f"{run['quiet_seconds']:.0f} s since the last new one, {added} seeds kept",
            flush=True,
        )
    print(table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
