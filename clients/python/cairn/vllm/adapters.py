"""LoRA adapters, identified by the bytes of their files: a name or a path may get other weights.

The engine reads an adapter's files at some time after its start, and maybe again later. So they are
what it computes with only if they have not changed from its start until a block is stored:

    start ───── adapter is read by the engine ───── request ───── step ───── block is stored
      └─ changed after this: the adapter is bypassed    │                      │
                                           digest of the files       files are the same: stored

Needs no vLLM.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import os
import pathlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn._engine.weights import files_digest

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

__all__ = ["Adapter", "AdapterFiles", "AdapterRules", "Adapters", "Naming", "adapter_rules"]

_LOG = logging.getLogger("cairn")
_PREFIXES = ("adapter_", "new_embeddings")  # The files that the engine reads, and older ones.
_CLOCK = 100_000_000  # Nanoseconds that a file system's clock may be behind.
_LINKS = 64  # In a path. More are taken for a circle.
# The part of vLLM's configuration that decides how an adapter's numbers are used.
_SETTINGS = (
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
    "fully_sharded_loras",
    "lora_dtype",
    "target_modules",
)


class ChangedError(Exception):
    """Files that may not be those that the engine has read."""


class _Seen(NamedTuple):
    """A file, folder or link, without its bytes."""

    name: str
    device: int
    inode: int
    size: int
    modified: int
    changed: int


class AdapterFiles(NamedTuple):
    """An adapter's files at some time. Other bytes give another value, if clocks are right."""

    folder: str
    seen: tuple[_Seen, ...]

    @classmethod
    def look(cls, folder: str) -> AdapterFiles:
        """OSError: there are none, or they cannot be read."""
        path = os.path.abspath(os.path.expanduser(folder))
        seen = [*_links(path), _seen(path, os.stat(path))]
        files = sorted(name for name in os.listdir(path) if name.startswith(_PREFIXES))
        if "adapter_config.json" not in files:
            raise FileNotFoundError(f"'{path}' has no adapter_config.json")
        seen += [_seen(name, os.stat(os.path.join(path, name))) for name in files]
        return cls(path, tuple(seen))

    def digest(self) -> bytes:
        """SHA-256 over names and bytes. OSError: they cannot be read."""
        names = [one.name for one in self.seen if one.name.startswith(_PREFIXES)]
        return bytes.fromhex(files_digest([pathlib.Path(self.folder, name) for name in names]))

    def unchanged(self) -> bool:
        """Whether they are still the same."""
        try:
            return AdapterFiles.look(self.folder) == self
        except OSError:
            return False

    def newest(self) -> int:
        """When the last one of them changed, in nanoseconds since 1970."""
        return max(max(one.modified, one.changed) for one in self.seen)


def _seen(name: str, stat: os.stat_result) -> _Seen:
    return _Seen(name, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _links(path: str) -> list[_Seen]:
    """Links on the way to a folder: another one may be put in the place of each."""
    found: dict[str, _Seen] = {}
    todo = [path]
    while todo and len(found) < _LINKS:
        parts = pathlib.PurePath(todo.pop()).parts
        for count in range(2, len(parts) + 1):
            prefix = os.path.join(*parts[:count])
            if prefix not in found and os.path.islink(prefix):
                found[prefix] = _seen(prefix, os.lstat(prefix))
                todo.append(os.path.join(os.path.dirname(prefix), os.readlink(prefix)))
    return list(found.values())


class Adapter(NamedTuple):
    """An adapter whose bytes are known."""

    files: AdapterFiles
    extra: bytes
    """Its part of a block's key: digests of the bytes and of how they are used."""


class AdapterRules(NamedTuple):
    """The settings of an engine that concern adapters."""

    settings: str = ""
    """The part of vLLM's configuration that decides what an adapter does."""
    fixed: bool = False
    """The operator says that files never change once the engine can read them."""


class _Known:
    """An adapter that requests have named. `refusal`: the counter of the requests that it has no
    key for."""

    def __init__(self, path: str, reading: Future[Adapter]) -> None:
        self.path = path
        self.reading = reading
        self.refusal = ""


class Naming:
    """The adapter of one request, which is being identified."""

    def __init__(self, known: _Known, until: float) -> None:
        self._known = known
        self._until = until

    def pending(self) -> bool:
        """Whether `adapter` and `refusal` are not known yet. Not for longer than its time."""
        return not self._known.reading.done() and time.monotonic() < self._until

    def wait(self, seconds: float) -> None:
        """Until it is not pending, or for this time."""
        concurrent.futures.wait([self._known.reading], seconds)

    @property
    def refusal(self) -> str:
        """The counter of the reason if the request has no key. Empty: it has one."""
        reading = self._known.reading
        if self._known.refusal:
            return self._known.refusal
        if not reading.done() or reading.cancelled():
            return "unread_adapter_requests"
        error = reading.exception()
        if error is None:
            return ""
        changed = isinstance(error, ChangedError)
        return "changed_adapter_requests" if changed else "unread_adapter_requests"

    @property
    def adapter(self) -> Adapter | None:
        """None: pending, or refused."""
        return None if self.pending() or self.refusal else self._known.reading.result()


class Adapters:
    """The adapters of an engine. Called by one thread; another one reads files."""

    def __init__(self, rules: AdapterRules, patience: float) -> None:
        """To be made before the engine can have read an adapter. `patience`: seconds that a request
        waits until its adapter's files are read."""
        self._settings = hashlib.sha256(rules.settings.encode()).digest()
        self._start = None if rules.fixed else time.time_ns() - _CLOCK
        self._patience = patience
        self._known: dict[int, _Known] = {}
        self._reader = ThreadPoolExecutor(1, "cairn-adapter")

    def name(self, lora: LoRARequest) -> Naming:
        """The adapter of a new request. vLLM knows adapters by their numbers."""
        known = self._known.get(lora.lora_int_id)
        if known is None or _is_unread(known):
            # Files that are looked for again at each request are not worth a warning each time.
            say = _LOG.info if known is not None else _LOG.warning
            known = _Known(lora.lora_path, self._reader.submit(self._identify, lora, say))
            self._known[lora.lora_int_id] = known
        if not known.refusal and self._is_replaced(known, lora):
            known.refusal = "changed_adapter_requests"
            _LOG.warning(
                "cairn: the files of LoRA adapter '%s' have changed; requests with it are not "
                "cached any more by this process",
                lora.lora_name,
            )
        return Naming(known, time.monotonic() + self._patience)

    def _is_replaced(self, known: _Known, lora: LoRARequest) -> bool:
        if lora.load_inplace or known.path != lora.lora_path:
            return True
        if not known.reading.done() or known.reading.cancelled():
            return False
        error = known.reading.exception()
        return error is None and not known.reading.result().files.unchanged()

    def _identify(self, lora: LoRARequest, say: Callable[..., None]) -> Adapter:
        """In the reader's thread."""
        try:
            files = AdapterFiles.look(lora.lora_path)
            if self._start is not None and files.newest() >= self._start:
                raise ChangedError("they are younger than the engine")
            digest = files.digest()
            if not files.unchanged():
                raise ChangedError("they changed while they were read")
        except (OSError, ChangedError) as error:
            say(
                "cairn: requests with LoRA adapter '%s' are not cached, since its files may not be "
                "those that the engine has: %s",
                *(lora.lora_name, error),
            )
            raise
        # No text begins with this byte, so no salt can be the same.
        fused = b"\1" if getattr(lora, "is_3d_lora_weight", False) else b"\0"
        extra = b"\xffcairn.vllm.adapter.v1" + digest + self._settings + fused
        return Adapter(files, extra)

    def close(self) -> None:
        """Reads no more files."""
        self._reader.shutdown(wait=False, cancel_futures=True)


def _is_unread(known: _Known) -> bool:
    """Files that were not there may be there now."""
    reading = known.reading
    if known.refusal or not reading.done() or reading.cancelled():
        return False
    return isinstance(reading.exception(), OSError)


def adapter_rules(lora_config: Any, fixed: bool) -> AdapterRules:
    """From vLLM's configuration and the setting `fixed_adapters`."""
    if lora_config is None:
        return AdapterRules()
    settings = [f"{name}={getattr(lora_config, name, None)}" for name in _SETTINGS]
    return AdapterRules(" ".join(settings), fixed)
