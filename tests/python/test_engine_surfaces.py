"""What adapters use of their engines, compared with what known versions have
(tests/data/engines): those that are tested, and newer ones. No engine is needed."""

import copy
import importlib
import json
import logging
import pathlib

import pytest

from cairn._engine import surface as surfaces
from cairn._engine import versions
from cairn._engine.surface import Implements, Surface, changes, files_of, record

RECORDS = pathlib.Path(__file__).resolve().parents[1] / "data/engines"
COMPAT = {
    "vllm": "cairn.vllm.compat",
    "sglang": "cairn.sglang.compat",
    "lmcache": "cairn.lmcache.compat",
    "transformers": "cairn.hf.compat",
}
KNOWN = sorted(path.stem for path in RECORDS.glob("*.json"))


def surface_of(engine):
    return importlib.import_module(COMPAT[engine]).SURFACE


def record_of(name):
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KNOWN)
def test_known_versions_have_what_is_used(name):
    engine = name.partition("-")[0]
    assert changes(record_of(name), surface_of(engine)) == []


@pytest.mark.parametrize("engine", sorted(COMPAT))
def test_the_tested_range_is_that_of_three_recorded_versions(engine):
    """At least: a range says nothing that no record shows."""
    known = [name.partition("-")[2] for name in KNOWN if name.partition("-")[0] == engine]
    inside = [version for version in known if versions.is_tested(engine, version)]
    assert len(inside) >= 3
    assert min(inside).startswith(versions.TESTED[engine].first)


@pytest.mark.parametrize("name", KNOWN)
def test_each_name_that_goes_is_told(name):
    """One after the other: a module's name, or a member of a class."""
    engine = name.partition("-")[0]
    surface, whole = surface_of(engine), record_of(name)
    hooks = {(one.module, one.engine_class): hooks_of(one) for one in surface.implements}
    for module, names in whole.items():
        for item, form in names.items():
            used = surface.uses.get(module, {}).get(item, ())
            members = {
                text.partition("(")[0] for text in (used if isinstance(used, tuple) else ())
            } | hooks.get((module, item), set())
            for member in [None, *sorted(members)]:
                less = copy.deepcopy(whole)
                if member is None:
                    del less[module][item]
                elif isinstance(form, dict) and member in form and member != "__init__":
                    del less[module][item][member]
                else:
                    continue
                told = changes(less, surface)
                full = f"{module}.{item}" + (f".{member}" if member else "")
                assert f"{full} is gone" in told, full


def hooks_of(one):
    """Methods that the engine calls, if it has them in any version that is known."""
    ours = surfaces._own_sources().form(one.own_module, one.own_class, inherited=False)
    there = {
        member
        for name in KNOWN
        for member in record_of(name).get(one.module, {}).get(one.engine_class, {})
    }
    return {m for m in ours if not m.startswith("_") and m not in one.only_some} & there


# ---- the comparison itself, on an engine of a few lines ----

ENGINE = {
    "engine/__init__.py": "from engine.base import Base as Base\n",
    "engine/base.py": """
from abc import ABC, abstractmethod
from .data import Row


class Root(ABC):
    @abstractmethod
    def load(self, rows, where): ...

    def ended(self, rows, *, late=False): ...


class Base(Root):
    def __init__(self, config, role):
        self.config, self.role = config, role

    @property
    def size(self): ...

    @classmethod
    def made(cls, config): ...
""",
    "engine/data.py": """
from dataclasses import dataclass
from typing import ClassVar

try:
    from somewhere_else import fast
except ImportError:
    fast = None


def rows_of(text, most=None, *, sep=","): ...


@dataclass
class Row:
    KINDS: ClassVar[int] = 3
    key: bytes
    life: float = 0.0
""",
    "own/__init__.py": "",
    "own/adapter.py": """
from engine.base import Base


class Ours(Base):
    def __init__(self, config, role, more=None): ...
    def load(self, rows, where): ...
    def ended(self, rows, **more): ...
    @property
    def size(self): ...
    @classmethod
    def made(cls, config): ...
    def _own(self): ...
""",
}
SURFACE = Surface(
    "engine",
    {
        "engine": {"Base": ("config", "made")},
        "engine.base": {"Row": ("key", "KINDS")},
        "engine.data": {"rows_of": "text, sep=", "Row": "key=", "fast": None},
    },
    (Implements("engine.base", "Base", "own.adapter", "Ours"),),
)


@pytest.fixture
def engine(tmp_path):
    """Writes the engine with texts replaced, and tells what changed."""

    def told(*replaced):
        for name, text in ENGINE.items():
            for file, before, after in replaced:
                if file == name:
                    assert before in text
                    text = text.replace(before, after)
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        files = files_of(tmp_path)
        return changes(record(files, SURFACE), SURFACE, files)

    return told


def test_an_engine_that_did_not_change_fits(engine):
    assert engine() == []


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        ("base", "def load(self, rows, where)", "def fetch(self, rows, where)",
         ["engine.base.Base.fetch is new, and has to be implemented",
          "engine.base.Base.load is gone"]),
        ("base", "rows, where)", "rows, where, when=0)",
         ["engine.base.Base.load takes (rows, where, when=), and took (rows, where)"]),
        ("base", "load(self, rows, where)", "load(self, where, rows)",
         ["engine.base.Base.load takes (where, rows), and took (rows, where)"]),
        ("base", "def ended", "def done", ["engine.base.Base.ended is gone"]),
        ("base", "late=False", "late=False, early=True", []),
        ("base", "@property\n    ", "", ["engine.base.Base.size is a method, and was a property"]),
        ("base", "self.config, self.role = config, role", "self.role = role",
         ["engine.Base.config is gone"]),
        ("base", "(Root)", "", ["engine.base.Base.load is gone", "engine.base.Base.ended is gone"]),
        ("data", "most=None", "most",
         ["engine.data.rows_of takes (text, most, sep=), and is called with (text, sep=)"]),
        ("data", 'sep=","', 'separator=","',
         ["engine.data.rows_of takes (text, most=, separator=), "
          "and is called with (text, sep=)"]),
        ("data", "text, most", "texts, most",
         ["engine.data.rows_of takes (texts, most=, sep=), and is called with (text, sep=)"]),
        ("data", "life: float = 0.0", "life: float",
         ["engine.data.Row takes (key, life), and is called with (key=)"]),
        ("data", "class Row", "class Line",
         ["engine.base.Row is gone", "engine.data.Row is gone"]),
        ("data", "fast", "quick", ["engine.data.fast is gone"]),
    ],
)  # fmt: skip
def test_changes_are_named(engine, file, before, after, told):
    assert engine((f"engine/{file}.py", before, after)) == told


# ---- versions ----


def test_versions_are_older_tested_or_newer(monkeypatch, caplog):
    monkeypatch.setitem(versions.TESTED, "vllm", versions.Range("0.30", "0.33"))

    def check(version, different=()):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "cairn"):
            versions.check_version("vllm", version, SURFACE, lambda: list(different))
        return caplog.text

    for version in ("0.30.0", "0.30.4+cpu", "0.32.0", "0.32.1.dev3+g1234"):
        assert check(version, ["never looked at"]) == ""
    for version in ("0.29.9", "0.9.2", "dev"):
        with pytest.raises(RuntimeError, match="not tested.*at least 0.30 and below 0.33$"):
            check(version)
    for version in ("0.33.0", "0.33.0rc1", "1.0"):
        assert f"vllm {version} was not tested" in check(version)
        # Once in a process is enough.
        assert check(version) == ""
    with pytest.raises(RuntimeError, match="It differs from these: a is gone; b is gone$"):
        check("0.34.0", ["a is gone", "b is gone"])
    with pytest.raises(RuntimeError, match="4 is gone; and 3 more$"):
        check("0.34.0", [f"{i} is gone" for i in range(8)])
