#!/usr/bin/env python3
"""Unpacks the wheels of the Python client into one folder, for the Dockerfile's target `client`.

  deploy/docker/client_files.py --wheels build/wheels --out build/images/client

There is a wheel for each version of Python (`make wheels`). They differ in the native module alone,
whose name has the version. So one folder serves all of these Pythons, each of which finds its own.
"""

import argparse
import pathlib
import re
import shutil
import sys
import zipfile

# Installers' notes, which differ. The rest of *.dist-info has the version and the licences.
LEFT_OUT = re.compile(r"[^/]+\.dist-info/(RECORD|WHEEL|INSTALLER|sboms/.*)")


class Error(Exception):
    """Says what is wrong and what was expected."""


def unpack(wheels, out):
    """Makes the folder `out` of the wheels in a folder; the versions of Python that it serves, such
    as "3.12"."""
    found = sorted(wheels.glob("cairn-*.whl"))
    if not found:
        raise Error(f"--wheels: got {wheels}, expected a folder with cairn-*.whl: `make wheels`")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    pythons = []
    for wheel in found:
        tag = re.search(r"-cp(\d)(\d+)-cp\d+-", wheel.name)
        if not tag:
            raise Error(f"--wheels: got {wheel.name}, expected a wheel for one version of CPython")
        pythons.append(f"{tag[1]}.{tag[2]}")
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and not LEFT_OUT.fullmatch(entry.filename):
                    _write(out / entry.filename, archive.read(entry), wheel.name)
    return sorted(pythons, key=lambda version: [int(part) for part in version.split(".")])


def _write(path, content, wheel):
    if path.exists() and path.read_bytes() != content:
        raise Error(
            f"{wheel}: {path.name} is another one, expected wheels of one build in --wheels"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if ".so" in path.name else 0o644)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    try:
        pythons = unpack(options.wheels, options.out)
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.out}: the client for Python {', '.join(pythons)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
