"""The page of a playbook: which claims hold here, and by how much."""

from __future__ import annotations

import plotly.graph_objects as go

from reports import embed
from reports.figures import style
from reports.numbers.playbook import Playbook
from reports.page import environment

_SCRIPTS = ("page.js", "charts.js", "start.js")
_COLOURS = {"holds": style.GAIN, "partly": style.SIXTH, "does not hold here": style.FAILED}
_SYMBOLS = {"holds": "circle", "partly": "diamond", "does not hold here": "x"}


def render(playbook: Playbook) -> str:
    """The whole page as text."""
    figure = gains_figure(playbook)
    return (
        environment()
        .get_template("playbook.html.j2")
        .render(
            p=playbook,
            charts={"gains": embed.figure_data(figure)} if figure is not None else {},
            view={"dark": style.DARK, "units": {}},
            scripts=_SCRIPTS,
        )
    )


def gains_figure(playbook: Playbook) -> go.Figure | None:
    """The last arm of each claim over its first, with its interval; None when there is none."""
    rows = [
        (e, e.arms[-1])
        for e in playbook.entries
        if e.arms and e.arms[-1].ratio is not None and e.arms[-1].low and e.arms[-1].high
    ]
    if not rows:
        return None
    figure = style.figure(80 + 26 * len(rows))
    figure.update_xaxes(title_text="ratio over the first arm, above 1 is better", type="log")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    for verdict in dict.fromkeys(e.verdict for e, _ in rows):
        chosen = [(e, a) for e, a in rows if e.verdict == verdict]
        ratios = [a.ratio or 1.0 for _, a in chosen]
        figure.add_scatter(
            name=verdict,
            mode="markers",
            x=ratios,
            y=[style.text(f"{e.id} {e.technique}", 40) for e, _ in chosen],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(a.high or r) - r for (_, a), r in zip(chosen, ratios, strict=True)],
                "arrayminus": [r - (a.low or r) for (_, a), r in zip(chosen, ratios, strict=True)],
            },
            marker={
                "color": _COLOURS.get(verdict, style.FEASIBLE),
                "symbol": _SYMBOLS.get(verdict, "square"),
                "size": 10,
            },
            hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        )
    figure.add_vline(x=1.0, line={"color": style.STROKE, "width": 1})
    return figure
