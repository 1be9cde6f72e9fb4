"""Trials without a usable result: by class, by reason, with the first line of what they said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from reports.numbers.study import KnobValue, Limit, StudyData, Trial

MEANINGS = {
    "COMPLETE": "measured",
    "STOPPED_EARLY": "cut short: it could no longer join the front",
    "INFEASIBLE": "rejected before launch, cost no device time",
    "UNSUPPORTED": "illegal on this device or version, or not read back as set",
    "OUT_OF_MEMORY": "the device's memory did not suffice",
    "HOST_OUT_OF_MEMORY": "the host's memory did not suffice",
    "TIMED_OUT": "ran past its deadline",
    "GPU_FAULT": "the device reported a fault",
    "CRASHED": "the program ended with an error",
    "NON_FINITE": "a loss or metric was not finite",
    "BAD_OUTPUT": "failed the quality gate",
    "ABANDONED": "its owner died",
}
MOST_REASONS = 12
MOST_DETAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Failures of one class that said the same thing, numbers aside."""

    text: str
    hint: str
    signal: str
    count: int
    example: int
    changed: Mapping[str, KnobValue]  # of the example, against upstream
    folder: str
    detail: str  # last lines of the example's log
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One status with its reasons, most frequent first."""

    status: str
    meaning: str
    count: int
    seconds: float
    reasons: tuple[Reason, ...]
    left_out: int  # trials whose reason is not listed


def failures(study: StudyData) -> list[FailureClass]:
    """The classes in order of their count; STOPPED_EARLY is no failure."""
    groups: dict[str, list[Trial]] = {}
    for trial in study.trials:
        if trial.status not in ("COMPLETE", "STOPPED_EARLY"):
            groups.setdefault(trial.status, []).append(trial)
    return [_class(study, s, g) for s, g in sorted(groups.items(), key=lambda i: -len(i[1]))]


def totals(study: StudyData) -> list[tuple[str, int]]:
    """Every status with its count; they add up to the trials run."""
    counted: dict[str, int] = {}
    for trial in study.trials:
        counted[trial.status] = counted.get(trial.status, 0) + 1
    order = list(MEANINGS)
    return sorted(counted.items(), key=lambda i: order.index(i[0]) if i[0] in order else len(order))


def unknown_values(study: StudyData) -> list[tuple[str, tuple[int, ...]]]:
    """Metrics that COMPLETE trials could not give (null, NaN, infinite, missing), with who."""
    wanted = dict.fromkeys(
        [o.metric for o in study.objectives] + [lim.metric for lim in study.limits]
    )
    missing: dict[str, list[int]] = {}
    for trial in study.trials:
        if trial.is_complete:
            absent = [n for n in wanted if n not in trial.metrics]
            for name in dict.fromkeys([*absent, *trial.unknown]):
                missing.setdefault(name, []).append(trial.number)
    return [(name, tuple(numbers)) for name, numbers in missing.items()]


def first_line(trial: Trial) -> str:
    """What a failed trial said, in one line."""
    lines = (trial.reason or trial.detail).strip().splitlines()
    return lines[0] if lines else "no reason was recorded"


def _class(study: StudyData, status: str, trials: list[Trial]) -> FailureClass:
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        alike.setdefault(re.sub(r"\d+(\.\d+)?", "#", first_line(trial)), []).append(trial)
    ranked = sorted(alike.values(), key=lambda group: -len(group))
    return FailureClass(
        status=status,
        meaning=MEANINGS.get(status, ""),
        count=len(trials),
        seconds=sum(t.wall_seconds for t in trials),
        reasons=tuple(_reason(study, group) for group in ranked[:MOST_REASONS]),
        left_out=sum(map(len, ranked[MOST_REASONS:])),
    )


def _reason(study: StudyData, group: list[Trial]) -> Reason:
    example = group[0]
    changed = {
        name: value
        for name, value in example.configuration.items()
        if study.defaults.get(name, value) != value
    }
    return Reason(
        text=first_line(example),
        hint=example.hint,
        signal=example.signal,
        count=len(group),
        example=example.number,
        changed=changed,
        folder=example.folder,
        detail=example.detail[-MOST_DETAIL:],
        numbers=tuple(t.number for t in group),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The measured trial that came nearest to keeping every limit."""

    number: int
    limit: Limit  # the one it breaks most
    value: float


def nearest_miss(study: StudyData) -> Miss | None:
    """By the largest relative excess over any of its limits; None when none was measured."""
    found: list[tuple[float, Miss]] = []
    for trial in study.trials:
        over = [
            (limit.excess(value), Miss(number=trial.number, limit=limit, value=value))
            for limit in study.broken_limits(trial)
            if (value := trial.metric(limit.metric)) is not None
        ]
        if over and len(over) == len(study.broken_limits(trial)):
            found.append(max(over, key=lambda pair: pair[0]))
    return min(found, key=lambda pair: pair[0])[1] if found else None
