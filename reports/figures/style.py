"""Colours, symbols and the empty figure that all charts share; how outside text enters a chart."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

# Light colour -> its partner on a dark page. Charts are written with the light ones; the page
# swaps them. Hues keep apart for the common kinds of colour blindness, symbols differ as well.
DARK = {
    "#1b2733": "#e4eaf1",  # ink
    "#5c6b7a": "#9aa8b7",  # muted text
    "#dfe5eb": "#2a3542",  # grid
    "#cdd6df": "#3d4a58",  # the rest of a whole
    "#aab6c2": "#4d5c6c",  # axis lines, thin strokes
    "#0b62b8": "#6fb3ff",  # front, best
    "#8ba0b6": "#7388a0",  # feasible
    "#c05f00": "#f2a65a",  # over a limit
    "#a12a66": "#f08fbf",  # failed
    "#0b7d6b": "#45c8b0",  # gain
    "#7a5cc4": "#b49cf5",  # fifth hue
    "#b58900": "#e5c558",  # sixth hue
    "#ffffff": "#18212b",  # the card
}
REST = "#cdd6df"
INK, MUTED, GRID, STROKE = "#1b2733", "#5c6b7a", "#dfe5eb", "#aab6c2"
FRONT, FEASIBLE, OVER, FAILED = "#0b62b8", "#8ba0b6", "#c05f00", "#a12a66"
GAIN, FIFTH, SIXTH, CARD = "#0b7d6b", "#7a5cc4", "#b58900", "#ffffff"
CYCLE = (FRONT, SIXTH, GAIN, FIFTH, OVER, FAILED, FEASIBLE, STROKE, INK)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def figure(height: int, **layout: Any) -> go.Figure:
    """An empty figure in the house style; the page makes it as wide as its place."""
    base: dict[str, Any] = {
        "template": "none",
        "height": height,
        "autosize": True,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": INK},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "hovermode": "closest",
        "uirevision": "kept",
    }
    drawn = go.Figure(layout={**base, **layout})
    line = {"gridcolor": GRID, "linecolor": STROKE, "zeroline": False, "automargin": True}
    title = {"standoff": 8, "font": {"color": MUTED, "size": 12}}
    drawn.update_xaxes(**line, title=title)
    drawn.update_yaxes(**line, title=title)
    return drawn


def text(value: object, longest: int = 80) -> str:
    """Outside text for a chart: shown as it is, whatever it holds.

    Charts read a few HTML tags and entities; control characters for the direction of writing are
    kept from running on by an isolate.
    """
    plain = " ".join(str(value).split())
    if len(plain) > longest:
        half = (longest - 1) // 2
        plain = f"{plain[:half]}…{plain[-half:]}"
    if not plain.isascii():
        plain = f"\u2068{plain}\u2069"
    return html.escape(plain, quote=False)


def wrapped_name(knob: str, longest: int = 20) -> str:
    """A dotted knob name in two lines, so that neighbouring labels do not meet."""
    head, dot, tail = knob.rpartition(".")
    if not dot:
        return text(knob, longest)
    return f"{text(head, longest)}.<br>{text(tail, longest)}"


def rows_figure(labels: Sequence[str]) -> go.Figure:
    """An empty figure of rows, one bar each below a label of its own."""
    count = len(labels)
    margin = {"l": 8, "r": 16, "t": 8, "b": 48}
    drawn = figure(72 + 40 * count, showlegend=False, margin=margin)
    drawn.update_yaxes(visible=False, range=[count - 0.45, -0.6], fixedrange=True)
    place = {"x": 0, "xref": "paper", "xanchor": "left", "showarrow": False}
    font = {"size": 12, "color": INK}
    drawn.update_layout(
        annotations=[
            {**place, "y": row - 0.26, "text": label, "font": font}
            for row, label in enumerate(labels)
        ]
    )
    return drawn
