"""What is handed over: one configuration of a study, with the way each setting is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.study import Comparison, Interval, Study
from autotune.summary import best_record
from autotune.trial import AppliedKnob, Configuration, KnobValue, TrialRecord

_HEADLINE = "common_practice"  # the baseline that counts; the other one is easy to beat
UNSET = "unset"  # as a value: leave the library alone


class ExportError(ValueError):
    """There is nothing to export, or no such format; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration and everything that is known of it."""

    study: Study
    number: int
    configuration: Configuration  # every active knob
    changed: Configuration  # what differs from the upstream defaults
    applied: tuple[AppliedKnob, ...]  # in the order of the configuration
    measured: Mapping[str, Interval]
    verdict: str
    extrapolated: bool
    is_conclusion: bool  # whether the final stage measured it beside the baselines

    @property
    def headline(self) -> Comparison | None:
        """The comparison with the baseline that counts."""
        if not self.is_conclusion or self.study.outcome is None:
            return None
        found = self.study.outcome.comparisons
        return next((c for c in found if c.baseline == _HEADLINE), found[0] if found else None)

    def settings(self, kind: str) -> dict[str, KnobValue]:
        """Target -> value of the knobs applied in one way: env, torch, argument, engine, export."""
        return {k.apply[kind]: k.value for k in self.applied if kind in k.apply}

    def changes(self, kind: str) -> dict[str, KnobValue]:
        """The same for knobs that are not at their default."""
        return {
            k.apply[kind]: k.value for k in self.applied if kind in k.apply and not k.is_default
        }


def choose(study: Study, trial: int | None = None) -> Choice:
    """The best configuration, or that of one trial; ExportError when there is none."""
    name = study.spec.name
    if trial is not None:
        record = next((r for r in study.records if r.spec.number == trial), None)
        if record is None:
            raise ExportError(f"{name} has no finished trial {trial}")
        return _of_record(study, record, f"trial {trial} alone ({record.status}), not compared")
    if study.outcome is not None and study.outcome.configuration:
        return _of_outcome(study)
    best = best_record(study)
    if best is None:
        raise ExportError(f"{name} has no feasible trial; --trial NUMBER exports any other")
    return _of_record(study, best, "best so far, not yet compared with the baselines")


def _of_outcome(study: Study) -> Choice:
    outcome = study.outcome
    assert outcome is not None
    return Choice(
        study=study,
        number=-1 if outcome.best is None else outcome.best,
        configuration=outcome.configuration,
        changed=outcome.changed_from_upstream,
        applied=_applied(study, outcome.configuration),
        measured=outcome.measured,
        verdict=outcome.verdict,
        extrapolated=outcome.extrapolated,
        is_conclusion=True,
    )


def _of_record(study: Study, record: TrialRecord, verdict: str) -> Choice:
    metrics = record.measurement.metrics if record.measurement is not None else {}
    return Choice(
        study=study,
        number=record.spec.number,
        configuration=record.spec.configuration,
        changed={k.name: k.value for k in record.spec.applied if not k.is_default},
        applied=record.spec.applied,
        measured={
            name: Interval(median=value, low=value, high=value, n=1)
            for name, value in metrics.items()
            if value is not None
        },
        verdict=verdict,
        extrapolated=not record.spec.fidelity.is_full_depth,
        is_conclusion=False,
    )


def _applied(study: Study, configuration: Configuration) -> tuple[AppliedKnob, ...]:
    """How each value of the winner was applied when it was measured.

    The winner may be no single trial's configuration before the final stage (changes that do not
    pay are taken back), so each value is looked up by itself.
    """
    known = {(k.name, repr(k.value)): k for r in study.records for k in r.spec.applied}
    if missing := [n for n, v in configuration.items() if (n, repr(v)) not in known]:
        raise ExportError(
            f"no trial of {study.spec.name} ran with {missing[0]} as the winner has it"
        )
    return tuple(known[name, repr(value)] for name, value in configuration.items())
