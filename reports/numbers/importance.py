"""Which knobs move the first objective: permutation importance of a forest, with its doubt.

The bootstrap is over trials: each round grows a forest on a resample and asks only the trials
that the resample left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.numbers import encoding
from reports.numbers.study import StudyData, Trial

_FEWEST_TRIALS = 12
_MOST_TRIALS = 600
_ROUNDS = 12
_TREES = 16
_MOST_PERMUTED = 40
_MOST_BARS = 12
_SMALLEST = 0.005

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of the explained variance one knob carries: median and 80 % of the bootstrap."""

    knob: str
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Shares, largest first; ``explained`` is R2 on trials the forest had not seen."""

    shares: tuple[Share, ...]
    explained: float
    trials: int
    note: str

    @property
    def shown(self) -> tuple[Share, ...]:
        """The ones worth a bar."""
        return tuple(s for s in self.shares[:_MOST_BARS] if s.high >= _SMALLEST)


def importance(study: StudyData) -> Importance:
    """Empty shares and a note when the trials are too few or never differ."""
    usable = [t for t in study.trials if study.is_known(t) and t.stage != "audit"]
    usable = usable[:: math.ceil(len(usable) / _MOST_TRIALS)] if usable else []
    if len(usable) < _FEWEST_TRIALS:
        short = f"needs {_FEWEST_TRIALS} complete trials; there are {len(usable)}"
        return Importance(shares=(), explained=0.0, trials=len(usable), note=short)
    target = _target(study, usable)
    knobs = encoding.varying(usable)
    if not knobs or float(np.ptp(target)) == 0.0:
        same = "every complete trial gave the same result"
        return Importance(shares=(), explained=0.0, trials=len(usable), note=same)
    table = np.array([encoding.column(k, usable, target.tolist()) for k in knobs]).T
    losses, explained = _bootstrap(table, target)
    return Importance(
        shares=_shares(knobs, losses), explained=explained, trials=len(usable), note=""
    )


def _target(study: StudyData, usable: Sequence[Trial]) -> Array:
    values = np.array([t.metrics[study.goal.metric] for t in usable])
    # Ratios are what a tuner cares for; a metric that reaches 0 or below keeps its own scale.
    return np.log(values) if float(values.min()) > 0 else values


def _bootstrap(table: Array, target: Array) -> tuple[Array, float]:
    """Rises of the error when a column is shuffled (rounds x knobs), and the median R2."""
    from sklearn.ensemble import ExtraTreesRegressor

    draw = np.random.default_rng(0)
    count = len(target)
    losses, scores = [], []
    for round_number in range(_ROUNDS):
        taken = draw.integers(0, count, count)
        left = np.setdiff1d(np.arange(count), taken)
        if len(left) < 3:
            continue
        forest = ExtraTreesRegressor(
            n_estimators=_TREES, min_samples_leaf=2, max_features=0.6, random_state=round_number
        ).fit(table[taken], target[taken])
        losses.append(_permuted(forest, table[left], target[left], draw))
        error = float(np.mean((forest.predict(table[left]) - target[left]) ** 2))
        scores.append(1 - error / (float(np.var(target[left])) or 1.0))
    return np.array(losses), float(np.median(scores)) if scores else 0.0


def _permuted(forest: Any, rows: Array, target: Array, draw: np.random.Generator) -> Array:
    """Rise of the squared error by column; columns that the forest hardly splits on rise by 0.

    All shuffles go through the forest in one call: the calls cost, not the rows.
    """
    used = np.argsort(-forest.feature_importances_, kind="stable")[:_MOST_PERMUTED]
    stacked = np.tile(rows, (len(used) + 1, 1, 1))
    for i, column in enumerate(used):
        stacked[i, :, column] = draw.permutation(rows[:, column])
    predicted = forest.predict(stacked.reshape(-1, rows.shape[1]))
    errors = ((predicted.reshape(len(used) + 1, -1) - target) ** 2).mean(axis=1)
    rises = np.zeros(rows.shape[1])
    rises[used] = errors[:-1] - errors[-1]
    return rises


def _shares(knobs: Sequence[str], losses: Array) -> tuple[Share, ...]:
    positive = np.clip(losses, 0, None)
    whole = positive.sum(axis=1, keepdims=True)
    whole[whole == 0] = 1.0
    low, median, high = np.percentile(positive / whole, [10, 50, 90], axis=0)
    shares = [
        Share(knob=k, median=float(median[i]), low=float(low[i]), high=float(high[i]))
        for i, k in enumerate(knobs)
    ]
    return tuple(sorted(shares, key=lambda s: (-s.median, -s.high, s.knob)))
