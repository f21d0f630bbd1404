"""The counters of adapters, for the metrics of their engines."""

from __future__ import annotations

import threading

__all__ = ["COUNTERS", "Counters"]

# Name and meaning; engines add a prefix, and the suffix that they are used to.
COUNTERS = {
    "lookups": "Look-ups whose answer was taken, or waited for in vain.",
    "lookup_seconds": "Time that look-ups took, in the background.",
    "lookup_failures": "Look-ups without an answer in time, or with an error; misses all.",
    "lookup_blocks": "Blocks that these looked for.",
    "matched_blocks": "Blocks of these that the node had.",
    "loads": "Loads that were begun, one a request.",
    "load_seconds": "Time that loads took, in the background.",
    "loaded_blocks": "Blocks that were loaded and verified.",
    "loaded_bytes": "Their bytes.",
    "device_loaded_blocks": "Blocks of these that came out of the node's memory on a GPU.",
    "failed_load_blocks": "Blocks that should have been loaded; the engine computed them.",
    "saved_blocks": "Blocks that the node took, or had already.",
    "saved_bytes": "Their bytes.",
    "save_seconds": "Time that storing took, in the background.",
    "failed_save_blocks": "Blocks that the node did not take.",
    "dropped_save_blocks": "Blocks not stored since the buffer was full.",
    "draft_shortened_lookups": (
        "Look-ups whose answer was made shorter because a draft's layers need a further block."
    ),
    "late_lookups": (
        "Look-ups without an answer that were given up before their timeout, because the request "
        "would have waited too long for what it saves."
    ),
    "unasked_requests": (
        "Requests that did not ask: all of their prompt is computed faster than loaded."
    ),
    "unasked_late_requests": (
        "Requests that did not ask: an answer would take longer than they wait for one."
    ),
    "untaken_hits": "Answers of which some or all was computed, because that is faster.",
    "untaken_blocks": "Blocks of these that were there and were not loaded.",
    "late_loads": ("Loads that were given up before their timeout, because computing is faster."),
    "probes": (
        "Look-ups and loads of a few blocks in the background, while hits are not taken. No "
        "request waits for them. Of the other counts, loaded_bytes alone has them."
    ),
    "bypassed_requests": "Requests that the cache has no right key for.",
    "unread_adapter_requests": (
        "Requests of these with a LoRA adapter whose files could not be read, or not in time."
    ),
    "changed_adapter_requests": (
        "Requests of these with a LoRA adapter whose files may not be those that the engine has."
    ),
    "changed_adapter_blocks": (
        "Blocks not stored since the files of their LoRA adapter changed during the step."
    ),
    "internal_errors": (
        "Exceptions in the adapter, caught before the engine saw them. Each is a bug."
    ),
}


class Counters:
    """Sums by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: dict[str, float] = {}
        self._total: dict[str, float] = dict.fromkeys(COUNTERS, 0)

    def add(self, name: str, value: float = 1) -> None:
        """`name` is one of COUNTERS."""
        with self._lock:
            self._total[name] += value
            self._new[name] = self._new.get(name, 0) + value

    def take(self) -> dict[str, float]:
        """The increase since the last call; names without change are left out."""
        with self._lock:
            new, self._new = self._new, {}
            return new

    def totals(self) -> dict[str, float]:
        """Since the start, all names."""
        with self._lock:
            return dict(self._total)
