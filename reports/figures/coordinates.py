"""Parallel coordinates drawn as plain lines: no WebGL, so they show everywhere."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.coordinates import Coordinates, Line
from reports.numbers.encoding import Axis
from reports.numbers.units import number, unit

_GROUPS = (
    ("best fifth", style.FRONT, 0.9),
    ("second", style.GAIN, 0.45),
    ("middle", style.FEASIBLE, 0.35),
    ("fourth", style.STROKE, 0.3),
    ("worst fifth", style.SIXTH, 0.35),
)


def coordinates_figure(numbers: Coordinates) -> go.Figure:
    """Worst first, so that the best lie on top; one trace per fifth."""
    axes = numbers.axes
    figure = style.figure(430, margin={"l": 70, "r": 90, "t": 64, "b": 24}, dragmode="select")
    figure.update_layout(selectdirection="d", legend={"y": -0.04, "yanchor": "top"})
    figure.update_xaxes(visible=False, range=[-0.15, len(axes) - 0.6], fixedrange=True)
    figure.update_yaxes(visible=False, range=[-0.06, 1.06], fixedrange=True)
    for group in range(len(_GROUPS) - 1, -1, -1):
        lines = [line for line in numbers.lines.items if line.group == group]
        if lines:
            _draw(figure, lines, group, axes)
    marks = [mark for i, axis in enumerate(axes) for mark in _labels(axis, i, i == len(axes) - 1)]
    figure.update_layout(shapes=[_line(i) for i in range(len(axes))], annotations=marks)
    figure.add_scatter(
        x=[],
        y=[],
        mode="lines+markers",
        name="selected",
        meta="selected",
        showlegend=False,
        line={"color": style.INK, "width": 2.5},
        marker={"size": 7},
        hoverinfo="skip",
    )
    return figure


def _draw(figure: go.Figure, lines: list[Line], group: int, axes: tuple[Axis, ...]) -> None:
    name, colour, opacity = _GROUPS[group]
    xs: list[float | None] = []
    ys: list[float | None] = []
    numbers: list[int | None] = []
    for line in lines:
        for position, place in enumerate(line.places):
            xs.append(position)
            ys.append(None if place is None else _spread(place, line.number, axes[position]))
            numbers.append(line.number)
        xs.append(None)
        ys.append(None)
        numbers.append(None)
    figure.add_scatter(
        name=name,
        mode="lines+markers",
        x=xs,
        y=ys,
        customdata=numbers,
        opacity=opacity if len(lines) < 40 else 0.6 * opacity,
        line={"color": colour, "width": 1.8 if group == 0 else 1.0},
        marker={"size": 4, "color": colour},
        hovertemplate="Trial %{customdata}<extra></extra>",
    )


def _spread(place: float, trial: int, axis: Axis) -> float:
    """A little to the side, so that trials with the same choice are told apart."""
    room = 0.05 / max(2, len(axis.choices)) if axis.kind == "choice" else 0.004
    return round(place + room * math.sin(trial * 2.399963), 4)


def _line(position: int) -> dict[str, Any]:
    line = {"color": style.STROKE, "width": 1.2}
    return {"type": "line", "x0": position, "x1": position, "y0": 0, "y1": 1, "line": line}


def _labels(axis: Axis, position: int, last: bool) -> list[dict[str, Any]]:
    """The name above an axis and the values beside it."""
    title = _objective_title(axis.knob) if last else style.wrapped_name(axis.knob, 18)
    above = {"y": 1.06, "text": title, "yanchor": "bottom"}
    beside = {"xanchor": "left", "xshift": 5, "bgcolor": style.CARD, "opacity": 0.88}
    scale = unit(axis.knob).scale if last else 1.0
    marks = [{**above, "font": {"size": 11, "color": style.INK}}]
    marks += [
        {
            **beside,
            "y": place,
            "text": style.text(label, 15),
            "font": {"size": 10, "color": style.INK},
        }
        for place, label in _ticks(axis, scale)
    ]
    return [{**mark, "x": position, "showarrow": False} for mark in marks]


def _ticks(axis: Axis, scale: float) -> list[tuple[float, str]]:
    if axis.kind == "choice":
        last = max(1, len(axis.choices) - 1)
        step = max(1, math.ceil(len(axis.choices) / 12))
        return [(i / last, c) for i, c in enumerate(axis.choices) if i % step == 0]
    ends = (axis.low, (axis.low + axis.high) / 2, axis.high)
    values = [math.exp(v) if axis.kind == "log" else v for v in ends]
    if axis.high == axis.low:
        return [(0.0, number(values[0], 3))]
    return [(p, number(v * scale, 3)) for p, v in zip((0, 0.5, 1), values, strict=True)]


def _objective_title(metric: str) -> str:
    words = unit(metric)
    return f"<b>{style.text(words.label, 18)}</b><br>{style.text(words.unit, 18)}"
