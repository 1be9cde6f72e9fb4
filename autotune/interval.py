"""How sure a number is: bootstrap bounds of a median, ratios of interleaved arms, and a verdict
whose error does not grow with the number of times one looks."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.study import Interval

TOO_FEW = "too few repeats"  # for a verdict, whatever the interval looks like
CONFIDENCE = 0.95  # of an interval of a median
# Chance that a comparison with no true difference is called better or worse, over all looks
# together. Half of it falls on each side.
FAMILY_ERROR = 0.02
_RESAMPLES = 2000


def median_interval(
    samples: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> Interval:
    """Median with its percentile bootstrap bounds; one sample has no width, as ``n`` shows."""
    if not samples:
        raise ValueError("an interval needs at least one sample")
    rng = random.Random(seed)
    n = len(samples)
    medians = sorted(statistics.median(rng.choices(samples, k=n)) for _ in range(_RESAMPLES))
    tail = (1 - confidence) / 2
    low = medians[int(tail * (_RESAMPLES - 1))]
    high = medians[math.ceil((1 - tail) * (_RESAMPLES - 1))]
    return Interval(median=statistics.median(samples), low=low, high=high, n=n)


def ratio_interval(
    arm: Sequence[float],
    baseline: Sequence[float],
    *,
    direction: str = "max",
    confidence: float = CONFIDENCE,
) -> Interval:
    """How many times better ``arm`` is than ``baseline``, above 1 is better in either direction.

    Both hold one value per round, so that what drifts from round to round cancels. The unit is the
    process: samples within one process share its luck and would make the interval too narrow.
    """
    if len(arm) != len(baseline) or not arm:
        raise ValueError(f"{len(arm)} and {len(baseline)} rounds cannot be paired")
    gains = _gains(arm, baseline, direction)
    n, centre = len(gains.values), statistics.fmean(gains.values)
    if n == 1:
        only = gains.ratio(centre)  # no width, as n shows; ``verdict`` never rests on it
        return Interval(median=only, low=only, high=only, n=1)
    half = student_quantile(confidence, n - 1) * statistics.stdev(gains.values) / math.sqrt(n)
    return Interval(
        median=gains.ratio(centre),
        low=gains.ratio(centre - half),
        high=gains.ratio(centre + half),
        n=n,
    )


@dataclass(frozen=True, slots=True)
class _Gains:
    values: tuple[float, ...]
    is_log: bool

    def ratio(self, value: float) -> float:
        return math.exp(min(value, 700.0)) if self.is_log else 1.0 + value


def _gains(arm: Sequence[float], baseline: Sequence[float], direction: str) -> _Gains:
    """Log ratios; where a value is not positive, differences relative to the baseline's size."""
    sign = 1.0 if direction == "max" else -1.0
    pairs = list(zip(arm, baseline, strict=True))
    if all(a > 0 and b > 0 for a, b in pairs):
        return _Gains(tuple(sign * math.log(a / b) for a, b in pairs), True)
    scale = statistics.fmean(abs(b) for _, b in pairs) or 1.0
    return _Gains(tuple(sign * (a - b) / scale for a, b in pairs), False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """When the final stage looks at its data, and how much of the error each look may spend.

    Looks grow by about 1.4; each spends in proportion to its rounds, so that early looks decide
    only what is plain and late ones have most of the power. The sum is bounded by ``error``
    whatever the correlation between looks (a union bound).
    """

    first: int = 5
    last: int = 28
    error: float = FAMILY_ERROR

    def rounds(self) -> tuple[int, ...]:
        """Rounds after which to look, ascending."""
        found = [min(self.first, self.last)]
        while found[-1] < self.last:
            found.append(min(self.last, max(found[-1] + 1, round(found[-1] * 1.4))))
        return tuple(found)

    def confidence(self, rounds: int) -> float:
        """Of the interval that decides at the last look at or before ``rounds``."""
        looks = self.rounds()
        reached = [r for r in looks if r <= rounds]
        share = (reached[-1] if reached else looks[0]) / sum(looks)
        return 1.0 - self.error * share


def verdict(gain: Interval) -> str:
    """better | worse | not distinguishable, by whether the interval excludes 1."""
    if gain.n >= 2 and gain.low > 1.0:
        return "better"
    if gain.n >= 2 and gain.high < 1.0:
        return "worse"
    return "not distinguishable"


def compare(
    arm: Sequence[float], baseline: Sequence[float], looks: Looks, *, direction: str = "max"
) -> tuple[Interval, str]:
    """The gain over the rounds that both arms finished, and the verdict at the look reached."""
    rounds = min(len(arm), len(baseline))
    gain = ratio_interval(
        arm[:rounds],
        baseline[:rounds],
        direction=direction,
        confidence=looks.confidence(rounds),
    )
    decided = rounds >= looks.rounds()[0]
    return gain, verdict(gain) if decided else TOO_FEW


def student_quantile(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t: |t| stays below it with that probability."""
    low, high = 0.0, 1.0
    while _student_inside(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _student_inside(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_inside(t: float, freedom: int) -> float:
    """P(|T| <= t), by the finite series for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term, total = cosine, cosine if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        return 2 / math.pi * (angle + sine * total)
    term = total = 1.0
    for k in range(2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return sine * total
