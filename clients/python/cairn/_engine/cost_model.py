"""How long an engine takes to compute and to load, learned from its own work.

The models have no clock, no I/O and no lock. Times are seconds, sizes bytes. `PrefillModel` is that
of Cairn's worker (services/worker/session/cost_model.h), and `LinearFit` that of the router
(services/router/relay/linear_fit.h), but for outliers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["LinearFit", "PrefillModel"]

_KEEP = 0.97  # The share of a step's weight that is left after the next step.
# These keep at zero what steps do not say. Tokens carry the least, so one step becomes a speed.
_RIDGE = (1e-3, 1e-9, 1e-4)
_FAR = 4.0  # A measurement is far if it differs by this factor.
_NOISE = 0.002  # Seconds: smaller differences are never far.


class PrefillModel:
    """Seconds of a step, as  base + per_token n + per_pair n p:  n tokens at mean position p,
    summed up over the requests in it. The last term is attention, which makes late tokens cost more
    than early ones.

    Fitted by least squares over relative errors, with weights of 0 or more. Old steps are
    forgotten. Not thread-safe.
    """

    def __init__(self) -> None:
        self._normal = [[0.0] * 3 for _ in range(3)]
        self._target = [0.0] * 3
        self._weights = (0.0, 0.0, 0.0)
        self._solved = True
        self._chunk = 0

    @property
    def known(self) -> bool:
        """Whether a step was seen."""
        return self._chunk > 0

    def observe(self, parts: Sequence[tuple[int, int]], seconds: float) -> None:
        """A step took `seconds`. `parts`: for each request the position of its first token in the
        step, and how many tokens it had there."""
        tokens = sum(count for _, count in parts)
        if not 0 < seconds < math.inf or tokens <= 0:
            return
        self._chunk = max(self._chunk, tokens)
        # Divided by the time: errors count relative to it. So a hiccup, which makes a step slower,
        # counts little.
        row = [value / seconds for value in _features(parts)]
        for i in range(3):
            for j in range(3):
                self._normal[i][j] = _KEEP * self._normal[i][j] + row[i] * row[j]
            self._target[i] = _KEEP * self._target[i] + row[i]
        self._solved = False

    def seconds(self, begin: int, tokens: int) -> float:
        """A step with this part alone. 0 while nothing is known."""
        return self._at(_features([(begin, tokens)])) if tokens > 0 else 0.0

    def step_seconds(self, parts: Sequence[tuple[int, int]]) -> float:
        """A step with these parts. 0 while nothing is known."""
        return self._at(_features(parts))

    def range_seconds(self, begin: int, end: int) -> float:
        """The tokens [begin, end) of a prompt, computed in steps as long as the longest that was
        seen."""
        if end <= begin or not self.known:
            return 0.0
        # Pairs do not depend on where steps end.
        _, tokens, pairs = _features([(begin, end - begin)])
        return self._at((-(-(end - begin) // self._chunk), tokens, pairs))

    def _at(self, features: tuple[float, float, float]) -> float:
        if not self._solved:
            self._solve()
        return sum(weight * value for weight, value in zip(self._weights, features))

    def _solve(self) -> None:
        """The best weights of 0 or more: those of the best set of weights that are not 0."""
        self._solved = True
        scale = self._normal[1][1]
        best, self._weights = 0.0, (0.0, 0.0, 0.0)
        for size in (1, 2, 3):
            for chosen in itertools.combinations(range(3), size):
                found = _solution(
                    [
                        [
                            self._normal[i][j] + (_RIDGE[i] * scale if i == j else 0.0)
                            for j in chosen
                        ]
                        for i in chosen
                    ],
                    [self._target[i] for i in chosen],
                )
                if found is None or min(found) < 0:
                    continue
                # By so much the squares become less.
                less = sum(w * self._target[i] for w, i in zip(found, chosen))
                if less > best:
                    weights = dict(zip(chosen, found))
                    best = less
                    self._weights = (
                        weights.get(0, 0.0),
                        weights.get(1, 0.0),
                        weights.get(2, 0.0),
                    )


def _features(parts: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Features of about the same size, so that one ridge serves all."""
    tokens = pairs = 0.0
    for begin, count in parts:
        tokens += count / 256
        pairs += count / 256 * (begin + count / 2) / 2048
    return 1.0, tokens, pairs


def _solution(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solves linear equations with a symmetric matrix. None: it has no inverse."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for i, row in enumerate(rows):
        if row[i] <= 0:
            return None
        for other in rows[i + 1 :]:
            factor = other[i] / row[i]
            for k in range(i, len(row)):
                other[k] -= factor * row[k]
    found = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        rest = sum(rows[i][k] * found[k] for k in range(i + 1, len(rows)))
        found[i] = (rows[i][-1] - rest) / rows[i][i]
    return found


class LinearFit:
    """y = intercept + slope x, by least squares, of which recent measurements count more. Not
    thread-safe.

    A measurement that is far from the line, by a factor of 4, counts as that. If the next one is
    far on the same side, the line has changed, and these two alone count from then on.
    """

    def __init__(self, memory: float) -> None:
        """`memory`: how many measurements count, about."""
        self._keep = 1 - 1 / memory
        self._far: tuple[float, float] | None = None
        self._forget()

    def _forget(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether something was measured."""
        return self._weight > 0

    def add(self, x: float, y: float) -> None:
        """Both finite and not negative."""
        side = self._side(x, y)
        if side != 0:
            before = self._far
            self._far = (x, y)
            if before is not None and self._side(*before) == side:
                self._forget()
                self._sum(*before)
            else:
                expected = self.at(x)
                y = min(max(y, expected / _FAR), expected * _FAR)
        else:
            self._far = None
        self._sum(x, y)

    def _side(self, x: float, y: float) -> int:
        """1: far above the line, -1: far below, 0: not far."""
        if not self.known:
            return 0
        expected = self.at(x)
        if abs(y - expected) < _NOISE or expected / _FAR <= y <= expected * _FAR:
            return 0
        return 1 if y > expected else -1

    def _sum(self, x: float, y: float) -> None:
        self._weight = self._weight * self._keep + 1
        self._x = self._x * self._keep + x
        self._y = self._y * self._keep + y
        self._xx = self._xx * self._keep + x * x
        self._xy = self._xy * self._keep + x * y

    def at(self, x: float) -> float:
        """0 while nothing is known."""
        if not self.known:
            return 0.0
        slope = self._slope()
        return max(0.0, (self._y - slope * self._x) / self._weight) + slope * x

    def _slope(self) -> float:
        if self._x <= 0:
            return 0.0
        ratio = self._y / self._x
        variance = self._xx - self._x * self._x / self._weight
        # Measurements that are nearly alike say nothing about the slope. Larger loads take longer.
        if variance <= 1e-3 * self._xx:
            return ratio
        slope = (self._xy - self._x * self._y / self._weight) / variance
        # A line that cuts the axis below 0 is taken through it.
        return min(max(slope, 0.0), ratio)
