"""Predicted against measured, for every metric that the estimate gave."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from reports.numbers.study import StudyData
from reports.numbers.thinning import Thinned, thin

MOST_POINTS = 1000
MOST_METRICS = 3
_FIRST = ("tokens_per_second", "step_time_ms", "peak_memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One trial's prediction and measurement of one metric."""

    number: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative to the measurement; above 0 when the prediction was too high."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """All pairs of one metric and how far off they are."""

    metric: str
    pairs: Thinned[Pair]
    median_error: float  # of the absolute errors
    worst_error: float
    bias: float  # median of the signed errors


def predictions(study: StudyData) -> list[Prediction]:
    """At most three metrics, the ones a person asks for first."""
    found: dict[str, list[Pair]] = {}
    for trial in study.trials:
        for name, guess in trial.predicted.items():
            value = trial.metric(name)
            if value is not None and value > 0 and guess > 0:
                pair = Pair(number=trial.number, predicted=guess, measured=value)
                found.setdefault(name, []).append(pair)
    names = [*(n for n in _FIRST if n in found), *(n for n in found if n not in _FIRST)]
    return [_summary(name, found[name]) for name in names[:MOST_METRICS]]


def _summary(name: str, pairs: list[Pair]) -> Prediction:
    errors = [p.error for p in pairs]
    worst = sorted(pairs, key=lambda p: -abs(p.error))[:20]
    marked = {p.number for p in worst}
    return Prediction(
        metric=name,
        pairs=thin(pairs, MOST_POINTS, keep=lambda p: p.number in marked, kept="the worst misses"),
        median_error=statistics.median(abs(e) for e in errors),
        worst_error=max(errors, key=abs),
        bias=statistics.median(errors),
    )
