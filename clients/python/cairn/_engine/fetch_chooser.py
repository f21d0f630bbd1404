"""Decides whether a prompt's KV is loaded or computed, by what both have cost.

    what is measured                          what is decided
    steps of the engine that loaded nothing   how long a request waits for an answer of the node
    look-ups                                  whether it asks at all
    loads, by where the node had the blocks   how much of what the node has is loaded
    probes, once nothing is loaded any more   after how long a load is given up

While a cost is not known, the hit is taken, and measured by that. If all of what an engine is asked
is hits, it never computes: then a short prompt is computed, once, if the store seems to be slow.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cairn._engine.cost_model import LinearFit, PrefillModel
from cairn.types import TierKind

__all__ = ["LEAST_STEP", "Choice", "FetchChooser", "Offer", "Place", "place_of"]

LEAST_STEP = 32  # Tokens of a prompt in a step. Smaller steps say little of a token's cost.

_WORTH_IT = 0.97  # Loading takes less than this share of the time for computing, as in the worker.
_SHARE = 0.05  # A request waits this share of what its prompt takes to compute for an answer, ...
_LEAST_WAIT = 0.002  # ... or this many seconds if that is more.
_EXPECTED = 4.0  # A load is given up after this many times what was expected, ...
_SAVED = 0.25  # ... or this share of what computing takes if that is more.
_LEAST_LIMIT = 0.05  # Seconds: no load is given up earlier.
_UNKNOWN = 4.0  # A load of which nothing came takes this many times as long.
_LEARN = 2048  # Tokens that are computed to learn what that costs, ...
_SLOW = 0.05  # ... if loading them takes this many seconds.
_MEMORY = 4.0  # Measurements that count.
_PROBE = 1.0  # Seconds until the first probe. Each one doubles it, ...
_MOST_PROBE = 30.0  # ... up to this.
_NOISE = 0.02  # Seconds.


def _is_faster(seconds: float, expected: float) -> bool:
    """By so much that it is no noise."""
    return expected > 2 * seconds + _NOISE


class Place(enum.IntEnum):
    """Where a node has blocks. The slower ones are greater."""

    MEMORY = 0
    DISK = 1
    ELSEWHERE = 2
    """In no tier of the node, which gets them from another place."""


def place_of(tiers: Iterable[TierKind | None]) -> Place:
    """The slowest, since a prompt waits for that one."""
    places = {None: Place.ELSEWHERE, TierKind.DISK: Place.DISK}
    return max((places.get(tier, Place.MEMORY) for tier in tiers), default=Place.MEMORY)


class Offer(NamedTuple):
    """A length to which a prompt can be restored."""

    tokens: int
    """Counted from those that the engine has."""
    bytes: int
    """Those that must be loaded, on each rank."""
    place: Place
    """The slowest place of a block."""


class Choice(NamedTuple):
    """An offer that is taken. Without tokens: none is."""

    offer: Offer
    limit: float
    """Seconds after which the load is given up."""


class FetchChooser:
    """The costs of one engine and its store, and what follows from them. Thread-safe."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, timeout: float = math.inf
    ) -> None:
        """`clock`: seconds; it decides only when the next probe is due. `timeout`: seconds that no
        request waits longer for an answer."""
        self._clock = clock
        self._timeout = timeout
        self._lock = threading.Lock()
        self._prefill = PrefillModel()
        self._lookup = LinearFit(_MEMORY)
        self._loads = {place: LinearFit(_MEMORY) for place in Place}
        self._interval = _PROBE
        self._probe_at = -math.inf
        self._learns = True

    # ---- what is measured ----

    def observe_step(
        self, parts: Sequence[tuple[int, int]], seconds: float, *, alone: bool
    ) -> None:
        """A step of the engine. `parts`: for each request the position of its first token in the
        step, and how many tokens it had there. `alone`: nothing was loaded meanwhile."""
        if max((tokens for _, tokens in parts), default=0) < LEAST_STEP:
            return
        with self._lock:
            # Next to a load a step takes longer, so it only shows what computing takes at most.
            if alone or not self._prefill.known or seconds < self._prefill.step_seconds(parts):
                self._prefill.observe(parts, seconds)

    def steps_are_unknown(self) -> None:
        """The cost of computing will never be known: no prompt is computed to learn it."""
        with self._lock:
            self._learns = False

    def observe_lookup(self, seconds: float) -> None:
        """A look-up, answered or not."""
        with self._lock:
            self._lookup.add(0.0, seconds)

    def observe_load(self, offer: Offer, came: float, seconds: float, *, given_up: bool) -> None:
        """A load that has ended. `came`: the share of its bytes. `given_up`: it took too long."""
        with self._lock:
            fit = self._loads[offer.place]
            expected = fit.at(offer.bytes)
            if came < 1:
                # Blocks that are lost say nothing about the others, and are found out soon: by the
                # load's own look-up if they are the first ones.
                soon = expected if came > 0 else _UNKNOWN * self._lookup.at(0.0)
                if not given_up and seconds < max(_LEAST_LIMIT, soon):
                    return
                # If nothing came, nobody knows how long all of it takes. Loads that bring nothing
                # must not be tried forever.
                seconds = seconds / came if came > 0 else _UNKNOWN * max(seconds, expected)
            fit.add(float(offer.bytes), seconds)

    def observe_probe(self, offer: Offer, lookup: float, load: float | None) -> None:
        """A probe: its look-up, and its load with that if the node had something."""
        with self._lock:
            faster = _is_faster(lookup, self._lookup.at(0.0))
            self._lookup.add(0.0, lookup)
            if load is not None:
                fit = self._loads[offer.place]
                faster = faster or _is_faster(load, fit.at(offer.bytes))
                fit.add(float(offer.bytes), load)
            if faster:
                # The store may be as it was: the next request asks again whether it is.
                self._interval, self._probe_at = _PROBE, -math.inf

    # ---- what is decided ----

    def wait(self, tokens: int) -> float:
        """Seconds that a request with this many tokens waits for an answer, at most."""
        with self._lock:
            return self._wait(tokens)

    def _wait(self, tokens: int) -> float:
        if not self._prefill.known:
            return self._timeout
        share = _SHARE * self._prefill.range_seconds(0, tokens)
        return min(self._timeout, max(_LEAST_WAIT, share))

    def answers_in_time(self, tokens: int) -> bool:
        """Whether an answer comes while a request with this many tokens waits."""
        with self._lock:
            return self._lookup.at(0.0) <= self._wait(tokens)

    def is_worth_asking(self, tokens: int, offer: Offer) -> bool:
        """Whether a request with this many tokens would take `offer`, the most that the node can
        have for it."""
        with self._lock:
            return self._is_worth_it(0, tokens, offer)

    def choose(self, computed: int, tokens: int, offers: Sequence[Offer]) -> Choice | None:
        """The best of `offers`, which are restorable, for a request with this many tokens of which
        the engine has `computed`. None: it is faster to compute."""
        with self._lock:
            if self._learns and not self._prefill.known and tokens - computed <= _LEARN:
                offers = [offer for offer in offers if self._load_seconds(offer) < _SLOW]
            good = [offer for offer in offers if self._is_worth_it(computed, tokens, offer)]
            if not good:
                return None
            best = max(
                good,
                key=lambda offer: (
                    self._saved(computed, tokens, offer) - self._load_seconds(offer),
                    offer.tokens,
                ),
            )
            # The load says what a probe would.
            self._interval = _PROBE
            self._probe_at = self._clock() + _PROBE
            return Choice(best, self._limit(computed, tokens, best))

    def _saved(self, computed: int, tokens: int, offer: Offer) -> float:
        """Seconds of computing that a hit saves."""
        rest = self._prefill.range_seconds(computed + offer.tokens, tokens)
        return self._prefill.range_seconds(computed, tokens) - rest

    def _load_seconds(self, offer: Offer) -> float:
        fit = self._loads[offer.place]
        # A load begins as a look-up does.
        return max(fit.at(offer.bytes), self._lookup.at(0.0)) if fit.known else 0.0

    def _is_worth_it(self, computed: int, tokens: int, offer: Offer) -> bool:
        if not self._prefill.known or not self._loads[offer.place].known:
            return True
        return self._load_seconds(offer) < _WORTH_IT * self._saved(computed, tokens, offer)

    def _limit(self, computed: int, tokens: int, offer: Offer) -> float:
        if not self._prefill.known:
            return math.inf
        saved = self._saved(computed, tokens, offer)
        limit = saved
        if self._loads[offer.place].known:
            limit = min(saved, max(_EXPECTED * self._load_seconds(offer), _SAVED * saved))
        return max(_LEAST_LIMIT, limit)

    def probe_is_due(self) -> bool:
        """Whether to probe now. Each True doubles the time to the next one, until a hit is
        taken. While hits are taken none is due."""
        with self._lock:
            now = self._clock()
            if now < self._probe_at:
                return False
            self._probe_at = now + self._interval
            self._interval = min(_MOST_PROBE, 2 * self._interval)
            return True
