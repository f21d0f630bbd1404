"""The image of the client, and what its init container stages: all of the client or nothing, as a
user without rights, also when a pod starts again or its volume is full."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from conftest import ROOT
from container import OUT, TAG, UID, Image, built_line

sys.path.insert(0, str(ROOT / "deploy/docker"))
from client_files import Error, unpack  # noqa: E402  (needs the path)

WHEELS = ROOT / "build/wheels"
STAGE = ROOT / "deploy/docker/stage-client"


def stage(folder, files, **environment):
    return subprocess.run(
        ["sh", STAGE, folder],
        env={**os.environ, "CAIRN_CLIENT": str(files), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def make_files(folder, text):
    """What stands for the client: (folder of files, {path: text})."""
    found = {"cairn/__init__.py": text, "cairn/a/b.py": text * 2, "cairn.libs/l.so.1": text * 3}
    for path, content in found.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder, found


def staged(volume):
    python = volume / "python"
    return {str(p.relative_to(python)): p.read_text() for p in python.rglob("*") if p.is_file()}


def left_over(volume):
    """What is in the volume and not of the client that is used."""
    return {p.name for p in volume.iterdir()} - {"python", os.readlink(volume / "python")}


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


def test_a_second_start_replaces_what_it_finds(tmp_path, volume):
    files, wanted = make_files(tmp_path / "one", "1")
    assert stage(volume, files).returncode == 0
    assert staged(volume) == wanted
    files, wanted = make_files(tmp_path / "two", "2")
    (files / "cairn/a/b.py").rename(files / "cairn/a/c.py")
    done = stage(volume, files)
    assert (done.returncode, done.stderr) == (0, "")
    # A file that the new one lacks does not stay.
    assert staged(volume) == {p.replace("b.py", "c.py"): text for p, text in wanted.items()}
    assert left_over(volume) == set()


def test_a_start_that_was_killed_leaves_nothing_that_is_imported(tmp_path, volume):
    """cp is killed half-way, and with it the whole program."""
    files, wanted = make_files(tmp_path / "one", "1")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cp").write_text(f'#!/bin/sh\n{shutil.which("cp")} "$@"\nkill -9 $PPID\n')
    (programs / "cp").chmod(0o755)
    done = stage(volume, files, PATH=f"{programs}:{os.environ['PATH']}")
    assert done.returncode == -9
    assert not (volume / "python").exists()
    (half,) = volume.iterdir()
    assert stage(volume, files).returncode == 0
    assert staged(volume) == wanted and not half.exists()
    assert left_over(volume) == set()


def test_a_copy_that_fails_leaves_what_was_there(tmp_path, volume):
    files, wanted = make_files(tmp_path / "one", "1")
    assert stage(volume, files).returncode == 0
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cp").write_text("#!/bin/sh\necho 'cp: no space\ncp: still none' >&2\nexit 1\n")
    (programs / "cp").chmod(0o755)
    done = stage(volume, files, PATH=f"{programs}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (1, "")
    room = "the client did not fit, expected 1 MiB of room"
    assert done.stderr == f"stage-client: {volume}: {room}: cp: no space\n"
    assert staged(volume) == wanted and left_over(volume) == set()


def test_a_folder_of_others_is_left_alone(tmp_path, volume):
    files, _ = make_files(tmp_path / "one", "1")
    (volume / "python").mkdir()
    (volume / "python/mine").write_text("x")
    done = stage(volume, files)
    assert done.returncode == 1
    assert re.match(f"stage-client: {volume}/python: expected no folder of others", done.stderr)
    assert [p.name for p in volume.iterdir()] == ["python"]
    assert staged(volume) == {"mine": "x"}


def test_wrong_folders_are_named(tmp_path, volume):
    files, _ = make_files(tmp_path / "one", "1")
    done = stage(tmp_path / "nowhere", files)
    assert done.returncode == 1
    assert done.stderr == (
        f"stage-client: got {tmp_path}/nowhere, expected a folder: mount a volume there\n"
    )
    done = stage(volume, volume)
    assert done.returncode == 1
    assert done.stderr.startswith(f"stage-client: CAIRN_CLIENT: got {volume}, expected the folder")


# ---- What is in the image ----


def wheel(folder, python, **files):
    tag = f"cp{python.replace('.', '')}"
    module = f"cairn/_native.cpython-{python.replace('.', '')}-x86_64-linux-gnu.so"
    with zipfile.ZipFile(folder / f"cairn-0.1.0-{tag}-{tag}-linux.whl", "w") as archive:
        archive.writestr("cairn/__init__.py", files.get("init", "same"))
        archive.writestr(module, python)
        archive.writestr("cairn-0.1.0.dist-info/METADATA", "Name: cairn")
        archive.writestr("cairn-0.1.0.dist-info/WHEEL", tag)
        archive.writestr("cairn-0.1.0.dist-info/RECORD", tag)


def test_one_folder_serves_several_pythons(tmp_path):
    for python in ("3.9", "3.12", "3.10"):
        wheel(tmp_path, python)
    (tmp_path / "cairn_node-0.1.0-py3-none-linux.whl").write_text("of the programs")
    out = tmp_path / "out"
    (out / "cairn").mkdir(parents=True)
    (out / "cairn/old.py").write_text("of an earlier build")
    assert unpack(tmp_path, out) == ["3.9", "3.10", "3.12"]
    assert sorted(p.name for p in (out / "cairn").iterdir()) == [
        "__init__.py",
        "_native.cpython-310-x86_64-linux-gnu.so",
        "_native.cpython-312-x86_64-linux-gnu.so",
        "_native.cpython-39-x86_64-linux-gnu.so",
    ]
    assert [p.name for p in (out / "cairn-0.1.0.dist-info").iterdir()] == ["METADATA"]


def test_wheels_of_several_builds_are_refused(tmp_path):
    wheel(tmp_path, "3.11")
    wheel(tmp_path, "3.12", init="another")
    with pytest.raises(Error, match=r"cp312.*: __init__.py is another one, expected wheels of one"):
        unpack(tmp_path, tmp_path / "out")
    with pytest.raises(Error, match=r"--wheels: got \S+/none, expected a folder with cairn-"):
        unpack(tmp_path / "none", tmp_path / "out")


# ---- The image itself ----


@pytest.fixture(scope="module")
def built(programs):
    return built_line(programs, "--wheels", WHEELS)


@pytest.fixture(scope="module")
def image(built, tmp_path_factory):
    return Image(OUT / "client-oci", TAG, tmp_path_factory.mktemp("image"))


@pytest.fixture
def mounted(tmp_path):
    """Makes a file system of this many MiB in memory, which pods' user may write."""
    made = []

    def make(size):
        folder = tmp_path / f"memory-{size}"
        folder.mkdir()
        options = f"size={size}m,mode=2777,gid={UID}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", folder], check=True)


def test_the_tool_says_what_it_made(built):
    found = re.fullmatch(
        r"the client for Python 3\.\d+(?:, 3\.\d+)*\n"
        r"\S+/client-oci:test sha256:[0-9a-f]{64}, revision \S+: "
        r"(\d+) MiB to download, (\d+) MiB unpacked\n",
        built,
    )
    assert found, built
    assert int(found[1]) <= 80 and int(found[2]) <= 200


def test_the_image_stages_the_client_without_rights(image, mounted):
    """As *restricted* has it, twice, and everybody can read the result."""
    volume = mounted(256)
    binds = [(volume, "/cairn-client", True)]
    for _ in range(2):
        done = image.run(["stage-client"], binds=binds)
        assert (done.returncode, done.stderr) == (0, "")
    assert left_over(volume) == set()
    files = [p for p in (volume / "python").rglob("*") if p.is_file()]
    assert {p.stat().st_uid for p in files} == {UID}
    assert all(p.stat().st_mode & 0o444 == 0o444 for p in files)
    source = image.root / "opt/cairn/client"
    for path in source.rglob("*"):
        if path.is_file():
            there = volume / "python" / path.relative_to(source)
            assert there.read_bytes() == path.read_bytes(), path
    # The engine's pod imports from it (test_cluster_client.py).
    assert list((volume / "python/cairn").glob("_native.cpython-*.so"))


def test_a_full_volume_ends_in_one_line(image, mounted):
    volume = mounted(8)
    done = image.run(["stage-client"], binds=[(volume, "/cairn-client", True)])
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert re.match(
        r"stage-client: /cairn-client: the client did not fit, expected \d+ MiB of room: cp: "
        r".*No space left on device",
        line,
    )
    assert list(volume.iterdir()) == []


def test_a_volume_that_cannot_be_written_ends_in_one_line(image, tmp_path):
    volume = pathlib.Path(tmp_path / "volume")
    volume.mkdir()
    done = image.run(["stage-client"], binds=[(volume, "/cairn-client", True)])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"got /cairn-client, expected a folder that user {UID} can write: mktemp: " in line
