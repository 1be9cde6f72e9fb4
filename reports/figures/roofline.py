"""The roofline with the trials on it, and what the profiled ones spent their time on."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.roofline import Bottleneck, Ceiling, Roofline
from reports.numbers.units import number

_RING = {"symbol": "circle-open", "size": 18, "color": style.INK, "line": {"width": 2}}


def roofline_figure(numbers: Roofline) -> go.Figure | None:
    """Under the roof where bytes are known, under flat ceilings where they are not."""
    spots = numbers.spots.items
    if not spots:
        return None
    figure = style.figure(400, showlegend=False)
    unit, symbol = _unit(numbers)
    figure.update_yaxes(title_text=symbol or "share of the compute ceiling")
    if numbers.has_bytes:
        across = "intensity relative to the ridge" if numbers.is_relative else "FLOP per byte moved"
        figure.update_xaxes(title_text=across, type="log", dtick=1)
        figure.update_yaxes(type="log", dtick=1)
    else:
        figure.update_xaxes(title_text="trial", showgrid=False)
        figure.update_yaxes(rangemode="tozero")
    figure.add_scatter(
        name="trials",
        mode="markers",
        x=[s.number if s.intensity is None else float(f"{s.intensity:.6g}") for s in spots],
        y=[float(f"{s.rate * unit:.6g}") for s in spots],
        customdata=[s.number for s in spots],
        text=[f"{number(s.rate * unit, 3)} {symbol}" for s in spots],
        marker={"color": style.FRONT, "size": 7, "opacity": 0.7},
        hovertemplate="<b>Trial %{customdata}</b><br>%{text}<extra></extra>",
    )
    _roofs(figure, numbers, unit)
    figure.add_scatter(
        x=[], y=[], mode="markers", marker=_RING, name="selected", meta="selected", hoverinfo="skip"
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


def _unit(numbers: Roofline) -> tuple[float, str]:
    """Scale and symbol of the rates: a GPU's in TFLOP/s, a small CPU's in GFLOP/s."""
    if numbers.is_relative:
        return 1.0, ""
    most = max(spot.rate for spot in numbers.spots.items)
    return (1e-12, "TFLOP/s") if most >= 1e12 else (1e-9, "GFLOP/s")


def _profiled(spot: Bottleneck) -> str:
    return f"trial {spot.number}<br>{style.text(spot.bound, 20)}"


def _roofs(figure: go.Figure, numbers: Roofline, unit: float) -> None:
    roofs = [c for c in numbers.ceilings if not c.is_bandwidth]
    if numbers.is_relative:
        roofs = [Ceiling(name="ceiling", rate=1.0, is_bandwidth=False)]
    if not numbers.has_bytes:
        last = max(s.number for s in numbers.spots.items)
        for roof in roofs:
            _flat(figure, roof, unit, 0, max(1, last))
        return
    copy = max((c.rate for c in numbers.ceilings if c.is_bandwidth), default=1.0)
    xs = [s.intensity for s in numbers.spots.items if s.intensity is not None]
    top = max(roof.rate for roof in roofs)
    low, high = min([*xs, top / copy]) / 3, max([*xs, top / copy]) * 3
    middle = math.sqrt(low * top / copy)
    figure.add_scatter(
        name="copy",
        mode="lines+text",
        x=[low, middle, top / copy],
        y=[low * copy * unit, middle * copy * unit, top * unit],
        text=["", "copy ceiling ", ""],
        textposition="middle left",
        textfont={"size": 11, "color": style.MUTED},
        line={"color": style.MUTED, "width": 1.5},
        hoverinfo="skip",
    )
    for roof in roofs:
        _flat(figure, roof, unit, roof.rate / copy, high)


def _flat(figure: go.Figure, roof: Ceiling, unit: float, start: float, end: float) -> None:
    label = style.text(roof.name.replace("_", " "), 24)
    shown = f"{label} {number(roof.rate * unit, 3)}" if unit != 1.0 else label
    figure.add_scatter(
        name=label,
        mode="lines+text",
        x=[start, end],
        y=[roof.rate * unit, roof.rate * unit],
        text=["", shown],
        textposition="top left",
        textfont={"size": 11, "color": style.MUTED},
        line={"color": style.MUTED, "width": 1.5},
        hoverinfo="skip",
    )
