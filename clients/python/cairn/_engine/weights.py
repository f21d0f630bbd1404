"""Identifies the weights of a model by their bytes, because other weights may get the same name."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import struct
from collections.abc import Sequence

__all__ = ["files_digest", "weights_revision"]

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".py")
_CHUNK = 8 << 20


def weights_revision(model: str, revision: str | None = None) -> str:
    """The commit of a hub's model, or the SHA-256 over the files of a local one (a folder or one
    file).

    ValueError: neither could be found. Reading all weights takes a while, so the digest of a local
    model is remembered in the user's cache folder as long as sizes and times of its files do not
    change.
    """
    path = pathlib.Path(model)
    if not path.exists():
        return _hub_commit(model, revision)
    files = (
        [path]
        if path.is_file()
        else sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    )
    if not any(p.suffix not in (".json", ".py") for p in files):
        raise ValueError(f"no weights in '{model}': name what they are with the setting 'revision'")
    seen = [[p.name, s.st_size, s.st_mtime_ns, s.st_ino] for p in files if (s := p.stat())]
    memory = _memory(path.resolve())
    try:
        remembered = json.loads(memory.read_text())
        if remembered["files"] == seen:
            return str(remembered["revision"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # Not there, or of no use.
    digest = "sha256:" + files_digest(files)
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        draft = memory.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"files": seen, "revision": digest}))
        draft.replace(memory)
    except OSError:
        pass  # The next start reads the weights again.
    return digest


def _memory(path: pathlib.Path) -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return pathlib.Path(cache) / "cairn/weights" / f"{name}.json"


def files_digest(files: Sequence[pathlib.Path]) -> str:
    """SHA-256 over names and bytes, each with its length: they cannot run into each other."""
    digest = hashlib.sha256()
    for path in files:
        name = path.name.encode()
        digest.update(struct.pack("<QQ", len(name), path.stat().st_size) + name)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _hub_commit(model: str, revision: str | None) -> str:
    """Hubs keep a model's files in a folder that is called like the commit."""
    problem = f"the revision of '{model}' cannot be found out: name it with the setting 'revision'"
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        raise ValueError(problem) from None
    found = try_to_load_from_cache(model, "config.json", revision=revision)
    if not isinstance(found, str):
        raise ValueError(problem)
    return pathlib.Path(found).parent.name
