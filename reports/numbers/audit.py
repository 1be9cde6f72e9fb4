"""The knob audit, where a study holds one: set, read back, and what it did."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from reports.numbers.study import Interval, KnobValue, StudyData, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """One knob set to another value in a live trial."""

    number: int
    knob: str
    value: KnobValue
    effective: KnobValue | None  # None: not read back
    status: str
    effect: Interval | None  # ratio of the first objective against the default
    reason: str

    @property
    def is_proven(self) -> bool:
        """Read back as it was set, in a trial that worked."""
        return self.status == "COMPLETE" and self.effective == self.value


def audit(study: StudyData) -> list[Audited]:
    """One row per knob that an audit trial changed."""
    trials = [t for t in study.trials if t.stage == "audit"]
    if not trials:
        return []
    base = _base(study, trials)
    return [row for trial in trials for row in _rows(study, trial, base)]


def _base(study: StudyData, trials: list[Trial]) -> float | None:
    """The median of the untouched trials: of the audit itself, or of the default stage."""
    metric = study.goal.metric
    untouched = [t for t in trials if not _changed(study, t)]
    untouched = untouched or [t for t in study.trials if t.stage == "default"]
    values = [v for t in untouched if (v := t.metric(metric)) is not None]
    return statistics.median(values) if values else None


def _changed(study: StudyData, trial: Trial) -> dict[str, KnobValue]:
    listed = {
        str(a.get("name")): a.get("value") for a in trial.applied if a.get("is_default") is False
    }
    if listed:
        return {name: value for name, value in listed.items() if value is not None}
    return {
        name: value
        for name, value in trial.configuration.items()
        if study.defaults.get(name, value) != value
    }


def _rows(study: StudyData, trial: Trial, base: float | None) -> list[Audited]:
    value = trial.metric(study.goal.metric)
    effect = None
    if value is not None and value > 0 and base is not None and base > 0:
        ratio = (value / base) ** -study.goal.sign
        effect = Interval(median=ratio, low=None, high=None, n=1)
    return [
        Audited(
            number=trial.number,
            knob=name,
            value=set_to,
            effective=trial.effective.get(name),
            status=trial.status,
            effect=effect,
            reason=trial.reason,
        )
        for name, set_to in _changed(study, trial).items()
    ]
