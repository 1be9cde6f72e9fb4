"""A study: what was asked, every record, and what was concluded. The form of study.json."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.trial import Configuration, KnobValue, TrialRecord

_LIMIT = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*$")
DEFAULT_TIMEOUT_SECONDS = 120.0  # of a trial, where the user says nothing
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class StudyError(ValueError):
    """An objective, limit or budget makes no sense; one line with the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric to push in one direction."""

    metric: str
    direction: str  # max | min

    @property
    def sign(self) -> float:
        """Multiply a value by this to get something to minimise."""
        return -1.0 if self.direction == "max" else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound that a configuration must keep to be called best."""

    metric: str
    op: str
    value: float

    def is_met(self, value: float | None) -> bool:
        """An unknown value meets no limit."""
        return value is not None and _OPERATORS[self.op](value, self.value)

    def excess(self, value: float) -> float:
        """How far a value is over the limit, relative to it; 0 or less when met."""
        scale = abs(self.value) or 1.0
        over = value - self.value if self.op.startswith("<") else self.value - value
        return over / scale

    def __str__(self) -> str:
        return f"{self.metric}{self.op}{self.value:g}"


def parse_limit(text: str) -> Limit:
    """``METRIC<=VALUE``; raises StudyError otherwise."""
    match = _LIMIT.match(text)
    try:
        if match is None:
            raise ValueError
        value = float(match[3])
        if not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise StudyError(f"limit {text!r} should read like 'peak_memory_bytes<=8e10'") from None
    return Limit(metric=match[1], op=match[2], value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop: wall seconds of trials, number of trials, or both (None: no bound)."""

    seconds: float | None
    trials: int | None
    trial_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """Everything needed to run the study again; written once when it is created."""

    name: str
    model_name: str
    model: Mapping[str, Any]
    task: str
    runner: str
    workload: Mapping[str, Any]
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    budget: Budget
    strategy: str
    seed: int
    workers: int
    gpus_per_trial: int
    price_usd_per_gpu_hour: float | None
    space: Mapping[str, Any]  # as space_file.dump gives it, so that a study outlives its files
    presets: tuple[Mapping[str, Any], ...] = ()  # {"name", "configuration"}
    options: Mapping[str, Any] = field(default_factory=dict)  # of the runner
    environ: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # device, versions, git, command
    created_at: str = ""
    cpus_per_trial: int = 0  # cores that a trial must find free; 0: it shares what there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median (or ratio) with its confidence bounds and the number of samples behind it."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm of the final stage against a baseline arm."""

    baseline: str  # default | common_practice | ...
    gain: Interval  # ratio of the first objective, above 1 is better, whatever the direction
    verdict: str  # better | worse | not distinguishable | too few repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one kept (or dropped) change earns when it alone is taken back."""

    knob: str
    value: KnobValue
    baseline_value: KnobValue
    gain: Interval
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished study concludes. ``best`` is None when nothing was feasible."""

    best: int | None  # number of the search trial whose configuration won
    configuration: Configuration = field(default_factory=dict)
    changed: Configuration = field(default_factory=dict)  # against the common-practice baseline
    changed_from_upstream: Configuration = field(default_factory=dict)
    measured: Mapping[str, Interval] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    neighbours: tuple[Contribution, ...] = ()  # one step aside: what the winner earns over it
    verdict: str = ""  # a sentence
    stopped_because: str = ""
    extrapolated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study as loaded from the store."""

    spec: StudySpec
    records: tuple[TrialRecord, ...]
    outcome: Outcome | None = None
    state: str = "running"  # running | finished | interrupted | failed

    def is_feasible(self, record: TrialRecord) -> bool:
        """COMPLETE, every objective known, every limit met."""
        known = all(record.metric(o.metric) is not None for o in self.spec.objectives)
        return known and all(lim.is_met(record.metric(lim.metric)) for lim in self.spec.limits)
