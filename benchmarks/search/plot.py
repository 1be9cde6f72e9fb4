"""Gap against trials and against the cost of trials, as one HTML page that needs no network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.search.play import Game
from benchmarks.search.problem import Problem

_COLOURS = ("#1f77b4", "#d62728", "#7f7f7f", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2")
_POINTS = 60  # of a curve against time


def write(
    path: Path, problems: Sequence[Problem], games: Sequence[Sequence[Game]], trials: int
) -> None:
    """One row of two charts per problem; ``games`` holds all of a problem and a strategy."""
    names = list(dict.fromkeys(g[0].strategy for g in games))
    figure = make_subplots(
        rows=len(problems),
        cols=2,
        subplot_titles=[
            f"{p.name}: {what}"
            for p in problems
            for what in ("gap by trials", "gap by seconds of trials")
        ],
        vertical_spacing=min(0.08, 0.3 / len(problems)),
    )
    for row, problem in enumerate(problems, start=1):
        for played in (g for g in games if g[0].problem == problem.name):
            colour = _COLOURS[names.index(played[0].strategy) % len(_COLOURS)]
            _curves(figure, problem, played, trials, row, colour)
    figure.update_yaxes(type="log", title_text="gap to best, median over seeds")
    figure.update_layout(height=380 * len(problems), template="plotly_white")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)


def _curves(
    figure: go.Figure, problem: Problem, games: Sequence[Game], trials: int, row: int, colour: str
) -> None:
    counts = list(range(1, trials + 1))
    style = {"line": {"color": colour}, "name": games[0].strategy, "legendgroup": games[0].strategy}
    figure.add_trace(
        go.Scatter(x=counts, y=_medians(games, counts), showlegend=row == 1, **style),
        row=row,
        col=1,
    )
    if problem.typical_seconds:
        end = trials * problem.typical_seconds
        marks = [end * (i + 1) / _POINTS for i in range(_POINTS)]
        medians = [_drawn(statistics.median(g.gap_by(s) for g in games)) for s in marks]
        figure.add_trace(go.Scatter(x=marks, y=medians, showlegend=False, **style), row=row, col=2)


def _medians(games: Sequence[Game], counts: Sequence[int]) -> list[float | None]:
    return [_drawn(statistics.median(g.gap_at(n) for g in games)) for n in counts]


def _drawn(gap: float) -> float | None:
    """A log axis knows neither 0 nor infinity."""
    return None if gap == float("inf") else max(gap, 1e-4)
