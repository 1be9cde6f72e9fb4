"""Parallel coordinates: the knobs that matter, one line per trial."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from reports.numbers import encoding
from reports.numbers.importance import Importance
from reports.numbers.points import Point
from reports.numbers.study import StudyData
from reports.numbers.thinning import Thinned, thin

MOST_LINES = 300
MOST_AXES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One configuration: its places on the axes (None: not active) and its rank group."""

    number: int
    places: tuple[float | None, ...]
    group: int  # 0 best fifth ... 4 worst fifth
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """The axes in order (the objective last) and the lines to draw."""

    axes: tuple[encoding.Axis, ...]
    lines: Thinned[Line]


def coordinates(
    study: StudyData,
    points: Sequence[Point],
    weight: Importance,
    always: Set[int | None] = frozenset(),
) -> Coordinates | None:
    """None when fewer than two knobs vary among the measured configurations.

    ``always`` names trials whose lines are never thinned away.
    """
    measured = [p for p in points if p.metrics and p.kind != "over_limit"]
    by_number = study.by_number
    trials = [by_number[p.number] for p in measured]
    varying = encoding.varying(trials)
    ranked = [s.knob for s in weight.shares if s.knob in varying]
    knobs = [*ranked, *(k for k in varying if k not in ranked)][:MOST_AXES]
    if len(knobs) < 2:
        return None
    axes = [encoding.axis(knob, trials) for knob in knobs]
    goal = study.goal
    values = [p.metrics[goal.metric] for p in measured]
    low, high = min(values), max(values)
    axes.append(encoding.Axis(knob=goal.metric, kind="number", low=low, high=high, choices=()))
    order = sorted(range(len(measured)), key=lambda i: goal.sign * values[i])
    rank = {i: place for place, i in enumerate(order)}
    lines = [
        Line(
            number=point.number,
            places=(
                *(a.place(point.configuration.get(a.knob)) for a in axes[:-1]),
                axes[-1].place(values[i]),
            ),
            group=min(4, 5 * rank[i] // len(measured)),
            kind=point.kind,
        )
        for i, point in enumerate(measured)
    ]
    wanted = {p.number for p in measured if p.kind == "front" or not always.isdisjoint(p.trials)}
    words = "the front, the best, the baselines"
    kept = thin(lines, MOST_LINES, keep=lambda line: line.number in wanted, kept=words)
    return Coordinates(axes=tuple(axes), lines=kept)
