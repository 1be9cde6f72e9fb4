"""The answer: what is gained, how sure that is, and what has to be changed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.numbers.points import Point
from reports.numbers.study import (
    Interval,
    KnobValue,
    Limit,
    StudyData,
    Trial,
    interval,
    mapping,
)

_WIDE = 50.0
_COMMON = "common_practice"
BASELINES = {_COMMON: "common practice", "default": "upstream defaults"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The best against one baseline, as a ratio above 1 when better."""

    baseline: str  # common_practice | default | ...
    ratio: Interval
    verdict: str
    is_proven: bool  # by interleaved repeats; otherwise just two medians divided

    @property
    def is_open(self) -> bool:
        """Repeated, but not called better: the headline must not read like a promise."""
        return self.is_proven and self.verdict != "better"

    @property
    def is_wide(self) -> bool:
        """Bounds so far apart that printing them would only confuse."""
        low, high = self.ratio.low, self.ratio.high
        return low is None or high is None or low <= 0 or high / low > _WIDE

    @property
    def looks_better(self) -> bool:
        """The interval lies above 1, though too few repeats for a verdict."""
        return self.ratio.low is not None and self.ratio.low > 1

    @property
    def against(self) -> str:
        return BASELINES.get(self.baseline, self.baseline.replace("_", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of the diff."""

    knob: str
    summary: str
    upstream: KnobValue | None
    common: KnobValue | None
    best: KnobValue
    earns: Interval | None  # ratio, when the ablation measured it

    @property
    def is_new(self) -> bool:
        """Whether the best differs from common practice (or upstream, where there is none)."""
        before = self.upstream if self.common is None else self.common
        return (before, type(before)) != (self.best, type(self.best))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """One metric of the best beside the baselines."""

    metric: str
    best: Interval | None
    common: Interval | None
    upstream: Interval | None
    limit: Limit | None
    is_objective: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything the first card says."""

    gains: tuple[Gain, ...]  # common practice first
    best: int | None
    configuration: Mapping[str, KnobValue]
    changed: Mapping[str, KnobValue]
    changes: tuple[Change, ...]
    metrics: tuple[MetricLine, ...]
    verdict: str
    is_extrapolated: bool
    is_provisional: bool  # no final stage yet: from single measurements
    stopped_because: str


def answer(study: StudyData, points: list[Point]) -> Answer:
    """From the final stage where there was one, from single measurements otherwise."""
    outcome = study.outcome
    if outcome is None:
        return _provisional(study, best_point(study, points))
    best = outcome.get("best")
    if best is None or study.goal.metric not in mapping(outcome.get("measured")):
        return _provisional(study, next((p for p in points if best in p.trials), None))
    return _concluded(study, outcome)


def named_baselines(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Metric intervals of the outcome's baselines, under the names of BASELINES."""
    held = mapping(outcome.get("baselines"))
    return {_canonical(name): metrics for name, metrics in held.items()}


def measured_gain(contribution: Mapping[str, Any]) -> Interval | None:
    """What a change earns, or None when the ablation never came to it."""
    gain = interval(contribution.get("gain"))
    return gain if gain is not None and gain.n > 0 and gain.median > 0 else None


def _canonical(name: str) -> str:
    return "default" if name in ("upstream", "upstream_default") else name


def baseline_trials(study: StudyData) -> dict[str, Trial]:
    """The trials that measured the baselines: the first COMPLETE one of each, if any."""
    found: dict[str, Trial] = {}
    named = (mapping(p.get("configuration")) for p in _presets(study) if p.get("name") == _COMMON)
    common = next(named, {})
    for trial in study.trials:
        if not study.is_known(trial):
            continue
        if trial.stage == "default" or _canonical(trial.label) == "default":
            found.setdefault("default", trial)
        elif trial.label == _COMMON or (common and common.items() <= trial.configuration.items()):
            found.setdefault(_COMMON, trial)
    return found


def difference(
    configuration: Mapping[str, KnobValue], baseline: Mapping[str, KnobValue]
) -> dict[str, KnobValue]:
    """What must be set to get from a baseline to a configuration; 1 and True differ."""
    return {
        name: value
        for name, value in configuration.items()
        if name not in baseline or (value, type(value)) != (baseline[name], type(baseline[name]))
    }


def best_point(study: StudyData, points: list[Point]) -> Point | None:
    """The feasible point with the best first objective."""
    able = [p for p in points if p.kind in ("front", "feasible")]
    goal = study.goal
    return min(able, key=lambda p: goal.sign * p.metrics[goal.metric], default=None)


def _presets(study: StudyData) -> list[Mapping[str, Any]]:
    return [mapping(p) for p in study.spec.get("presets") or ()]


def _concluded(study: StudyData, outcome: Mapping[str, Any]) -> Answer:
    measured, baselines = mapping(outcome.get("measured")), named_baselines(outcome)
    gains = [
        Gain(
            baseline=_canonical(str(c["baseline"])),
            ratio=ratio,
            verdict=str(c["verdict"]),
            is_proven=True,
        )
        for c in map(mapping, outcome.get("comparisons") or ())
        if (ratio := interval(c.get("gain"))) is not None
    ]
    order = list(BASELINES)
    gains.sort(key=lambda g: order.index(g.baseline) if g.baseline in order else len(order))
    configuration = mapping(outcome.get("configuration"))
    changed = mapping(outcome.get("changed"))
    from_upstream = mapping(outcome.get("changed_from_upstream"))
    earns = {
        str(c.get("knob")): measured_gain(c)
        for c in map(mapping, outcome.get("contributions") or ())
    }
    return Answer(
        gains=tuple(gains),
        best=int(outcome["best"]),
        configuration=configuration,
        changed=changed,
        changes=_changes(study, configuration, {**from_upstream, **changed}, earns),
        metrics=_metric_lines(study, measured, baselines),
        verdict=str(outcome.get("verdict") or ""),
        is_extrapolated=bool(outcome.get("extrapolated")),
        is_provisional=False,
        stopped_because=str(outcome.get("stopped_because") or ""),
    )


def _provisional(study: StudyData, best: Point | None) -> Answer:
    bases, outcome = baseline_trials(study), mapping(study.outcome)
    configuration = best.configuration if best else {}
    start = bases.get("common_practice") or bases.get("default")
    changed = difference(configuration, start.configuration) if start else {}
    upstream = difference(configuration, study.defaults) if study.defaults else {}
    measured = (
        {n: {"median": v, "n": len(best.trials)} for n, v in best.metrics.items()} if best else {}
    )
    baselines = {
        name: {n: {"median": v, "n": 1} for n, v in trial.metrics.items()}
        for name, trial in bases.items()
    }
    return Answer(
        gains=tuple(_rough_gains(study, best, bases)),
        best=best.number if best else None,
        configuration=configuration,
        changed=changed,
        changes=_changes(study, configuration, {**upstream, **changed}, {}),
        metrics=_metric_lines(study, measured, baselines),
        verdict=str(outcome.get("verdict") or ""),
        is_extrapolated=best is not None and not best.is_full_depth,
        is_provisional=True,
        stopped_because=str(outcome.get("stopped_because") or ""),
    )


def _rough_gains(study: StudyData, best: Point | None, bases: Mapping[str, Trial]) -> list[Gain]:
    if best is None:
        return []
    goal, gains = study.goal, []
    for name in BASELINES:
        base = bases[name].metric(goal.metric) if name in bases else None
        if base is None or base <= 0 or best.metrics[goal.metric] <= 0:
            continue
        ratio = (best.metrics[goal.metric] / base) ** -goal.sign
        rough = Interval(median=ratio, low=None, high=None, n=1)
        gains.append(Gain(baseline=name, ratio=rough, verdict="not verified yet", is_proven=False))
    return gains


def _changes(
    study: StudyData,
    configuration: Mapping[str, KnobValue],
    changed: Mapping[str, KnobValue],
    earns: Mapping[str, Interval | None],
) -> tuple[Change, ...]:
    common = _common_configuration(study)
    rows = [
        Change(
            knob=name,
            summary=str(study.knobs.get(name, {}).get("summary") or ""),
            upstream=study.defaults.get(name),
            common=common.get(name, study.defaults.get(name)) if common else None,
            best=configuration.get(name, value),
            earns=earns.get(name),
        )
        for name, value in changed.items()
        if not study.knobs.get(name, {}).get("workload")
    ]
    return tuple(sorted(rows, key=lambda r: -(r.earns.median if r.earns else 0.0)))


def _common_configuration(study: StudyData) -> Mapping[str, KnobValue]:
    trial = baseline_trials(study).get(_COMMON)
    if trial is not None:
        return trial.configuration
    named = (p for p in _presets(study) if p.get("name") == _COMMON)
    return mapping(next(named, {}).get("configuration"))


def _metric_lines(
    study: StudyData, measured: Mapping[str, Any], baselines: Mapping[str, Any]
) -> tuple[MetricLine, ...]:
    common = mapping(baselines.get("common_practice"))
    upstream = mapping(baselines.get("default"))
    goals = [o.metric for o in study.objectives]
    limits = {lim.metric: lim for lim in study.limits}
    names = dict.fromkeys([*goals, *limits, *measured])
    return tuple(
        MetricLine(
            metric=name,
            best=interval(measured.get(name)),
            common=interval(common.get(name)),
            upstream=interval(upstream.get(name)),
            limit=limits.get(name),
            is_objective=name in goals,
        )
        for name in names
    )
