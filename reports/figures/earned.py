"""The waterfall from the baseline to the best."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.earned import Step, Waterfall
from reports.numbers.units import knob_value, quantity, unit


def earned_figure(numbers: Waterfall) -> go.Figure:
    """Horizontal, so that knob names have room; read from the top down."""
    steps, words = numbers.steps, unit(numbers.metric)
    figure = style.figure(84 + 34 * len(steps), showlegend=False, bargap=0.35)
    figure.update_xaxes(title_text=words.title, rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.add_bar(
        orientation="h",
        y=[_label(s) for s in steps],
        base=[min(s.start, s.end) * words.scale for s in steps],
        x=[abs(s.end - s.start) * words.scale for s in steps],
        marker={"color": [_colour(s, words.better) for s in steps]},
        text=[_amount(s, numbers.metric) for s in steps],
        textposition="auto",
        insidetextanchor="end",
        hovertext=[_hover(s, numbers.metric) for s in steps],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    figure.update_traces(textposition=[_place(s, steps) for s in steps], cliponaxis=False)
    return figure


def _label(step: Step) -> str:
    if step.kind == "rest":
        return "interplay"
    name = style.text(step.label, 34)
    return f"<b>{name}</b>" if step.kind == "total" else name


def _colour(step: Step, better: str) -> str:
    if step.kind == "total":
        return style.FRONT if step.label == "best" else style.FEASIBLE
    if step.kind == "rest":
        return style.STROKE
    improves = (step.end > step.start) == (better != "min")
    return style.GAIN if improves else style.OVER


def _place(step: Step, steps: tuple[Step, ...]) -> str:
    """Outside while there is room to the right of the bar, inside for the long ones."""
    widest = max(max(s.start, s.end) for s in steps)
    return "outside" if max(step.start, step.end) < 0.8 * widest else "auto"


def _amount(step: Step, metric: str) -> str:
    if step.kind == "total":
        return quantity(metric, step.end)
    if step.ratio is None:
        return ""
    return f"{100 * (step.ratio.median - 1):+.1f} %"


def _hover(step: Step, metric: str) -> str:
    if step.kind == "total":
        return f"<b>{style.text(step.label)}</b><br>{quantity(metric, step.end)}"
    if step.kind == "rest":
        return "What the changes gain or lose by acting together"
    change = f"{knob_value(step.baseline_value)} → {knob_value(step.value)}"
    lines = [f"<b>{style.text(step.label)}</b>", style.text(change)]
    if step.ratio is not None and step.ratio.low is not None and step.ratio.high is not None:
        lines.append(
            f"x {step.ratio.median:.3f} (from {step.ratio.low:.3f} to {step.ratio.high:.3f})"
        )
    return "<br>".join(lines)
