"""Where the device time went, stage by stage."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.timing import Timing
from reports.numbers.units import duration

_NAMES = {"failed": "failed trials", "other": "start and checks", "warmup": "warm-up"}
_COLOURS = {
    "start": style.STROKE,
    "build": style.FEASIBLE,
    "compile": style.SIXTH,
    "warmup": style.FIFTH,
    "measure": style.FRONT,
    "profile": style.GAIN,
    "quality": style.OVER,
    "other": style.REST,
    "failed": style.FAILED,
}


def timing_figure(numbers: Timing) -> go.Figure:
    """Stacked bars of seconds: stages down, phases along."""
    figure = style.figure(100 + 36 * len(numbers.rows), barmode="stack", bargap=0.35)
    figure.update_layout(legend_traceorder="normal")
    figure.update_xaxes(title_text="seconds of trials", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    for i, phase in enumerate(numbers.phases):
        rows = [row for row in numbers.rows if phase in row.seconds]
        name = _NAMES.get(phase, phase)
        figure.add_bar(
            orientation="h",
            name=style.text(name),
            y=[style.text(row.stage) for row in rows],
            x=[round(row.seconds[phase], 3) for row in rows],
            text=[duration(row.seconds[phase]) for row in rows],
            textposition="none",
            marker={"color": _COLOURS.get(phase, style.CYCLE[i % len(style.CYCLE)])},
            hovertemplate=f"{style.text(name)}: %{{text}}<extra></extra>",
        )
    return figure
