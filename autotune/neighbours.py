"""One step to each side of the winner's numeric knobs: a plateau, or a peak that may not last."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.interval import ratio_interval
from autotune.race import Arm, Race
from autotune.sampler import legal
from autotune.sampler.protocol import Proposal
from autotune.space import Choices, Floats, Knob, SearchSpace, members
from autotune.study import Contribution, Objective
from autotune.trial import Configuration, KnobValue, TrialRecord

_ROUNDS = 3
_MOST = 12  # neighbours looked at
_STEP = 0.1  # of a continuous range


class Neighbours:
    """Races the winner against the configurations one step away, as ask and tell."""

    def __init__(
        self,
        space: SearchSpace,
        winner: Configuration,
        names: Sequence[str],
        objectives: Sequence[Objective],
    ) -> None:
        self._winner, self._objective = winner, objectives[0]
        arms = [Arm(name="winner", configuration=winner)]
        self._steps: dict[str, tuple[str, KnobValue]] = {}
        for name in names:
            for value in steps(space.knob(name), winner[name]):
                moved = legal.complete(space, {**winner, name: value})
                if legal.is_legal(space, moved) and len(arms) <= _MOST:
                    arm = Arm(name=f"{name}={value}", configuration=moved)
                    self._steps[arm.name] = (name, value)
                    arms.append(arm)
        self.race = Race(arms, stage="neighbour", full_depth=False, objectives=objectives)

    def ask(self) -> Proposal | None:
        """The next repeat, if there is a neighbour at all."""
        return self.race.next(_ROUNDS) if self._steps else None

    def tell(self, record: TrialRecord) -> None:
        """Take in a record."""
        self.race.tell(record)

    def found(self) -> tuple[Contribution, ...]:
        """For each neighbour that ran: what the winner's value earns over it."""
        metric, direction = self._objective.metric, self._objective.direction
        ours = self.race.arms[0].values(metric)
        listed = []
        for arm in self.race.arms[1:]:
            rounds = min(len(ours), len(arm.records))
            if rounds == 0:
                continue
            name, value = self._steps[arm.name]
            gain = ratio_interval(ours[:rounds], arm.values(metric)[:rounds], direction=direction)
            listed.append(
                Contribution(
                    knob=name,
                    value=self._winner[name],
                    baseline_value=value,
                    gain=gain,
                    kept=gain.median >= 1.0,
                )
            )
        return tuple(listed)


def steps(knob: Knob, value: KnobValue) -> list[KnobValue]:
    """The values next to one in a numeric domain; none for a choice."""
    if isinstance(value, bool | str) or value not in knob.domain:
        return []
    match knob.domain:
        case Choices(values=values) if any(isinstance(v, bool | str) for v in values):
            return []
        case Choices(values=values):
            listed = sorted(values, key=float)
        case Floats(step=None) as domain:
            return _moved(domain, float(value))
        case domain:
            listed = list(members(domain) or ())
    at = listed.index(value)
    return [*listed[max(0, at - 1) : at], *listed[at + 1 : at + 2]]


def _moved(domain: Floats, value: float) -> list[KnobValue]:
    if domain.log:
        factor = (domain.high / domain.low) ** _STEP
        moved = [value / factor, value * factor]
    else:
        moved = [value + sign * _STEP * (domain.high - domain.low) for sign in (-1, 1)]
    return [x for x in moved if domain.low <= x <= domain.high and math.isfinite(x)]
