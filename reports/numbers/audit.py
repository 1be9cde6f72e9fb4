"""The knob audit, where a study holds one: set, read back, and what it did."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from reports.numbers.study import Interval, KnobValue, StudyData, Trial

_BASELINE = "baseline"  # the label of an audit's untouched trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """One knob set to another value in a live trial."""

    number: int
    knob: str
    value: KnobValue
    effective: KnobValue | None  # None: not read back
    status: str
    effect: Interval | None  # ratio of the first objective against the nearest baseline
    reason: str

    @property
    def is_proven(self) -> bool:
        """Read back as it was set, in a trial that worked."""
        return self.status == "COMPLETE" and self.effective == self.value


def audit(study: StudyData) -> list[Audited]:
    """One row per audited knob; repeats of it are one row."""
    trials = [t for t in study.trials if t.stage == "audit"]
    bases = [t for t in trials if t.label == _BASELINE]
    bases = bases or [t for t in study.trials if t.stage == "default"]
    cases: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.label != _BASELINE:
            cases.setdefault(_knob(study, trial), []).append(trial)
    return [_row(study, knob, group, bases) for knob, group in cases.items()]


def _knob(study: StudyData, trial: Trial) -> str:
    """The audited knob: the label says it; in its absence the one that is off its default."""
    if trial.label:
        return trial.label
    off = [
        name
        for name, value in trial.configuration.items()
        if study.defaults.get(name, value) != value
    ]
    return off[-1] if off else "?"


def _row(study: StudyData, knob: str, group: list[Trial], bases: Sequence[Trial]) -> Audited:
    complete = [t for t in group if t.is_complete]
    shown = (complete or group)[-1]
    return Audited(
        number=shown.number,
        knob=knob,
        value=shown.configuration.get(knob, ""),
        effective=shown.effective.get(knob),
        status=shown.status,
        effect=_effect(study, knob, complete, bases),
        reason=shown.reason,
    )


def _effect(
    study: StudyData, knob: str, tried: Sequence[Trial], bases: Sequence[Trial]
) -> Interval | None:
    """Medians against the baselines that differ in as few other knobs as any does."""
    goal = study.goal
    values = [v for t in tried if (v := t.metric(goal.metric)) is not None and v > 0]
    known = [b for b in bases if (b.metric(goal.metric) or 0) > 0]
    if not values or not known:
        return None
    far = {b.number: _distance(tried[0], b, knob) for b in known}
    near = [b.metrics[goal.metric] for b in known if far[b.number] == min(far.values())]
    ratios = sorted((v / b) ** -goal.sign for v in values for b in near)
    middle = (statistics.median(values) / statistics.median(near)) ** -goal.sign
    spread = len(ratios) > 1
    return Interval(
        median=middle,
        low=ratios[0] if spread else None,
        high=ratios[-1] if spread else None,
        n=len(values),
    )


def _distance(trial: Trial, base: Trial, knob: str) -> int:
    names = trial.configuration.keys() | base.configuration.keys()
    return sum(trial.configuration.get(n) != base.configuration.get(n) for n in names - {knob})
