"""The trade-off: one point per configuration, which are on the front, which break a limit."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune import pareto
from reports.numbers.study import KnobValue, StudyData, Trial

# Stages whose trials answer another question than "what is best".
_ASIDE = ("audit", "canary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A configuration with the medians of its repeats."""

    number: int  # the first trial that measured it
    trials: tuple[int, ...]
    stage: str
    kind: str  # front | feasible | over_limit | stopped | failed
    status: str
    metrics: Mapping[str, float]
    predicted: Mapping[str, float]
    configuration: Mapping[str, KnobValue]
    is_full_depth: bool


def configuration_key(configuration: Mapping[str, KnobValue]) -> str:
    """Equal for equal configurations; 1, 1.0 and True stay apart."""
    return repr(sorted(configuration.items()))


def points(study: StudyData, *, strict: bool = False) -> list[Point]:
    """Every configuration as one point, in order of its first trial.

    A configuration is judged by its most thorough measurements: when it worked in slices but ran
    out of memory at full depth, it has failed. With ``strict`` those over a limit are left out.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in study.trials:
        if trial.stage not in _ASIDE:
            groups.setdefault(configuration_key(trial.configuration), []).append(trial)
    found = [_point(study, group) for group in groups.values()]
    if strict:
        found = [p for p in found if p.kind != "over_limit"]
    return _mark_front(study, found)


def front_line(study: StudyData, found: Iterable[Point]) -> list[Point]:
    """The points of the front in the order of the first objective."""
    metric = study.goal.metric
    return sorted((p for p in found if p.kind == "front"), key=lambda p: p.metrics[metric])


def counts(found: Sequence[Point]) -> dict[str, int]:
    """How many points are of each kind."""
    kinds = ("front", "feasible", "over_limit", "stopped", "failed")
    return {kind: sum(p.kind == kind for p in found) for kind in kinds}


def _point(study: StudyData, group: list[Trial]) -> Point:
    thorough = [t for t in group if t.is_full_depth] or group
    complete = [t for t in thorough if study.is_known(t)]
    shown = complete or thorough
    names = dict.fromkeys(name for t in complete for name in t.metrics)
    metrics = {
        name: statistics.median(t.metrics[name] for t in complete if name in t.metrics)
        for name in names
    }
    return Point(
        number=group[0].number,
        trials=tuple(t.number for t in group),
        stage=group[0].stage,
        kind=_kind(study, metrics, shown[-1]),
        status=shown[-1].status,
        metrics=metrics,
        predicted=next((t.predicted for t in group if t.predicted), {}),
        configuration=group[0].configuration,
        is_full_depth=shown[-1].is_full_depth,
    )


def _kind(study: StudyData, metrics: Mapping[str, float], last: Trial) -> str:
    if not metrics:
        return "stopped" if last.status == "STOPPED_EARLY" else "failed"
    met = all(limit.is_met(metrics.get(limit.metric)) for limit in study.limits)
    return "feasible" if met else "over_limit"


def _mark_front(study: StudyData, found: list[Point]) -> list[Point]:
    able = [i for i, p in enumerate(found) if p.kind == "feasible"]
    coordinates = [[o.sign * found[i].metrics[o.metric] for o in study.objectives] for i in able]
    on_front = {able[j] for j in pareto.front(coordinates)}
    return [
        dataclasses.replace(p, kind="front") if i in on_front else p for i, p in enumerate(found)
    ]
