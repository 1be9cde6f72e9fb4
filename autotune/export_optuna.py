"""A study as Optuna knows it: a journal file that optuna-dashboard opens."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.export_choice import Choice
from autotune.study import Study
from autotune.trial import KnobValue, TrialRecord


def journal(choice: Choice) -> str:
    """Every trial of the study, not only the chosen one: ``optuna-dashboard best.optuna``."""
    study = choice.study
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-optuna-") as folder:
            path = Path(folder) / "journal.log"
            theirs = optuna.create_study(
                study_name=study.spec.name,
                storage=JournalStorage(JournalFileBackend(str(path))),
                directions=[
                    "maximize" if o.direction == "max" else "minimize"
                    for o in study.spec.objectives
                ],
            )
            theirs.set_user_attr("objectives", [o.metric for o in study.spec.objectives])
            theirs.add_trials(_trials(study))
            return path.read_text(encoding="utf-8")
    finally:
        optuna.logging.set_verbosity(before)


def _trials(study: Study) -> list[FrozenTrial]:
    seen: dict[str, list[KnobValue]] = {}
    for record in study.records:
        for name, value in record.spec.configuration.items():
            seen.setdefault(name, []).append(value)
    domains = {name: _domain(values) for name, values in seen.items()}
    return [_trial(study, record, domains) for record in study.records]


def _domain(values: Sequence[KnobValue]) -> BaseDistribution:
    """The range that was tried; the knob's own may depend on other knobs, which Optuna's cannot."""
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return IntDistribution(int(min(values)), int(max(values)))
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return FloatDistribution(float(min(values)), float(max(values)))
    # Optuna takes 1, 1.0 and True for one choice.
    if len({type(v) for v in values}) > 1:
        return CategoricalDistribution(sorted({str(v) for v in values}))
    return CategoricalDistribution(sorted(set(values), key=str))


def _trial(study: Study, record: TrialRecord, domains: dict[str, BaseDistribution]) -> FrozenTrial:
    values = [record.metric(objective.metric) for objective in study.spec.objectives]
    is_complete = None not in values
    configuration = record.spec.configuration
    trial = create_trial(
        state=TrialState.COMPLETE if is_complete else TrialState.FAIL,
        values=[float(v) for v in values if v is not None] if is_complete else None,
        params={n: _value(v, domains[n]) for n, v in configuration.items()},
        distributions={name: domains[name] for name in configuration},
        user_attrs={
            "number": record.spec.number,
            "status": str(record.status),
            "stage": record.spec.stage,
            **(dict(record.measurement.metrics) if record.measurement is not None else {}),
        },
    )
    trial.datetime_start = (
        datetime.fromisoformat(record.started_at).astimezone().replace(tzinfo=None)
    )
    trial.datetime_complete = trial.datetime_start + timedelta(seconds=record.wall_seconds)
    return trial


def _value(value: KnobValue, domain: BaseDistribution) -> KnobValue:
    if isinstance(domain, CategoricalDistribution) and value not in domain.choices:
        return str(value)
    return float(value) if isinstance(domain, FloatDistribution) else value
