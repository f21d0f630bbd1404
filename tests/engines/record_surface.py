"""Records what a version of an engine has of what its adapter uses, in tests/data/engines.

record_surface.py ENGINE VERSION [FROM]     FROM: a wheel, or a folder with packages. Default: what
                                            this Python imports

Reads the files of the engine and imports nothing of it. A new release of an engine needs this once.
"""

import importlib
import json
import pathlib
import sys
import zipfile

from cairn._engine.surface import files_of, installed, record

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests/data/engines"
COMPAT = {
    "vllm": "cairn.vllm.compat",
    "sglang": "cairn.sglang.compat",
    "lmcache": "cairn.lmcache.compat",
    "transformers": "cairn.hf.compat",
}


def surface_of(engine):
    return importlib.import_module(COMPAT[engine]).SURFACE


def files_in(wheel):
    """The modules of a wheel, without unpacking it."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())

    def text(module):
        path = module.replace(".", "/")
        for name in (f"{path}.py", f"{path}/__init__.py"):
            if name in names:
                return archive.read(name).decode()
        return None

    return text


def recorded(engine, source=None):
    surface = surface_of(engine)
    if source is None:
        files = installed(surface.package)
    else:
        path = pathlib.Path(source)
        files = files_in(path) if path.is_file() else files_of(path)
    return record(files, surface)


def file_of(engine, version):
    return RECORDS / f"{engine}-{version}.json"


def main(engine, version, source=None):
    text = json.dumps(recorded(engine, source), indent=1, sort_keys=True)
    file_of(engine, version).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in COMPAT:
        sys.exit(__doc__)
    main(*sys.argv[1:])
