#!/usr/bin/env python3
"""Builds the image of the Dockerfile next to this file with buildah: no daemon, and nothing outside
of --out is touched.

  deploy/docker/image.py --programs build/image/bin --out build/images
  deploy/docker/image.py --programs build/image/bin --out build/images \\
      --base registry.example/debian:12-slim@sha256:DIGEST

`--programs` is the folder with cairn-cache, cairn-worker, cairn-router and cairn, which were
compiled on Debian 12 (`make image` does that first). They are stripped on the way. `--base` is what
the image begins with, by digest; without it, that is made of Debian's packages by mmdebstrap, once
for each --out. The results are the OCI layout OUT/oci, and OUT/cairn.tar for `docker load`, with
the tag --tag. The image's version and revision are what the programs say of themselves.

With `--wheels` it is the image of the client instead, in OUT/client-oci and OUT/cairn-client.tar:
the Python client from these wheels (`make wheels`), which an init container stages for an engine.
The programs then say of which revision the wheels are.
"""

import argparse
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import client_files

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("cairn", "cairn-cache", "cairn-router", "cairn-worker")
BY_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
# Debian's own slim images leave these out.
NOT_IN_THE_BASE = ("doc/*", "info/*", "locale/*", "man/*", "lintian/*", "linda/*", "groff/*")
MOST_MEBIBYTES = 200
MEBIBYTE = 1 << 20


class Error(Exception):
    """Says what is wrong and what was expected."""


def run(*command, **options):
    """The output of a command. All that it says is shown if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **options,
        )
    except FileNotFoundError as error:
        raise Error(f"{words[0]} is not installed: `make image` installs it") from error
    if done.returncode != 0:
        raise Error(f"{done.stdout}\n`{' '.join(words)}` failed with {done.returncode}")
    return done.stdout.strip()


class Builder:
    """buildah, with its images and containers below one folder. One at a time in a folder."""

    def __init__(self, folder):
        self._where = [
            "--root",
            folder / "storage",
            "--runroot",
            folder / "run",
            # Works in a container too, where layers cannot be mounted on each other.
            "--storage-driver",
            "vfs",
        ]

    def __call__(self, verb, *arguments):
        return run("buildah", *self._where, verb, *arguments)

    def has(self, image):
        return bool(self("images", "--quiet", "--filter", f"reference={image}"))

    def from_files(self, image, source, target):
        """An image of these files alone: `source`, a folder or a tar, at the folder `target`."""
        container = self("from", "scratch")
        self("copy" if source.is_dir() else "add", container, source, target)
        self("commit", "--timestamp", "0", "--rm", container, image)


def version_of(programs):
    """(version, revision) that all programs name."""
    found = {}
    for name in PROGRAMS:
        path = programs / name
        if not path.is_file():
            raise Error(f"--programs: got {programs}, expected a folder with {name}")
        said = run(path, "--version")
        match = re.fullmatch(r"\S+ (\S+) \(([^()\s]+)\)", said)
        if not match:
            raise Error(f"{name} --version: got {said!r}, expected NAME VERSION (REVISION)")
        found[name] = match.groups()
    if len(set(found.values())) != 1:
        raise Error(f"--programs: got programs of several revisions, expected one: {found}")
    version, revision = found[PROGRAMS[0]]
    if revision == "unknown":
        raise Error("--programs: they do not know their revision: configure with -DCAIRN_REVISION=")
    return version, revision


def debian_base(builder, out):
    """Debian 12, of its packages of today. Its archive is signed."""
    image = "localhost/cairn-base:bookworm"
    if builder.has(image):
        return image
    tar = out / "base.tar"
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{path}" for path in NOT_IN_THE_BASE]
    keep = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    # A base that a power failure spoils is made again.
    options = [*excludes, keep, "--dpkgopt=force-unsafe-io"]
    run("mmdebstrap", "--quiet", "--variant=minbase", *options, "bookworm", tar)
    builder.from_files(image, tar, "/")
    tar.unlink()
    return image


def chosen_base(builder, out, asked):
    if asked is None:
        return debian_base(builder, out)
    if not BY_DIGEST.fullmatch(asked):
        raise Error(f"--base: got {asked}, expected NAME@sha256:DIGEST, since a tag moves")
    builder("pull", asked)
    return asked


def layout_sizes(layout, tag):
    """(digest of the manifest, bytes to download, bytes unpacked) of an image in an OCI layout."""

    def blob(digest):
        return layout / "blobs" / digest.replace(":", "/")

    index = json.loads((layout / "index.json").read_text())
    (entry,) = [
        manifest
        for manifest in index["manifests"]
        if manifest["annotations"]["org.opencontainers.image.ref.name"] == tag
    ]
    manifest = json.loads(blob(entry["digest"]).read_text())
    unpacked = 0
    for layer in manifest["layers"]:
        with gzip.open(blob(layer["digest"])) as file:
            unpacked += sum(len(piece) for piece in iter(lambda f=file: f.read(MEBIBYTE), b""))
    return entry["digest"], sum(layer["size"] for layer in manifest["layers"]), unpacked


class Kind(NamedTuple):
    """An image that can be built."""

    name: str  # The name of the image.
    target: str  # The stage of the Dockerfile.
    argument: str  # Names the image of the files that go in.
    layout: str  # The folder below --out.


PROGRAMS_IMAGE = Kind("cairn", "plain", "PROGRAMS", "oci")
CLIENT_IMAGE = Kind("cairn-client", "client", "CLIENT", "client-oci")


def programs_image(builder, options, out):
    """An image with the programs alone, stripped."""
    stripped = out / "programs"
    shutil.rmtree(stripped, ignore_errors=True)
    stripped.mkdir(parents=True)
    for path in sorted(options.programs.iterdir()):
        if path.name in PROGRAMS or path.name == "libcairn_cuda.so":
            run("strip", "-o", stripped / path.name, path)
            (stripped / path.name).chmod(0o755)
    image = "localhost/cairn-programs:latest"
    builder.from_files(image, stripped, "/opt/cairn/bin")
    return image


def client_image(builder, options, out):
    """An image with the files of the client alone."""
    files = out / "client"
    pythons = client_files.unpack(options.wheels, files)
    print(f"the client for Python {', '.join(pythons)}")
    image = "localhost/cairn-client-files:latest"
    builder.from_files(image, files, "/")
    return image


def build(options):
    """Makes the image; the folder of its layout, its tag and revision, and its digest and sizes as
    layout_sizes has them."""
    out = options.out.resolve()
    version, revision = version_of(options.programs)
    tag = options.tag or version
    builder = Builder(out)
    base = chosen_base(builder, out, options.base)
    if options.wheels:
        kind, files = CLIENT_IMAGE, client_image(builder, options, out)
    else:
        kind, files = PROGRAMS_IMAGE, programs_image(builder, options, out)
    image = f"localhost/{kind.name}:{tag}"
    # The same files give the same image, whenever it is built.
    committed = run("git", "-C", ROOT, "log", "-1", "--format=%ct", "HEAD")
    arguments = {
        "BASE": base,
        "RUNTIME": base,
        kind.argument: files,
        "VERSION": version,
        "REVISION": revision,
    }
    builder(
        "build",
        *[f"--build-arg={name}={value}" for name, value in arguments.items()],
        f"--label=org.opencontainers.image.base.name={base}",
        f"--timestamp={committed}",
        f"--isolation={options.isolation}",
        "--network=host",
        "--layers=false",
        "--pull=false",
        "--format=oci",
        f"--target={kind.target}",
        f"--file={ROOT / 'deploy/docker/Dockerfile'}",
        f"--tag={image}",
        ROOT,
    )
    layout = out / kind.layout
    shutil.rmtree(layout, ignore_errors=True)
    builder("push", image, f"oci:{layout}:{tag}")
    archive = out / f"{kind.name}.tar"
    archive.unlink(missing_ok=True)
    builder("push", image, f"docker-archive:{archive}:{kind.name}:{tag}")
    digest, packed, unpacked = layout_sizes(layout, tag)
    if unpacked > MOST_MEBIBYTES * MEBIBYTE:
        raise Error(f"the image has {unpacked // MEBIBYTE} MiB, expected {MOST_MEBIBYTES} at most")
    return kind.layout, tag, revision, digest, packed, unpacked


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--wheels", type=pathlib.Path, help="the client's image, of this folder")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--base", help="NAME@sha256:DIGEST")
    parser.add_argument("--tag", help="default: the programs' version")
    parser.add_argument(
        "--isolation",
        choices=["oci", "chroot"],
        default=os.environ.get("BUILDAH_ISOLATION", "oci"),
        help="how the commands of the Dockerfile run; chroot needs fewer rights",
    )
    options = parser.parse_args()
    try:
        layout, tag, revision, digest, packed, unpacked = build(options)
    except (Error, client_files.Error) as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{options.out}/{layout}:{tag} {digest}, revision {revision}: "
        f"{packed / MEBIBYTE:.0f} MiB to download, {unpacked / MEBIBYTE:.0f} MiB unpacked"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
