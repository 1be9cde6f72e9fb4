"""How trials ended, so that what is most like a failure is seldom tried."""

from __future__ import annotations

import random
from collections import deque

from autotune.space import Floats, Integers, Knob, SearchSpace
from autotune.trial import Configuration, KnobValue, Status, TrialRecord

_REMEMBERED = 300  # trials; more would make every proposal dear
_DEAREST = 30_000  # knobs times trials, from which on a look costs more than it is worth
_CURIOSITY = 0.1  # share of proposals that may be likely failures
_SUCCESSES = (Status.COMPLETE, Status.STOPPED_EARLY)


class Ends:
    """Judges a configuration by the trial that is nearest to it."""

    def __init__(self, space: SearchSpace, rng: random.Random) -> None:
        self._knobs, self._rng = space.free(), rng
        self._known: deque[tuple[Configuration, bool]] = deque(maxlen=_REMEMBERED)
        self._failures = 0

    def add(self, record: TrialRecord) -> None:
        """Remember how a trial ended."""
        failed = record.status not in _SUCCESSES
        self._failures += failed
        self._known.append((record.spec.configuration, failed))

    def is_curious(self) -> bool:
        """Whether to try whatever comes next: a border that nobody crosses is never known."""
        return self._rng.random() < _CURIOSITY

    def is_promising(self, configuration: Configuration) -> bool:
        """False where the nearest trial failed."""
        if not self._failures or len(self._knobs) * len(self._known) > _DEAREST:
            return True
        _, failed = min(self._known, key=lambda known: self._distance(known[0], configuration))
        return not failed

    def _distance(self, one: Configuration, other: Configuration) -> float:
        return sum(_apart(knob, one.get(knob.name), other.get(knob.name)) for knob in self._knobs)


def _apart(knob: Knob, one: KnobValue | None, other: KnobValue | None) -> float:
    """0 for equal values, up to 1 for those at the ends of a range or for other choices."""
    if one == other:
        return 0.0
    domain = knob.domain
    if isinstance(domain, Integers | Floats) and one is not None and other is not None:
        return abs(float(one) - float(other)) / ((domain.high - domain.low) or 1)
    return 1.0
