"""Predicted against measured, one square per metric."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.prediction import Prediction
from reports.numbers.units import quantity, unit


def prediction_figure(numbers: Prediction) -> go.Figure:
    """On the line the estimate was right."""
    words, pairs = unit(numbers.metric), numbers.pairs.items
    figure = style.figure(340, showlegend=False)
    figure.update_xaxes(title_text=f"measured {words.label.lower()} ({words.unit})", nticks=6)
    figure.update_yaxes(title_text="predicted", nticks=6)
    ends = [
        min(min(p.predicted, p.measured) for p in pairs) * words.scale,
        max(max(p.predicted, p.measured) for p in pairs) * words.scale,
    ]
    line = {"color": style.MUTED, "width": 1.5, "dash": "dash"}
    figure.add_scatter(x=ends, y=ends, mode="lines", line=line, hoverinfo="skip")
    figure.add_scatter(
        mode="markers",
        x=[float(f"{p.measured * words.scale:.6g}") for p in pairs],
        y=[float(f"{p.predicted * words.scale:.6g}") for p in pairs],
        customdata=[p.number for p in pairs],
        text=[
            f"predicted {quantity(numbers.metric, p.predicted)}<br>"
            f"measured {quantity(numbers.metric, p.measured)}<br>{100 * p.error:+.1f} %"
            for p in pairs
        ],
        marker={"color": style.FRONT, "size": 7, "opacity": 0.65},
        hovertemplate="<b>Trial %{customdata}</b><br>%{text}<extra></extra>",
    )
    return figure
