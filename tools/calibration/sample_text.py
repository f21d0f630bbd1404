"""The texts that a calibration reads: files joined to one, and what its file says about them."""

import hashlib
import pathlib


class SampleText:
    """Plain texts that no suite of `cairn fidelity` uses. Immutable."""

    def __init__(self, paths, name=None):
        """name: what a calibration's file calls them, if not by the files' names."""
        self.text = "\n\n".join(pathlib.Path(p).read_text(encoding="utf-8") for p in paths)
        self.name = name or ", ".join(pathlib.Path(p).name for p in paths)

    @classmethod
    def add_arguments(cls, parser, option):
        parser.add_argument(
            f"--{option}",
            dest="texts",
            metavar="TEXT",
            nargs="+",
            required=True,
            help="files of plain text that no suite uses",
        )
        parser.add_argument(
            f"--{option}-name", dest="texts_name", help="what to call them; else the files' names"
        )

    @classmethod
    def of_arguments(cls, arguments):
        return cls(arguments.texts, arguments.texts_name)

    @property
    def about(self):
        """The line about them in a calibration's file."""
        return f"text: {self.name}, SHA-256 {hashlib.sha256(self.text.encode()).hexdigest()}"
