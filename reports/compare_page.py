"""The page of two studies."""

from __future__ import annotations

import plotly.graph_objects as go

from reports import embed
from reports.figures import style
from reports.figures.compare import fronts_figure, race_figure
from reports.numbers.compare import Compared, compare
from reports.numbers.study import StudyData
from reports.page import environment, trade_axes

_SCRIPTS = ("page.js", "charts.js", "start.js")


def render(first: StudyData, second: StudyData) -> str:
    """The whole page as text."""
    found = compare(first, second)
    charts = {name: embed.figure_data(f) for name, f in _figures(found).items()}
    return (
        environment()
        .get_template("compare.html.j2")
        .render(
            c=found,
            charts=charts,
            statuses=list(dict.fromkeys([*found.first.totals, *found.second.totals])),
            view={"dark": style.DARK, "units": {}},
            scripts=_SCRIPTS,
        )
    )


def _figures(found: Compared) -> dict[str, go.Figure]:
    sides = (found.first, found.second)
    first, second = found.first.study, found.second.study
    if first.goal != second.goal:
        return {}
    figures = {}
    if any(side.history.best for side in sides):
        figures["race"] = race_figure(sides, first.goal.metric)
    across = trade_axes(first, found.first.points)
    if across == trade_axes(second, found.second.points) and across[0] != across[1]:
        figures["fronts"] = fronts_figure(sides, *across)
    return figures
