"""Two studies side by side: the gain of the second over the first, and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reports.numbers.answer import Answer, answer
from reports.numbers.failures import totals
from reports.numbers.history import History, history
from reports.numbers.points import Point, points
from reports.numbers.reproduce import facts, fingerprint
from reports.numbers.study import Interval, KnobValue, StudyData
from reports.numbers.thinning import Thinned, thin
from reports.numbers.units import unit

MOST_POINTS = 800
# What may differ between two runs of one and the same question.
_OWN = ("Created", "State", "Seed")
_OWN_PRINT = ("command", "time", "created_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two studies with what was computed of it."""

    study: StudyData
    answer: Answer
    points: list[Point]
    rest: Thinned[Point]  # feasible, off the front
    history: History
    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPair:
    """A metric of both bests; ``ratio`` above 1 means that the second is better."""

    metric: str
    first: Interval | None
    second: Interval | None
    ratio: Interval | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same on both sides."""

    name: str
    first: KnobValue | None
    second: KnobValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The whole comparison; ``lead`` is the first objective when both have it."""

    first: Side
    second: Side
    lead: MetricPair | None
    metrics: tuple[MetricPair, ...]
    knobs: tuple[Difference, ...]
    questions: tuple[Difference, ...]  # of the studies' own settings
    machines: tuple[Difference, ...]  # of hardware and versions


def compare(first: StudyData, second: StudyData) -> Compared:
    """The bests of two studies, as far as they can be held against each other."""
    a, b = _side(first), _side(second)
    lines = {m.metric: m for m in b.answer.metrics}
    directions = _directions(first) | _directions(second)
    pairs = [
        _pair(m.metric, m.best, lines[m.metric].best, directions.get(m.metric, ""))
        for m in a.answer.metrics
        if m.metric in lines
    ]
    shared = first.goal == second.goal
    lead = next((p for p in pairs if shared and p.metric == first.goal.metric), None)
    return Compared(
        first=a,
        second=b,
        lead=lead if lead is not None and lead.ratio is not None else None,
        metrics=tuple(pairs),
        knobs=_differences(a.answer.configuration, b.answer.configuration),
        questions=_differences(_settings(first), _settings(second)),
        machines=_differences(_machine(first), _machine(second)),
    )


def _side(study: StudyData) -> Side:
    found = points(study)
    return Side(
        study=study,
        answer=answer(study, found),
        points=found,
        rest=thin([p for p in found if p.kind == "feasible"], MOST_POINTS, keep=lambda _: False),
        history=history(study),
        totals=dict(totals(study)),
    )


def _directions(study: StudyData) -> dict[str, str]:
    named = {m: unit(m).better for t in study.trials for m in t.metrics}
    return named | {o.metric: o.direction for o in study.objectives}


def _pair(name: str, a: Interval | None, b: Interval | None, direction: str) -> MetricPair:
    ratio = _ratio(a, b, direction)
    return MetricPair(metric=name, first=a, second=b, ratio=ratio, verdict=_verdict(ratio))


def _ratio(a: Interval | None, b: Interval | None, direction: str) -> Interval | None:
    """The widest ratio that both intervals allow: the studies did not take turns on the device."""
    if a is None or b is None or a.median <= 0 or b.median <= 0 or not direction:
        return None
    power = -1 if direction == "min" else 1
    low = high = None
    known = [x for x in (a.low, a.high, b.low, b.high) if x is not None and x > 0]
    if len(known) == 4 and min(a.n, b.n) > 1:
        ends = [(x / y) ** power for x in (b.low, b.high) for y in (a.low, a.high) if x and y]
        low, high = min(ends), max(ends)
    return Interval(median=(b.median / a.median) ** power, low=low, high=high, n=min(a.n, b.n))


def _verdict(ratio: Interval | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return "not verified"
    if ratio.low > 1:
        return "better"
    return "worse" if ratio.high < 1 else "not distinguishable"


def _differences(a: Mapping[str, KnobValue], b: Mapping[str, KnobValue]) -> tuple[Difference, ...]:
    return tuple(
        Difference(name=name, first=a.get(name), second=b.get(name))
        for name in dict.fromkeys([*a, *b])
        if (a.get(name), type(a.get(name))) != (b.get(name), type(b.get(name)))
    )


def _settings(study: StudyData) -> dict[str, KnobValue]:
    return {name: value for name, value in facts(study) if name not in _OWN}


def _machine(study: StudyData) -> dict[str, KnobValue]:
    return {name: value for name, value in fingerprint(study) if name not in _OWN_PRINT}
