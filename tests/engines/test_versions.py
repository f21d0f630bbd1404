"""The versions of engines that are installed here, compared with what the adapters use, and with
what was recorded of them (tests/data/engines)."""

import importlib.metadata
import json

import pytest

from cairn._engine import versions
from cairn._engine.surface import changes
from record_surface import COMPAT, file_of, recorded, surface_of


def installed(engine):
    return importlib.metadata.version(engine).partition("+")[0]


@pytest.mark.parametrize("engine", sorted(COMPAT))
def test_an_installed_version_is_tested_and_recorded(engine):
    version = installed(engine)
    assert versions.is_tested(engine, version)
    there = recorded(engine)
    assert changes(there, surface_of(engine)) == []
    # Else tests/engines/record_surface.py writes it again.
    assert there == json.loads(file_of(engine, version).read_text(encoding="utf-8"))
