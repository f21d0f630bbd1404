"""The wheel: installs into a fresh environment, is typed, and its documented examples run there."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys
import venv

import pytest

import cairn
from conftest import ROOT

PAGE = ROOT / "docs/program/python.md"


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """An interpreter with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        python,
        "install",
        "-q",
        "--no-index",
        "--find-links",
        ROOT / "build/wheels",
        "cairn",
    )
    return python


def examples(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


def test_examples_of_the_documentation_run(fresh, node, tmp_path):
    """The page's examples one after the other, as one program. Each `# -> x` is what the line
    before printed."""
    program = "\n".join(examples(PAGE)).replace("127.0.0.1:7400", node.grpc)
    printed = run(fresh, "-c", program, cwd=tmp_path)
    assert printed.splitlines() == re.findall(r"# -> (.*)", program)


def test_the_readme_s_example_runs(fresh, node, tmp_path):
    program = "\n".join(examples(ROOT / "clients/python/README.md")).replace(
        "127.0.0.1:7400", node.grpc
    )
    printed = run(fresh, "-c", program, cwd=tmp_path)
    assert printed.splitlines() == re.findall(r"# -> (.*)", program)


def test_the_package_is_typed_strictly():
    run(
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        ROOT / "clients/python/pyproject.toml",
        "--no-incremental",
        "--cache-dir=/dev/null",
        ROOT / "clients/python/cairn",
    )


def test_users_see_types(tmp_path):
    program = tmp_path / "user.py"
    program.write_text(
        "import cairn\n\ndef f(client: cairn.Client) -> int:\n"
        "    reveal_type(client.match(b'', []).lease)\n"
        "    reveal_type(client.stat().blocks)\n    return client.stat().version\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert 'Revealed type is "cairn._native.Lease"' in done.stdout
    assert (
        'Revealed type is "int"' in done.stdout or 'Revealed type is "builtins.int"' in done.stdout
    )
    assert "Found 1 error" in done.stdout and 'got "str", expected "int"' in done.stdout, (
        done.stdout
    )


def test_the_native_module_is_as_its_stub_says():
    """Both have the same names, and functions the same parameters, by nanobind's own account."""
    stub = ast.parse((ROOT / "clients/python/cairn/_native.pyi").read_text())
    read = set(re.findall(r'named\["(\w+)"\]', (ROOT / "clients/python/src/calls.cc").read_text()))

    def compare(nodes, owner, where):
        described = [n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
        real = {name for name in vars(owner) if not name.startswith("__")}
        assert {n.name for n in described if not n.name.startswith("__")} == real, where
        for n in described:
            thing = inspect.getattr_static(owner, n.name)
            if isinstance(n, ast.ClassDef):
                compare(n.body, thing, n.name)
            elif not n.decorator_list and not n.name.startswith("__"):
                signature = thing.__nb_signature__[0][0]
                plain = signature.split("->")[0]
                while "[" in plain:  # The text of a type in brackets has commas, too.
                    plain = re.sub(r"\[[^\[\]]*\]", "", plain)
                parameters = re.findall(r"(?:\(|, )(\w+)(?=:|,|\))", plain)
                assert [a.arg for a in n.args.args] == parameters, f"{where}.{signature}"
                # Options by name arrive as a dictionary, and C++ reads each of them.
                assert {a.arg for a in n.args.kwonlyargs} <= read, f"{where}.{n.name}"

    compare(stub.body, cairn._native, "_native")


def test_everything_public_is_described():
    missing = []
    for name in cairn.__all__:
        thing = getattr(cairn, name)
        if name in ("BlockMemory", "Buffer", "Layout", "Memory"):
            continue  # Aliases.
        if not thing.__doc__:
            missing.append(name)
        if isinstance(thing, type) and thing.__module__.startswith("cairn"):
            missing += [
                f"{name}.{member}"
                for member, value in vars(thing).items()
                if not member.startswith("_") and callable(value) and not value.__doc__
            ]
    assert not missing


def test_nothing_of_the_product_is_for_other_modules_to_find():
    """Other versions of the same libraries may be in the process."""
    module = pathlib.Path(cairn._native.__file__)
    lines = [line.split() for line in run("nm", "-D", "--defined-only", module).splitlines()]
    # Weak ones are instances of std's templates for our types, and nanobind's own.
    assert [name for _, kind, name in lines if kind in "TDBR" and "nanobind" not in name] == [
        "PyInit__native"
    ]
