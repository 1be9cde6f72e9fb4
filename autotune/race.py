"""Arms measured in turn, A B C A B C, so that what drifts over time hits all of them alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.sampler.protocol import Key, Proposal, key
from autotune.study import Limit, Objective
from autotune.trial import Configuration, Status, TrialRecord


@dataclass(slots=True, kw_only=True)
class Arm:
    """One configuration in a race; the race alone writes to it."""

    name: str
    configuration: Configuration
    number: int | None = None  # of the search trial that found it
    patience: int = 1  # failures that put it out of the race
    records: list[TrialRecord] = field(default_factory=list)  # complete ones, in round order
    running: int = 0
    failures: int = 0
    retired: str = ""  # why it takes no further part, in words
    disqualified: bool = False

    @property
    def key(self) -> Key:
        return key(self.configuration)

    def values(self, metric: str) -> list[float]:
        """One value per finished round."""
        found = (record.metric(metric) for record in self.records)
        return [value for value in found if value is not None]


class Race:
    """Hands out repeats in turn and sorts the records that come back into their arms."""

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        stage: str,
        full_depth: bool,
        objectives: Sequence[Objective],
        limits: Sequence[Limit] = (),
    ) -> None:
        self.arms = list(arms)
        self._stage, self._full_depth = stage, full_depth
        self._objectives, self._limits = tuple(objectives), tuple(limits)

    def next(self, rounds: int) -> Proposal | None:
        """The next repeat, if an arm still in the race has begun fewer than ``rounds``."""
        waiting = [a for a in self.live() if len(a.records) + a.running < rounds]
        if not waiting:
            return None
        arm = min(waiting, key=lambda a: len(a.records) + a.running)
        first = not arm.records and not arm.running
        arm.running += 1
        return Proposal(
            configuration=arm.configuration,
            stage=self._stage,
            full_depth=self._full_depth,
            profile=first and self._full_depth,
            repeat_of=arm.number,
            label=arm.name,
        )

    def tell(self, record: TrialRecord) -> bool:
        """Take in a record; False when it belongs to no arm."""
        arm = next((a for a in self.arms if a.key == key(record.spec.configuration)), None)
        if arm is None or record.spec.stage != self._stage:
            return False
        arm.running = max(0, arm.running - 1)
        if record.status is Status.ABANDONED:
            return True  # says nothing about the arm; it is asked for again
        if all(_is_number(record.metric(o.metric)) for o in self._objectives):
            arm.records.append(record)
            return True
        arm.failures += 1
        if arm.failures >= arm.patience:
            why = record.failure.reason if record.failure else "an objective was not measured"
            arm.retired = f"{record.status}: {why}"
            arm.disqualified = True
        return True

    def live(self) -> list[Arm]:
        """Arms that still take part."""
        return [arm for arm in self.arms if not arm.retired]

    def rounds(self) -> int:
        """Rounds that every arm still in the race has finished."""
        return min((len(arm.records) for arm in self.live()), default=0)

    def is_running(self) -> bool:
        """Whether a repeat has been handed out and not come back."""
        return any(arm.running for arm in self.arms)

    def breaks_limit(self, arm: Arm) -> Limit | None:
        """The first limit that the arm's repeats do not keep: most of them must."""
        for limit in self._limits:
            met = sum(limit.is_met(record.metric(limit.metric)) for record in arm.records)
            if 2 * met < len(arm.records):
                return limit
        return None


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
