"""The trade-off chart: front, the rest, what breaks a limit, what failed where it was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from reports.figures import style
from reports.numbers.points import Point
from reports.numbers.study import Limit
from reports.numbers.units import knob_value, quantity, sign, unit

_MOST_CHANGES = 6


def trade_figure(
    drawn: Sequence[Point],
    *,
    x: str,
    y: str,
    limits: Sequence[Limit],
    baselines: Mapping[str, Point],
    base: Mapping[str, object],
    best: int | None,
) -> go.Figure:
    """``base`` is the configuration that the hover texts show the difference to."""
    figure = style.figure(500, showlegend=False)
    figure.update_xaxes(title_text=unit(x).title)
    figure.update_yaxes(title_text=unit(y).title)
    for name, kind, marker in _LOOKS:
        group = [p for p in drawn if p.kind == kind]
        if kind == "failed":
            group = [p for p in group if x in p.predicted and y in p.predicted]
        _scatter(figure, group, name=name, x=x, y=y, marker=marker, base=base)
    _front_line(figure, drawn, x=x, y=y)
    marks = [("common_practice", "common practice", "diamond"), ("default", "upstream", "square")]
    for key, name, symbol in marks:
        if point := baselines.get(key):
            marker = {"symbol": symbol, "size": 12, "color": style.INK}
            _scatter(figure, [point], name=name, x=x, y=y, marker=marker, base=base)
    star = [p for p in drawn if best in p.trials]
    marker = {"symbol": "star", "size": 17, "color": style.GAIN}
    _scatter(figure, star, name="best", x=x, y=y, marker=marker, base=base)
    _draw_limits(figure, limits, x=x, y=y)
    ring = {"symbol": "circle-open", "size": 20, "color": style.INK, "line": {"width": 2}}
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


_CROSS = {"width": 1.5, "color": style.FAILED}
# In drawing order: what matters most comes last and lies on top.
_LOOKS = (
    ("failed", "failed", {"symbol": "x-thin", "size": 7, "opacity": 0.6, "line": _CROSS}),
    ("feasible", "feasible", {"symbol": "circle", "size": 7, "color": style.FEASIBLE}),
    ("over a limit", "over_limit", {"symbol": "triangle-up-open", "size": 9, "color": style.OVER}),
    ("front", "front", {"symbol": "circle", "size": 10, "color": style.FRONT}),
)


def _scatter(
    figure: go.Figure,
    group: Sequence[Point],
    *,
    name: str,
    x: str,
    y: str,
    marker: Mapping[str, object],
    base: Mapping[str, object],
) -> None:
    if not group:
        return
    figure.add_scatter(
        name=name,
        meta=name,
        mode="markers",
        x=[_value(p, x) for p in group],
        y=[_value(p, y) for p in group],
        text=[hover(p, (y, x), base) for p in group],
        customdata=[p.number for p in group],
        marker=dict(marker),
        hovertemplate="%{text}<extra></extra>",
    )


def hover(point: Point, metrics: Sequence[str], base: Mapping[str, object]) -> str:
    """Trial, metrics, and the difference to the baseline, as chart text."""
    state = "" if point.kind != "failed" else f" · {style.text(point.status)}"
    repeats = f" ({len(point.trials)} repeats)" if len(point.trials) > 1 else ""
    lines = [f"<b>Trial {point.number}</b>{repeats} · {style.text(point.stage)}{state}"]
    source = point.metrics or point.predicted
    word = "" if point.metrics else "predicted "
    lines += [f"{word}{unit(m).label}: {quantity(m, source.get(m))}" for m in metrics]
    changed = [
        (name, value)
        for name, value in point.configuration.items()
        if (base.get(name), type(base.get(name))) != (value, type(value))
    ]
    shown = changed[:_MOST_CHANGES]
    lines += [f"{style.text(n, 40)} = {style.text(knob_value(v), 30)}" for n, v in shown]
    if len(changed) > _MOST_CHANGES:
        lines.append(f"and {len(changed) - _MOST_CHANGES} more")
    return "<br>".join(lines)


def _value(point: Point, metric: str) -> float | None:
    source = point.metrics or point.predicted
    value = source.get(metric)
    return None if value is None else float(f"{value * unit(metric).scale:.7g}")


def _front_line(figure: go.Figure, drawn: Sequence[Point], *, x: str, y: str) -> None:
    front = sorted(
        (p for p in drawn if p.kind == "front" and x in p.metrics and y in p.metrics),
        key=lambda p: (p.metrics[x], p.metrics[y]),
    )
    if len(front) > 1:
        figure.add_scatter(
            name="front line",
            meta="front line",
            mode="lines",
            x=[_value(p, x) for p in front],
            y=[_value(p, y) for p in front],
            line={"color": style.FRONT, "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
        )


def _draw_limits(figure: go.Figure, limits: Sequence[Limit], *, x: str, y: str) -> None:
    for limit in limits:
        words = unit(limit.metric)
        amount = f"{sign(limit.op)} {quantity(limit.metric, limit.value)}"
        label = f"limit {style.text(amount)}"
        line = {"color": style.OVER, "width": 1.5, "dash": "dash"}
        note = {"text": label, "font": {"color": style.OVER, "size": 11}}
        if limit.metric == x:
            figure.add_vline(x=limit.value * words.scale, line=line, annotation=note)
        elif limit.metric == y:
            figure.add_hline(y=limit.value * words.scale, line=line, annotation=note)
