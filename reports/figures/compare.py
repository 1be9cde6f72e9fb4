"""Both studies in one chart: how fast each got good, and where their fronts lie."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.compare import Side
from reports.numbers.points import Point
from reports.numbers.units import quantity, unit

_LOOKS = ((style.SIXTH, "diamond", "dash"), (style.FRONT, "circle", "solid"))


def race_figure(sides: Sequence[Side], metric: str) -> go.Figure:
    """Best so far over the trials of each."""
    figure, words = style.figure(360), unit(metric)
    figure.update_xaxes(title_text="trial", showgrid=False)
    figure.update_yaxes(title_text=f"best so far, {words.title}")
    for side, (colour, _, dash) in zip(sides, _LOOKS, strict=True):
        figure.add_scatter(
            name=style.text(side.study.name, 28),
            mode="lines",
            x=[number for number, _ in side.history.best],
            y=[value * words.scale for _, value in side.history.best],
            text=[quantity(metric, value) for _, value in side.history.best],
            line={"color": colour, "width": 2.5, "shape": "hv", "dash": dash},
            hovertemplate="trial %{x}: %{text}<extra></extra>",
        )
    return figure


def fronts_figure(sides: Sequence[Side], x: str, y: str) -> go.Figure:
    """The feasible configurations of each, fronts joined."""
    figure = style.figure(420)
    figure.update_xaxes(title_text=unit(x).title)
    figure.update_yaxes(title_text=unit(y).title)
    for side, (colour, symbol, dash) in zip(sides, _LOOKS, strict=True):
        able = [p for p in side.points if p.kind == "front" and x in p.metrics]
        front = sorted(able, key=lambda p: p.metrics[x])
        rest = [p for p in side.rest.items if x in p.metrics]
        name = style.text(side.study.name, 28)
        marker = {"color": colour, "symbol": symbol}
        figure.add_scatter(
            **_places(rest, x, y),
            name=f"{name}, feasible",
            showlegend=False,
            mode="markers",
            marker={**marker, "size": 5, "opacity": 0.3},
        )
        figure.add_scatter(
            **_places(front, x, y),
            name=f"{name}, front",
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 1.5},
            marker={**marker, "size": 9},
        )
    return figure


def _places(points: Sequence[Point], x: str, y: str) -> dict[str, object]:
    return {
        "x": [p.metrics[x] * unit(x).scale for p in points],
        "y": [p.metrics[y] * unit(y).scale for p in points],
        "text": [
            f"<b>Trial {p.number}</b><br>{quantity(y, p.metrics[y])}<br>{quantity(x, p.metrics[x])}"
            for p in points
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }
