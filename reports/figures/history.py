"""The search over its trials."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.history import STAGES, History
from reports.numbers.units import quantity, unit

_LOOKS = {
    "default": ("square", style.INK),
    "preset": ("diamond", style.INK),
    "screening": ("circle-open", style.SIXTH),
    "search": ("circle", style.FEASIBLE),
    "refine": ("triangle-up", style.FIFTH),
    "final": ("star", style.GAIN),
    "ablation": ("cross", style.OVER),
    "neighbour": ("diamond-open", style.FAILED),
    "canary": ("square-open", style.INK),
}


def history_figure(numbers: History, metric: str) -> go.Figure:
    """Points by stage, infeasible ones faint, and the best so far as a staircase."""
    figure, words = style.figure(380), unit(metric)
    figure.update_xaxes(title_text="trial", showgrid=False)
    figure.update_yaxes(title_text=words.title)
    present = dict.fromkeys(m.stage for m in numbers.moments.items)
    for stage in [*(s for s in STAGES if s in present), *(s for s in present if s not in STAGES)]:
        group = [m for m in numbers.moments.items if m.stage == stage]
        symbol, colour = _LOOKS.get(stage, ("hexagon", style.FAILED))
        figure.add_scatter(
            name=style.text(stage),
            mode="markers",
            x=[m.number for m in group],
            y=[float(f"{(m.value or 0.0) * words.scale:.7g}") for m in group],
            customdata=[m.number for m in group],
            text=[
                quantity(metric, m.value) + ("" if m.is_feasible else " · over a limit")
                for m in group
            ],
            marker={
                "symbol": symbol,
                "color": colour,
                "size": 7,
                "opacity": [0.9 if m.is_feasible else 0.3 for m in group],
            },
            hovertemplate="<b>Trial %{x}</b><br>%{text}<extra></extra>",
        )
    if numbers.best:
        figure.add_scatter(
            name="best so far",
            mode="lines",
            x=[n for n, _ in numbers.best],
            y=[v * words.scale for _, v in numbers.best],
            line={"color": style.FRONT, "width": 2, "shape": "hv"},
            hoverinfo="skip",
        )
    ring = {"symbol": "circle-open", "size": 18, "color": style.INK, "line": {"width": 2}}
    figure.add_scatter(
        x=[],
        y=[],
        mode="markers",
        marker=ring,
        name="selected",
        meta="selected",
        showlegend=False,
        hoverinfo="skip",
    )
    return figure
