"""Measures what computing and loading cost the engine, for the scheduler's half, and weighs hits.

a step      from the end of the step before it, or from when it was planned, to its end
a look-up   as the client's thread tells
a load      as the workers tell; of several ranks the longest
a probe     once hits are not taken: a few blocks, in a thread of its own
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from cairn._engine.fetch_chooser import Choice, FetchChooser, Offer
from cairn._engine.store import Sample, Store

if TYPE_CHECKING:
    from cairn.vllm.metadata import LoadTimes

__all__ = ["Probe", "Weighing"]

_LOG = logging.getLogger("cairn")
_MOST_STEPS = 16  # That vLLM plans before it tells of their ends.
_PROBE_SECONDS = 2.0  # A probe takes no longer.

Probe = Callable[[float], Sample]
"""Loads a few blocks, in a thread of its own. Given up after these seconds."""
MakeProbe = Callable[[], Union[Probe, None]]
"""Called by the engine's thread if a probe is due. None: there is nothing to load."""


@dataclass
class _Step:
    begin: float
    parts: Sequence[tuple[int, int]]
    alone: bool


@dataclass
class _Load:
    choice: Choice
    blocks: int
    seconds: float = 0.0
    """Those of the slowest rank that has told."""
    failed_blocks: int = 0


class Weighing:
    """Called by the engine's one scheduler thread."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = store.counters
        self._timeout = store.options.lookup_timeout
        self._load_timeout = store.options.load_timeout
        self._chooser = FetchChooser(clock, self._timeout)
        self._clock = clock
        self._steps: deque[_Step] = deque()
        self._ended = -math.inf
        self._loads: dict[str, _Load] = {}
        self._probes = ThreadPoolExecutor(1, "cairn-probe")
        self._probing: Future[None] | None = None

    # ---- steps ----

    def step_begins(self, parts: Sequence[tuple[int, int]]) -> None:
        """The engine has planned a step. `parts`: as of `FetchChooser.observe_step`."""
        if len(self._steps) >= _MOST_STEPS:
            # Their ends are not told.
            self._steps.clear()
            self._chooser.steps_are_unknown()
        self._steps.append(_Step(self._clock(), parts, self._is_alone()))

    def step_ended(self) -> None:
        """The first of the planned steps has ended."""
        if not self._steps:
            return
        step, now = self._steps.popleft(), self._clock()
        # Steps may be planned while others run.
        begin = max(step.begin, self._ended)
        self._ended = now
        if step.parts:
            alone = step.alone and self._is_alone()
            self._chooser.observe_step(step.parts, now - begin, alone=alone)

    def _is_alone(self) -> bool:
        return not self._loads and (self._probing is None or self._probing.done())

    # ---- look-ups ----

    def asks(self, tokens: int, offer: Offer, probe: MakeProbe, *, first: bool) -> bool:
        """Whether a request with this many tokens asks the node. `offer`: the most that the node
        can have for it. If not, there may be a probe, and the first time it is counted."""
        if not self._chooser.answers_in_time(tokens):
            reason = "unasked_late_requests"
        elif not self._chooser.is_worth_asking(tokens, offer):
            reason = "unasked_requests"
        else:
            return True
        if first:
            self._counters.add(reason)
        self._probe(probe)
        return False

    def wait(self, tokens: int) -> float:
        """Seconds that a request with this many tokens waits for an answer."""
        return self._chooser.wait(tokens)

    def answered(self, seconds: float) -> None:
        """A look-up took so long."""
        self._chooser.observe_lookup(seconds)

    def gave_up(self, seconds: float) -> None:
        """A look-up was not waited for any longer. How long it takes is not known."""
        self._chooser.observe_lookup(2 * seconds)
        if seconds < self._timeout:
            self._counters.add("late_lookups")

    # ---- loads ----

    def choose(
        self, computed: int, tokens: int, offers: Sequence[Offer], probe: MakeProbe
    ) -> Choice | None:
        """As `FetchChooser.choose`. If none is taken, there may be a probe."""
        choice = self._chooser.choose(computed, tokens, offers)
        if choice is None:
            self._probe(probe)
        return choice

    def left(self, blocks: int) -> None:
        """This many blocks that the node has are computed nevertheless."""
        self._counters.add("untaken_hits")
        self._counters.add("untaken_blocks", blocks)

    def load_begins(self, request: str, choice: Choice, blocks: int) -> None:
        """The workers are told to load this many blocks."""
        self._loads[request] = _Load(choice, blocks)

    def loads_told(self, times: LoadTimes | None) -> None:
        """Workers tell of loads that have ended for them."""
        for request, (seconds, failed) in times.loads.items() if times is not None else ():
            load = self._loads.get(request)
            if load is not None:
                load.seconds = max(load.seconds, seconds)
                load.failed_blocks = max(load.failed_blocks, failed)

    def load_ended(self, request: str) -> bool:
        """All workers have told of it. True: it was given up because it took too long."""
        load = self._loads.pop(request, None)
        if load is None or load.seconds <= 0:
            return False
        failed = load.failed_blocks
        # Clocks of other processes are read a little earlier or later.
        given_up = failed > 0 and load.seconds >= 0.95 * min(load.choice.limit, self._load_timeout)
        came = 1 - failed / max(1, load.blocks)
        self._chooser.observe_load(load.choice.offer, came, load.seconds, given_up=given_up)
        if given_up and load.seconds < self._load_timeout:
            self._counters.add("late_loads")
        return given_up

    # ---- probes ----

    def _probe(self, make: MakeProbe) -> None:
        if not self._is_alone() or not self._chooser.probe_is_due():
            return
        probe = make()
        if probe is not None:
            self._probing = self._probes.submit(self._run, probe)

    def _run(self, probe: Probe) -> None:
        self._counters.add("probes")
        try:
            sample = probe(min(_PROBE_SECONDS, self._load_timeout))
        except Exception:
            self._counters.add("internal_errors")
            _LOG.exception("cairn: a probe failed")
            return
        self._chooser.observe_probe(
            Offer(0, sample.bytes, sample.place), sample.lookup_seconds, sample.seconds
        )

    def close(self) -> None:
        """Waits for a probe."""
        self._probes.shutdown(wait=True, cancel_futures=True)
