"""Scores candidates: expected improvement times the chance that they run at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.encoding import Matrix
from autotune.sampler.forest import Forest, Vector, improvement
from autotune.sampler.memory import Memory

_CLEAR = 1e-6  # left of a candidate that surely fails: better than nothing at all
_HIDDEN = 0.4  # share of the columns that a split of the safety forest chooses from
_QUIET = 4  # successes after which the safety forest is renewed without a failure
_SHARE = 0.3  # the same of the forest of losses: all of them would make the trees too alike
_WORTH = 0.02  # relative gain below which a proposal is a waste: else it crawls down one hill


class Judge:
    """Two forests over the trials so far: what to expect, and what will run."""

    def __init__(self, memory: Memory, rng: np.random.Generator, *, steady: bool) -> None:
        """``steady``: the losses of one proposal are those of the next, give or take a trial."""
        self._memory, self._rng, self._steady = memory, rng, steady
        self._forest, self._safe = Forest(features=_SHARE), Forest(features=_HIDDEN)
        self._columns: NDArray[np.intp] | None = None
        self._known = self._failures = self._successes = 0
        self.best = 0.0

    def learn(self, losses: Vector, columns: NDArray[np.intp] | None = None) -> None:
        """Take in what came back. ``columns``: the only ones that the expectation looks at."""
        rows, good = self._memory.rows, self._memory.succeeded
        if not self._steady or columns is not self._columns:
            self._forest.clear()
            self._known = 0
        self._columns, self.best = columns, float(losses.min())
        if len(losses) != self._known:
            self._known = len(losses)
            known, values = self._with_running(self._seen(rows[good]), _clipped(losses))
            self._forest.grow(known, values, self._rng)
        self._learn_failures(rows, good)

    def scores(self, rows: Matrix) -> Vector:
        """Higher is better."""
        mean, spread = self.expect(rows)
        return improvement(mean, spread, self.best - _WORTH) * (self.chance(rows) + _CLEAR)

    def expect(self, rows: Matrix) -> tuple[Vector, Vector]:
        """Loss and how unsure it is."""
        return self._forest.predict(self._seen(rows))

    def chance(self, rows: Matrix) -> Vector:
        """Of running to the end, within every limit."""
        return self._safe.predict(rows)[0] if self._failures else np.ones(len(rows))

    def _seen(self, rows: Matrix) -> Matrix:
        return rows if self._columns is None else rows[:, self._columns]

    def _with_running(self, rows: Matrix, values: Vector) -> tuple[Matrix, Vector]:
        """What runs is believed to be middling, so that nobody is sent to the same place."""
        running = self._memory.running
        if running is None:
            return rows, values
        middling = np.full(len(running), np.median(values))
        return np.vstack([rows, self._seen(running)]), np.concatenate([values, middling])

    def _learn_failures(self, rows: Matrix, good: NDArray[np.bool_]) -> None:
        successes = int(good.sum())
        failures = len(good) - successes
        if failures > self._failures or (failures and successes >= self._successes + _QUIET):
            self._failures, self._successes = failures, successes
            self._safe.grow(rows, good.astype(float), self._rng)


def _clipped(losses: Vector) -> Vector:
    """How bad the worse half is matters little; it must not draw the trees' attention."""
    middle = float(np.median(losses))
    return np.minimum(losses, 2 * middle - float(losses.min()))
