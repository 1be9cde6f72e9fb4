"""The roofline with the trials on it, and what the profiled ones spent their time on."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.roofline import Bottleneck, Roofline
from reports.numbers.units import number


def roofline_figure(numbers: Roofline) -> go.Figure | None:
    """None when no trial says both its FLOP and its bytes."""
    spots = numbers.spots.items
    if not spots:
        return None
    figure = style.figure(400, showlegend=False)
    unit = 1.0 if numbers.is_relative else 1e-12
    title = "share of the compute ceiling" if numbers.is_relative else "TFLOP/s"
    symbol = "" if numbers.is_relative else " TFLOP/s"
    across = "intensity relative to the ridge" if numbers.is_relative else "FLOP per byte moved"
    figure.update_xaxes(title_text=across, type="log", dtick=1)
    figure.update_yaxes(title_text=title, type="log", dtick=1)
    figure.add_scatter(
        name="trials",
        mode="markers",
        x=[float(f"{s.intensity:.6g}") for s in spots],
        y=[float(f"{s.rate * unit:.6g}") for s in spots],
        customdata=[s.number for s in spots],
        text=[f"{number(s.rate * unit, 3)}{symbol}" for s in spots],
        marker={"color": style.FRONT, "size": 7, "opacity": 0.7},
        hovertemplate="<b>Trial %{customdata}</b><br>%{text}<extra></extra>",
    )
    _roofs(figure, numbers, unit)
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


def bottleneck_figure(numbers: Roofline) -> go.Figure | None:
    """Shares of time by class of kernel, one bar per profiled trial."""
    profiled = [b for b in numbers.bottlenecks if b.shares]
    if not profiled:
        return None
    figure = style.figure(110 + 44 * len(profiled), barmode="stack", bargap=0.35)
    figure.update_layout(legend_traceorder="normal")
    figure.update_xaxes(title_text="share of the profiled time (%)", range=[0, 100])
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    for i, name in enumerate(dict.fromkeys(k for b in profiled for k in b.shares)):
        rows = [b for b in profiled if name in b.shares]
        figure.add_bar(
            orientation="h",
            name=style.text(name, 24),
            y=[_profiled(b) for b in rows],
            x=[round(100 * b.shares[name], 2) for b in rows],
            marker={"color": style.CYCLE[i % len(style.CYCLE)]},
            hovertemplate=f"{style.text(name)}: %{{x:.1f}} %<extra></extra>",
        )
    return figure


def _roofs(figure: go.Figure, numbers: Roofline, unit: float) -> None:
    xs = [s.intensity for s in numbers.spots.items]
    if numbers.is_relative:
        roofs, copy = [("ceiling", 1.0)], 1.0
    else:
        roofs = [(c.name, c.rate) for c in numbers.ceilings if not c.is_bandwidth]
        copy = max(c.rate for c in numbers.ceilings if c.is_bandwidth)
    ridge = max(rate for _, rate in roofs) / copy
    low, high = min([*xs, ridge]) / 3, max([*xs, ridge]) * 3
    top = max(rate for _, rate in roofs)
    line = {"color": style.MUTED, "width": 1.5}
    figure.add_scatter(
        name="copy ceiling",
        mode="lines+text",
        text=["copy", ""],
        textposition="bottom right",
        textfont={"size": 11, "color": style.MUTED},
        line=line,
        x=[low, top / copy],
        y=[low * copy * unit, top * unit],
        hoverinfo="skip",
        showlegend=False,
    )
    for name, rate in roofs:
        label = style.text(name.replace("_", " "), 24)
        shown = "" if numbers.is_relative else f" {number(rate * unit, 3)}"
        figure.add_scatter(
            name=label,
            mode="lines+text",
            line=line,
            x=[rate / copy, high],
            y=[rate * unit, rate * unit],
            text=["", f"{label}{shown}"],
            textposition="top left",
            textfont={"size": 11, "color": style.MUTED},
            hoverinfo="skip",
            showlegend=False,
        )


def _profiled(spot: Bottleneck) -> str:
    return f"trial {spot.number}<br>{style.text(spot.bound, 20)}"
