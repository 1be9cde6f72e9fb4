"""Bars of importance with their doubt."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.importance import Share


def importance_figure(shares: tuple[Share, ...]) -> go.Figure:
    """Top down, each name above its bar."""
    figure = style.rows_figure(
        [f"{style.text(s.knob, 40)}  <b>{100 * s.median:.1f} %</b>" for s in shares]
    )
    figure.update_xaxes(title_text="share of the explained variation (%)", rangemode="tozero")
    figure.add_bar(
        orientation="h",
        y=[row + 0.18 for row in range(len(shares))],
        width=0.36,
        x=[100 * s.median for s in shares],
        marker={"color": style.FRONT},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [100 * (s.high - s.median) for s in shares],
            "arrayminus": [100 * (s.median - s.low) for s in shares],
            "color": style.INK,
            "thickness": 1.2,
            "width": 3,
        },
        hovertext=[
            f"<b>{style.text(s.knob)}</b><br>{100 * s.median:.1f} % "
            f"(from {100 * s.low:.1f} to {100 * s.high:.1f})"
            for s in shares
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return figure
