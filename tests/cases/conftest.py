import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from programs import Programs  # It needs the path.


@pytest.fixture
def programs(tmp_path):
    started = Programs(tmp_path)
    yield started
    started.stop()
