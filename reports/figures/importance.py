"""Bars of importance with their doubt."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.importance import Importance

MOST_BARS = 15


def importance_figure(numbers: Importance) -> go.Figure:
    """The largest shares, top down."""
    shares = numbers.shares[:MOST_BARS]
    figure = style.figure(76 + 26 * len(shares), showlegend=False, bargap=0.35)
    figure.update_xaxes(title_text="share of the explained variation (%)", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.add_bar(
        orientation="h",
        y=[style.text(s.knob, 34) for s in shares],
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
