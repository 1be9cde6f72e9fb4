"""What earned the gain: steps from the baseline to the best, one per kept change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.numbers.answer import BASELINES, measured_gain, named_baselines
from reports.numbers.study import Interval, KnobValue, StudyData, interval, mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One bar: from where to where the first objective moves, and why."""

    label: str
    kind: str  # total | change | rest
    start: float
    end: float
    ratio: Interval | None
    value: KnobValue | None = None
    baseline_value: KnobValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A change that did not pay and was put back, or a neighbour of the winner."""

    knob: str
    value: KnobValue
    baseline_value: KnobValue
    ratio: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Steps in order; ``dropped`` and ``neighbours`` stand beside them."""

    metric: str
    steps: tuple[Step, ...]
    dropped: tuple[Alternative, ...]
    neighbours: tuple[Alternative, ...]


def waterfall(study: StudyData) -> Waterfall | None:
    """Common practice -> best, or None when the final stage left no contributions.

    Each contribution is what is lost when that change alone is taken back. They need not multiply
    to the whole, so the rest is a bar of its own rather than hidden in the others.
    """
    outcome = mapping(study.outcome)
    goal = study.goal
    baseline, start = _start(outcome, goal.metric)
    end = interval(mapping(outcome.get("measured")).get(goal.metric))
    rows = [mapping(c) for c in outcome.get("contributions") or ()]
    if start is None or end is None or min(start.median, end.median) <= 0:
        return None
    known = [(row, gain) for row in rows if (gain := measured_gain(row)) is not None]
    if not known:
        return None
    kept = sorted((k for k in known if k[0].get("kept")), key=lambda k: -k[1].median)
    steps = [_total(baseline, start)]
    level = start.median
    for row, ratio in kept:
        after = level * ratio.median**-goal.sign
        steps.append(
            Step(
                label=str(row["knob"]),
                kind="change",
                start=level,
                end=after,
                ratio=ratio,
                value=row.get("value"),
                baseline_value=row.get("baseline_value"),
            )
        )
        level = after
    rest = (end.median / level) ** -goal.sign
    whole = Interval(median=rest, low=None, high=None, n=0)
    steps.append(Step(label="together", kind="rest", start=level, end=end.median, ratio=whole))
    steps.append(_total("best", end))
    return Waterfall(
        metric=goal.metric,
        steps=tuple(steps),
        dropped=_alternatives([row for row in rows if not row.get("kept")]),
        neighbours=_alternatives(outcome.get("neighbours") or ()),
    )


def _total(label: str, value: Interval) -> Step:
    return Step(label=label, kind="total", start=0.0, end=value.median, ratio=None)


def _alternatives(rows: Sequence[Any]) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(
            knob=str(row["knob"]),
            value=row.get("value", ""),
            baseline_value=row.get("baseline_value", ""),
            ratio=ratio,
        )
        for row in map(mapping, rows)
        if (ratio := measured_gain(row)) is not None
    )


def _start(outcome: Mapping[str, Any], metric: str) -> tuple[str, Interval | None]:
    """The baseline that the contributions count from: common practice where there is one."""
    baselines = named_baselines(outcome)
    for name, words in BASELINES.items():
        if start := interval(mapping(baselines.get(name)).get(metric)):
            return words, start
    return "", None
