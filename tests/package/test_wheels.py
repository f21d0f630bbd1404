"""The wheels of `make wheel` and `make wheels` run on other machines: they carry what they need,
work where nothing else is, and live in one process with other versions of the same libraries.

CAIRN_BUILD names the build directory (default build/release).
"""

import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from bare_root import RUNTIME, BareRoot, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools/wheel")]
from make_wheels import TAG, find_python  # noqa: E402  (needs the path)
from rows.processes import Server  # noqa: E402

FOLDER = ROOT / "build/wheels"
WHEELS = sorted(FOLDER.glob("cairn*.whl")) or [None]
CLIENTS = sorted(FOLDER.glob("cairn-*.whl")) or [None]
PROGRAMS = ["cairn", "cairn-cache", "cairn-router", "cairn-worker"]
NODE = ["--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0", "--host.capacity", "64MiB"]
MEGABYTES = 40

# exchange(ADDRESS, PATH) stores a block and reads it back.
EXCHANGE = (ROOT / "tests/support/exchange.py").read_text(encoding="utf-8")
# A server and a client of the gRPC that PyPI has.
CALL_WITH_GRPC = """
from concurrent import futures

def call():
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test", {"Echo": echo})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/test/Echo")(b"bytes", timeout=120) == b"bytes"
    server.stop(None).wait()
"""
CALL_WITH_PROTOBUF = """
def call():
    message = struct_pb2.Struct()
    message.update({"a": 1, "b": [None, "c"]})
    again = struct_pb2.Struct()
    again.ParseFromString(message.SerializeToString())
    assert again == message
"""
OTHERS = {
    "grpc": ("import grpc", CALL_WITH_GRPC),
    "protobuf": ("from google.protobuf import struct_pb2", CALL_WITH_PROTOBUF),
}


def python_of(wheel):
    """A Python that the wheel of a client is for."""
    major, minor = re.search(r"-cp(\d)(\d+)-cp\d+-", wheel.name).groups()
    if (int(major), int(minor)) == sys.version_info[:2]:
        return sys.executable
    python = find_python(f"{major}.{minor}")
    assert python, f"{wheel.name}: the Python that built it is not here any more"
    return python


def environment(folder, client):
    """The Python of a new environment with nothing but two wheels."""
    run(python_of(client), "-m", "venv", "--without-pip", folder)
    [programs] = FOLDER.glob("cairn_node-*.whl")
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check"),
        *("--python", folder / "bin/python", "install", "-q", "--no-index", client, programs),
    )
    return folder / "bin/python"


def installed(python, package):
    """The folder of an installed package."""
    [folder] = python.parent.parent.glob(f"lib/python*/site-packages/{package}")
    return folder


def made(wheels):
    assert None not in wheels, f"{FOLDER} has no wheels: run `make wheel` first"
    return wheels


@pytest.fixture(params=WHEELS, ids=lambda wheel: wheel and wheel.name)
def wheel(request):
    [made_wheel] = made([request.param])
    return made_wheel


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda wheel: wheel and wheel.name)
def python(request, tmp_path_factory):
    """A fresh environment for each wheel of a client."""
    [client] = made([request.param])
    return environment(tmp_path_factory.mktemp("wheels") / "venv", client)


@pytest.fixture(scope="module")
def bare_root(python, tmp_path_factory):
    root = BareRoot(
        tmp_path_factory.mktemp("root"),
        python,
        [
            *installed(python, "cairn").glob("_native*.so"),
            *(installed(python, "cairn_node") / "bin").iterdir(),
        ],
    )
    if root.unavailable:
        pytest.skip(f"no root folder of its own: {root.unavailable}")
    return root


@pytest.fixture(scope="module")
def bare_node(bare_root, python, tmp_path_factory):
    """A node inside, started by the installed command."""
    command = bare_root.command(python.with_name("cairn-cache"), *NODE)
    with Server(command, tmp_path_factory.mktemp("log") / "node") as node:
        yield node


@pytest.fixture(scope="module")
def node(python, tmp_path_factory):
    """The same on this machine."""
    with Server(
        [python.with_name("cairn-cache"), *NODE], tmp_path_factory.mktemp("log") / "node"
    ) as node:
        yield node


# ---- The files ----


def elf_files(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return [p for p in folder.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]


def test_auditwheel_says_what_the_wheel_runs_on(wheel):
    """The glibc and libstdc++ of Ubuntu 22.04 have each symbol; so has the name."""
    said = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    assert f'consistent with the following platform tag: "{TAG}"' in said, said
    assert wheel.name.endswith(f"-{TAG}.whl")


def test_the_wheel_is_not_large(wheel):
    assert wheel.stat().st_size <= MEGABYTES * 10**6


def test_each_library_is_inside_or_on_every_linux(wheel, tmp_path):
    files = elf_files(wheel, tmp_path)
    assert len(files) > 10
    carried = {p.name for p in tmp_path.glob("*.libs/*")}
    for file in files:
        dynamic = run("readelf", "-d", file)
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        strange = [n for n in needed if n not in carried and not RUNTIME.fullmatch(n)]
        assert not strange, (file.name, strange)
        # No folder of the machine that built it.
        for places in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
            assert all(p.startswith("$ORIGIN") for p in places.split(":")), (file.name, places)


def test_licences_of_carried_libraries_come_along(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = {
            name.rsplit("/", 1)[1]: archive.read(name).decode()
            for name in names
            if ".dist-info/licenses/" in name and not name.endswith("/")
        }
    assert "Apache License" in texts["LICENSE"]
    carried = [name.rsplit("/", 1)[1] for name in names if ".libs/lib" in name]
    assert carried
    packages = [name.removesuffix(".txt") for name in texts if name != "LICENSE"]
    files = run("dpkg-query", "-L", *packages).splitlines()
    ours = {pathlib.Path(file).name for file in files}
    # libgrpc-1a2b3c4d.so.29.0.0 was libgrpc.so.29.0.0.
    strange = {re.sub(r"-[0-9a-f]{8}(?=\.)", "", library) for library in carried} - ours
    assert not strange, strange


def test_the_record_is_complete(wheel):
    """Installers check it, and uninstallers go by it."""
    with zipfile.ZipFile(wheel) as archive:
        [record] = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD")]
        rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
        assert {row[0] for row in rows} == {n for n in archive.namelist() if not n.endswith("/")}
        for name, digest, _ in rows:
            if name != record:
                raw = hashlib.sha256(archive.read(name)).digest()
                plain = base64.urlsafe_b64encode(raw).decode().rstrip("=")
                assert digest == f"sha256={plain}", name


# ---- Where nothing else is ----


def test_there_is_no_other_library_in_the_root(bare_root):
    """Else the tests below would show nothing."""
    strange = bare_root.folder / "usr/lib/x86_64-linux-gnu/libgrpc.so.29"
    assert not strange.exists()
    outside = [
        p.name
        for p in bare_root.folder.rglob("*.so*")
        if not {"site-packages", "lib-dynload"} & set(p.parts)
    ]
    assert outside
    assert not [n for n in outside if not RUNTIME.fullmatch(n) and n not in bare_root.of_python]


@pytest.mark.parametrize("path", ["grpc", "local"])
def test_a_block_is_stored_and_read(bare_root, bare_node, python, path):
    program = f"""
import sys
{EXCHANGE}
exchange(*sys.argv[1:])
print(open("/proc/self/maps").read())
"""
    maps = run(*bare_root.command(python, "-c", program, bare_node.grpc, path))
    assert "cairn.libs/libgrpc" in maps
    assert not bare_root.strange(maps)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_start(bare_root, python, program):
    said = run(*bare_root.command(python.with_name(program), "--version"))
    assert "0.1.0" in said


def test_the_command_line_asks_the_node(bare_root, bare_node, python):
    command = bare_root.command(python.with_name("cairn"), "stat", "--cache", bare_node.grpc)
    assert run(*command).strip()


# ---- On a machine with other things ----


def test_commands_become_the_programs(node, python):
    """No Python stays in between: signals, /proc and service managers see the program."""
    program = installed(python, "cairn_node") / "bin/cairn-cache"
    assert os.readlink(f"/proc/{node.pid}/exe") == str(program)
    status = pathlib.Path(f"/proc/{node.pid}/status").read_text()
    ignored = int(re.search(r"^SigIgn:\s*(\w+)$", status, re.M)[1], 16)
    with Server([program, *NODE], os.devnull) as direct:
        plain = pathlib.Path(f"/proc/{direct.pid}/status").read_text()
    assert ignored == int(re.search(r"^SigIgn:\s*(\w+)$", plain, re.M)[1], 16)


def test_a_node_ends_in_peace(python, tmp_path):
    with Server([python.with_name("cairn-cache"), *NODE], tmp_path / "log") as node:
        assert node.terminate() == 0


def test_a_program_that_is_missing_is_named(tmp_path, python):
    """A copy of the package alone, without its programs."""
    shutil.copytree(
        installed(python, "cairn_node"), tmp_path / "cairn_node", ignore=lambda *_: ["bin"]
    )
    done = subprocess.run(
        [python, "-c", "import cairn_node; cairn_node.cache()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"cairn-cache: \S+/cairn_node/bin/cairn-cache cannot be started: "
        r"No such file or directory: install cairn-node again\n",
        done.stderr,
    ), done.stderr


@pytest.mark.parametrize("path", ["grpc", "local"])
@pytest.mark.parametrize("cairn_first", [True, False], ids=["cairn first", "cairn last"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_versions_in_one_process(node, other, cairn_first, path):
    """In the environment of the tests, which has these packages of PyPI."""
    load, call = OTHERS[other]
    imports = [EXCHANGE, load + call] if cairn_first else [load + call, EXCHANGE]
    run(
        sys.executable,
        "-c",
        "\n".join(["import sys", *imports, *["call()\nexchange(*sys.argv[1:])"] * 2]),
        *(node.grpc, path),
    )


def test_debian_s_libraries_are_not_loaded(python):
    """Where they are installed, too: nothing of the machine stands in for what is carried."""

    def loaded(package):
        """Libraries of the machine in a process. Python's own ssl has OpenSSL."""
        program = f"import asyncio, {package}\nprint(open('/proc/self/maps').read())"
        maps = run(python, "-c", program)
        files = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
        return {name for name in files if "site-packages" not in name}

    strange = loaded("cairn") - loaded("uuid")
    assert not {name for name in strange if not RUNTIME.fullmatch(pathlib.Path(name).name)}


def test_importing_is_cheap(python):
    """Counts, since times differ between machines: `make bench` has those."""
    program = """
import sys
before = set(sys.modules)
import asyncio, concurrent.futures, dataclasses, enum, functools, ipaddress, typing
of_python = set(sys.modules)
import cairn
print(len({name.split(".")[0] for name in set(sys.modules) - of_python}))
print(sum(name.split(".")[0] == "cairn" for name in sys.modules))
"""
    packages, modules = map(int, run(python, "-c", program).split())
    # Ours, and some of Python's own. No package of others, and no adapter of an engine.
    assert packages <= 8 and modules <= 12


def test_the_library_for_gpus_is_looked_for_next_to_the_module(tmp_path, python):
    """One that is no driver, in a copy of the package: the error says which one was found."""
    package = installed(python, "cairn")
    for name in ("cairn", "cairn.libs"):
        shutil.copytree(package.with_name(name), tmp_path / name)
    shutil.copy("/lib/x86_64-linux-gnu/libm.so.6", tmp_path / "cairn/libcairn_cuda.so")
    said = open_pages(python, tmp_path)
    assert f"{tmp_path}/cairn/libcairn_cuda.so: has no function 'cairn_device_driver'" in said, said


def open_pages(python, folder):
    """What the module says when it is to use the first GPU."""
    program = """
import sys
import cairn
try:
    cairn._native.open_pages(("", 0, 1, 1), [(1 << 20, 4096, 4096)], 1)
except cairn.Error as error:
    print(error)
else:
    print("opened")
"""
    return run(python, "-c", program, cwd=folder)


def test_the_library_for_gpus_comes_along(python, tmp_path):
    library = pathlib.Path("bin/libcairn_cuda.so")
    if not (pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release")) / library).exists():
        pytest.skip("nvcc did not compile the kernels: no library either")
    assert (installed(python, "cairn_node") / library).exists()
    # A driver, or that there is none: the library itself says so.
    assert re.search(r"NVIDIA|CUDA|opened|memory", open_pages(python, tmp_path))
