"""study.json as typed, finite data: what the other modules of this room read."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

KnobValue = bool | int | float | str

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class BadStudy(ValueError):
    """The file is no study; one line that says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric with the direction it is pushed in."""

    metric: str
    direction: str

    @property
    def sign(self) -> float:
        """Multiply a value by this to get something to minimise."""
        return -1.0 if self.direction == "max" else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound on a metric; an unknown value does not meet it."""

    metric: str
    op: str
    value: float

    def is_met(self, value: float | None) -> bool:
        return value is not None and _COMPARE[self.op](value, self.value)

    def excess(self, value: float) -> float:
        """How far a value is over the limit, relative to it; 0 or less when met."""
        over = value - self.value if self.op.startswith("<") else self.value - value
        return over / (abs(self.value) or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median (or ratio) with its bounds and the number of samples."""

    median: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One record, flattened. ``metrics`` holds finite values only; the rest is in ``unknown``."""

    number: int
    stage: str
    label: str  # the preset, the arm of the final, the audited knob
    status: str
    configuration: Mapping[str, KnobValue]
    metrics: Mapping[str, float]
    unknown: tuple[str, ...]  # metrics that were reported as null, NaN or infinite
    samples: Mapping[str, tuple[float, ...]]
    effective: Mapping[str, KnobValue]
    phases: Mapping[str, float]
    telemetry: Mapping[str, Any]
    profile: Mapping[str, Any]
    notices: tuple[str, ...]
    reason: str
    hint: str
    detail: str
    signal: str
    wall_seconds: float
    started_at: str
    host: str
    folder: str
    predicted: Mapping[str, float]
    depths: tuple[int, ...]  # empty: measured at full depth
    applied: tuple[Mapping[str, Any], ...]

    @property
    def is_complete(self) -> bool:
        return self.status == "COMPLETE"

    @property
    def is_full_depth(self) -> bool:
        return not self.depths

    def metric(self, name: str) -> float | None:
        """The value, or None unless the trial is COMPLETE and measured it."""
        return self.metrics.get(name) if self.is_complete else None


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A study with its trials in order of their number."""

    spec: Mapping[str, Any]
    trials: tuple[Trial, ...]
    outcome: Mapping[str, Any] | None
    state: str
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]

    @property
    def name(self) -> str:
        return str(self.spec.get("name") or "study")

    @property
    def goal(self) -> Objective:
        """The first objective, which gains are ratios of."""
        return self.objectives[0]

    @property
    def total_trials(self) -> int | None:
        total = mapping(self.spec.get("budget")).get("trials")
        return int(total) if isinstance(total, int | float) else None

    @cached_property
    def defaults(self) -> dict[str, KnobValue]:
        """Upstream default of each knob, as far as the stored space tells."""
        return {name: knob["default"] for name, knob in self.knobs.items() if "default" in knob}

    @cached_property
    def knobs(self) -> dict[str, Mapping[str, Any]]:
        """The stored space: knob name to its facts (a list or a mapping in the file)."""
        stored = mapping(self.spec.get("space")).get("knobs")
        if isinstance(stored, Mapping):
            return {str(name): mapping(facts) for name, facts in stored.items()}
        rows = [mapping(row) for row in stored] if isinstance(stored, list) else []
        return {str(row["name"]): row for row in rows if "name" in row}

    @cached_property
    def by_number(self) -> dict[int, Trial]:
        return {trial.number: trial for trial in self.trials}

    def is_known(self, trial: Trial) -> bool:
        """COMPLETE with a finite value for every objective."""
        return all(trial.metric(o.metric) is not None for o in self.objectives)

    def broken_limits(self, trial: Trial) -> list[Limit]:
        """The limits that a COMPLETE trial does not keep."""
        return [lim for lim in self.limits if not lim.is_met(trial.metric(lim.metric))]

    def is_feasible(self, trial: Trial) -> bool:
        return self.is_known(trial) and not self.broken_limits(trial)


def load(path: Path) -> StudyData:
    """Read study.json; raises BadStudy with one line when it is not one."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadStudy(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadStudy(f"{path} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise BadStudy(f"{path} is not JSON: {error}") from None
    except BadStudy as error:
        raise BadStudy(f"{path} is not a study: {error}") from None


def parse(data: Any) -> StudyData:
    """A study from plain JSON data, tolerant of what an older or a newer autotune leaves out."""
    if not isinstance(data, Mapping) or not isinstance(data.get("spec"), Mapping):
        raise BadStudy("expected an object with 'spec' and 'records'")
    spec = data["spec"]
    try:
        objectives = tuple(
            Objective(metric=o["metric"], direction=o["direction"]) for o in spec["objectives"]
        )
        limits = tuple(
            Limit(metric=lim["metric"], op=lim["op"], value=float(lim["value"]))
            for lim in spec.get("limits") or ()
        )
        trials = [_trial(record) for record in data.get("records") or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadStudy(f"{type(error).__name__} {error}") from None
    if not objectives:
        raise BadStudy("it has no objective")
    outcome = data.get("outcome")
    return StudyData(
        spec=spec,
        trials=tuple(sorted(trials, key=lambda t: t.number)),
        outcome=outcome if isinstance(outcome, Mapping) else None,
        state=str(data.get("state") or "running"),
        objectives=objectives,
        limits=limits,
    )


def finite(value: Any) -> float | None:
    """A finite float, or None for everything else (bool included)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value when it is a mapping, an empty one otherwise."""
    return value if isinstance(value, Mapping) else {}


def interval(data: Any) -> Interval | None:
    """An interval of the outcome, or None when its median is unknown."""
    fields = mapping(data)
    median = finite(fields.get("median"))
    if median is None:
        return None
    low, high = finite(fields.get("low")), finite(fields.get("high"))
    return Interval(median=median, low=low, high=high, n=int(fields.get("n") or 0))


def _trial(record: Mapping[str, Any]) -> Trial:
    spec, measured = record["spec"], mapping(record.get("measurement"))
    failure = mapping(record.get("failure"))
    raw = mapping(measured.get("metrics"))
    metrics = _finite_items(raw)
    samples = mapping(measured.get("samples"))
    return Trial(
        number=int(spec["number"]),
        stage=str(spec.get("stage") or "search"),
        label=str(spec.get("label") or ""),
        status=str(record["status"]),
        configuration={str(n): _scalar(v) for n, v in (spec.get("configuration") or {}).items()},
        metrics=metrics,
        unknown=tuple(str(name) for name in raw if name not in metrics),
        samples={name: _finite_values(values) for name, values in samples.items()},
        effective=mapping(measured.get("effective")),
        phases=_finite_items(mapping(measured.get("phases"))),
        telemetry=mapping(measured.get("telemetry")),
        profile=mapping(measured.get("profile")),
        notices=tuple(str(n) for n in measured.get("notices") or ()),
        reason=str(failure.get("reason") or ""),
        hint=str(failure.get("hint") or ""),
        detail=str(failure.get("detail") or ""),
        signal=str(failure.get("signal") or ""),
        wall_seconds=finite(record.get("wall_seconds")) or 0.0,
        started_at=str(record.get("started_at") or ""),
        host=str(record.get("host") or ""),
        folder=str(record.get("folder") or ""),
        predicted=_finite_items(mapping(record.get("predicted"))),
        depths=tuple(mapping(spec.get("fidelity")).get("depths") or ()),
        applied=tuple(spec.get("applied") or ()),
    )


def _finite_items(data: Mapping[str, Any]) -> dict[str, float]:
    pairs = ((str(name), finite(value)) for name, value in data.items())
    return {name: value for name, value in pairs if value is not None}


def _finite_values(values: Any) -> tuple[float, ...]:
    return tuple(v for v in map(finite, values or ()) if v is not None)


def _scalar(value: Any) -> KnobValue:
    """Knobs are scalars; what a foreign writer put there is shown as JSON."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
