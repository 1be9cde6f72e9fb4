"""The waterfall from the baseline to the best."""

from __future__ import annotations

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.earned import Step, Waterfall
from reports.numbers.units import knob_value, percent, quantity, unit


def earned_figure(numbers: Waterfall) -> go.Figure:
    """Read from the top down; each name stands above its bar, so that phones have room for both."""
    steps, words = numbers.steps, unit(numbers.metric)
    rows = list(range(len(steps)))
    figure = style.rows_figure([_label(step, numbers.metric) for step in steps])
    figure.update_xaxes(title_text=words.title, rangemode="tozero")
    figure.add_bar(
        orientation="h",
        y=[row + 0.18 for row in rows],
        width=0.42,
        base=[min(s.start, s.end) * words.scale for s in steps],
        x=[abs(s.end - s.start) * words.scale for s in steps],
        marker={"color": [_colour(s, words.better) for s in steps]},
        hovertext=[_hover(s, numbers.metric) for s in steps],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return figure


def _label(step: Step, metric: str) -> str:
    if step.kind == "total":
        return f"<b>{style.text(step.label)}</b>  {quantity(metric, step.end)}"
    amount = _percent(step)
    if step.kind == "rest":
        return f"acting together  <b>{amount}</b>"
    change = style.text(f"{knob_value(step.baseline_value)} → {knob_value(step.value)}", 24)
    name = style.text(step.label, 34)
    return f"{name}  <span style='color:{style.MUTED}'>{change}</span>  <b>{amount}</b>"


def _percent(step: Step) -> str:
    return percent(step.ratio.median) if step.ratio else ""


def _colour(step: Step, better: str) -> str:
    if step.kind == "total":
        return style.FRONT if step.label == "best" else style.FEASIBLE
    if step.kind == "rest":
        return style.STROKE
    improves = (step.end > step.start) == (better != "min")
    return style.GAIN if improves else style.OVER


def _hover(step: Step, metric: str) -> str:
    if step.kind == "total":
        return f"<b>{style.text(step.label)}</b><br>{quantity(metric, step.end)}"
    if step.kind == "rest":
        return "What the changes gain or lose by acting together"
    change = f"{knob_value(step.baseline_value)} → {knob_value(step.value)}"
    lines = [f"<b>{style.text(step.label)}</b>", style.text(change)]
    if step.ratio is not None and step.ratio.low is not None and step.ratio.high is not None:
        lines.append(
            f"× {step.ratio.median:.3f} (from {step.ratio.low:.3f} to {step.ratio.high:.3f})"
        )
    return "<br>".join(lines)
