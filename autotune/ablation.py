"""The minimal diff: which of the changed knobs earn their place, and how much each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.interval import ratio_interval
from autotune.race import Arm, Race
from autotune.sampler import legal
from autotune.sampler.protocol import Proposal
from autotune.space import SearchSpace
from autotune.study import Contribution, Interval, Objective
from autotune.trial import Configuration, KnobValue, TrialRecord

_ROUNDS = 3
_MORE_ROUNDS = 5  # for a change of which three rounds could not say whether it pays
_PAYS = 0.01  # a gain below one in a hundred does not pay for a line in the diff
_CONFIDENCE = 0.90
_SINGLES = 8  # changes taken back one by one; beyond them, the least promising go in groups
_GROUPS = 4
_UNMEASURED = Interval(median=1.0, low=1.0, high=1.0, n=0)


@dataclass(frozen=True, slots=True)
class _Group:
    names: tuple[str, ...]
    configuration: Configuration  # without these changes


class Ablation:
    """Takes changes back, singly or in groups that are halved, as ask and tell.

    Works at the cheap fidelity: only ratios are wanted here.
    """

    def __init__(
        self,
        space: SearchSpace,
        best: Configuration,
        baseline: Configuration,
        objectives: Sequence[Objective],
        *,
        effects: Mapping[str, float] | None = None,
        trials: int = 60,
    ) -> None:
        self._space, self._best, self._baseline = space, dict(best), dict(baseline)
        self._objectives = tuple(objectives)
        self._effects = effects or {}
        self._left = trials
        self._current = dict(best)
        self._found: dict[str, Contribution] = {}
        self._race: Race | None = None
        self._groups: dict[str, _Group] = {}
        self._rounds = _ROUNDS
        names = sorted(changes(space, best, baseline), key=self._promise)
        self._open(_first_groups(names))

    @property
    def done(self) -> bool:
        """Whether nothing is left to take back."""
        return self._race is None

    def ask(self) -> Proposal | None:
        """The next repeat, or None while one that matters is running or all is done."""
        if self._race is None:
            return None
        proposal = self._race.next(self._rounds)
        if proposal is not None:
            self._left -= 1
        return proposal

    def tell(self, record: TrialRecord) -> None:
        """Take in a record and, when a batch is complete, decide it and open the next."""
        if self._race is None or not self._race.tell(record):
            return
        current = self._race.arms[0]
        if current.disqualified:
            self._race = None  # the configuration itself does not hold: the final will say so
            return
        if self._race.rounds() < self._rounds or self._race.is_running():
            return
        if self._rounds == _ROUNDS and self._narrow(self._race):
            self._rounds = _MORE_ROUNDS
            return
        self._decide(self._race)

    def minimal(self) -> dict[str, KnobValue]:
        """The best configuration without the changes that were found not to pay."""
        return dict(self._current)

    def contributions(self) -> tuple[Contribution, ...]:
        """Largest gain first; changes nobody got to are listed as kept with n = 0."""
        listed = [
            self._found.get(name) or self._contribution(name, _UNMEASURED, kept=True)
            for name in changes(self._space, self._best, self._baseline)
        ]
        return tuple(sorted(listed, key=lambda c: -c.gain.median))

    def _promise(self, name: str) -> float:
        return -abs(self._effects.get(name, 0.0))

    def _open(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Start a race of the current configuration against itself without each group."""
        arms = [Arm(name="as found", configuration=self._current)]
        known = {arms[0].key}
        self._groups, self._rounds, self._race = {}, _ROUNDS, None
        for names in groups:
            without = take_back(self._space, self._current, self._baseline, names)
            arm = Arm(name="without " + ", ".join(names), configuration=without)
            if arm.key in known:
                continue  # its effect hung on a change that is already gone
            if legal.is_legal(self._space, without):
                known.add(arm.key)
                arms.append(arm)
                self._groups[arm.name] = _Group(names, without)
            elif len(names) == 1:
                self._found[names[0]] = self._contribution(names[0], _UNMEASURED, kept=True)
        if len(arms) > 1 and self._left >= len(arms) * _ROUNDS:
            self._race = Race(arms, stage="ablation", full_depth=False, objectives=self._objectives)

    def _narrow(self, race: Race) -> bool:
        """Retire the arms that are decided; whether any is left to repeat."""
        undecided = False
        for arm in race.arms[1:]:
            if arm.retired:
                continue
            gain = self._gain(race, arm)
            if gain.low > 1.0 or gain.high < 1.0 + _PAYS or gain.median < 1.0:
                arm.retired = "decided"
            else:
                undecided = True
        return undecided and self._left >= 2 * (_MORE_ROUNDS - _ROUNDS)

    def _gain(self, race: Race, arm: Arm) -> Interval:
        metric = self._objectives[0]
        with_it, without = race.arms[0].values(metric.metric), arm.values(metric.metric)
        rounds = min(len(with_it), len(without))
        return ratio_interval(
            with_it[:rounds],
            without[:rounds],
            direction=metric.direction,
            confidence=_CONFIDENCE,
        )

    def _decide(self, race: Race) -> None:
        again: list[tuple[str, ...]] = []
        dropped: list[str] = []
        for arm in race.arms[1:]:
            names = self._groups[arm.name].names
            failed = arm.disqualified
            gain = _UNMEASURED if failed else self._gain(race, arm)
            # Without it the trial fails, or is slower: the change (or one of the group) pays.
            pays = failed or gain.low > 1.0 or gain.median >= 1.0 + _PAYS
            if pays and len(names) > 1:
                middle = len(names) // 2
                again += [names[:middle], names[middle:]]
                continue
            for name in names:
                self._found[name] = self._contribution(name, gain, kept=pays)
            if not pays:
                dropped += names
        self._drop(dropped)
        self._open(again)

    def _drop(self, names: Sequence[str]) -> None:
        without = take_back(self._space, self._current, self._baseline, names)
        if legal.is_legal(self._space, without):
            self._current = without

    def _contribution(self, name: str, gain: Interval, *, kept: bool) -> Contribution:
        value, before = changes(self._space, self._best, self._baseline)[name]
        return Contribution(knob=name, value=value, baseline_value=before, gain=gain, kept=kept)


def changes(
    space: SearchSpace, best: Configuration, baseline: Configuration
) -> dict[str, tuple[KnobValue, KnobValue]]:
    """Free knobs that differ: name -> (value in best, value in the baseline or default)."""
    found = {}
    for knob in space.free():
        if knob.name in best:
            value, before = best[knob.name], baseline.get(knob.name, knob.default)
            if (value, type(value)) != (before, type(before)):
                found[knob.name] = (value, before)
    return found


def take_back(
    space: SearchSpace, current: Configuration, baseline: Configuration, names: Sequence[str]
) -> dict[str, KnobValue]:
    """``current`` with these knobs as in the baseline; what hangs on them follows ``when``."""
    chosen = {**baseline, **current}
    for name in names:
        chosen[name] = baseline.get(name, space.knob(name).default)
    return legal.complete(space, chosen)


def _first_groups(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The most promising changes singly, the others in a few groups."""
    if len(names) <= _SINGLES + _GROUPS:
        return [(name,) for name in names]
    rest = names[_SINGLES:]
    size = -(-len(rest) // _GROUPS)
    groups = [tuple(rest[i : i + size]) for i in range(0, len(rest), size)]
    return [*((name,) for name in names[:_SINGLES]), *groups]
