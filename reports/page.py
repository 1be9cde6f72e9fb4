"""The page: numbers and charts put into the template, in the order in which a reader asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import plotly.graph_objects as go

from reports import embed
from reports.figures import style
from reports.figures.coordinates import coordinates_figure
from reports.figures.earned import earned_figure
from reports.figures.history import history_figure
from reports.figures.importance import importance_figure
from reports.figures.prediction import prediction_figure
from reports.figures.roofline import bottleneck_figure, roofline_figure
from reports.figures.timing import timing_figure
from reports.figures.trade import trade_figure
from reports.numbers import reproduce, units
from reports.numbers.answer import BASELINES, Answer, answer, baseline_trials
from reports.numbers.audit import audit
from reports.numbers.coordinates import Coordinates, coordinates
from reports.numbers.earned import Waterfall, waterfall
from reports.numbers.failures import failures, nearest_miss, totals, unknown_values
from reports.numbers.history import History, history
from reports.numbers.importance import Importance, importance
from reports.numbers.ladder import ladder
from reports.numbers.points import Point, counts, points
from reports.numbers.prediction import Prediction, predictions
from reports.numbers.roofline import Roofline, roofline
from reports.numbers.study import StudyData
from reports.numbers.table import table
from reports.numbers.thinning import Thinned, thin
from reports.numbers.timing import Timing, timing

MOST_POINTS = 2500
MOST_FAILURES = 4000
_SCRIPTS = ("page.js", "charts.js", "selection.js", "linked.js", "table.js", "start.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All that is drawn or said, computed once."""

    points: list[Point]
    drawn: Thinned[Point]
    axes: tuple[str, str]  # metrics across and up
    answer: Answer
    waterfall: Waterfall | None
    importance: Importance
    coordinates: Coordinates | None
    history: History
    timing: Timing | None
    roofline: Roofline | None
    predictions: list[Prediction]


def render(study: StudyData, *, strict: bool = False, best_yaml: str | None = None) -> str:
    """The whole page as text; ``best_yaml`` is what the export wrote, where there is one."""
    shown, left_out = without_over_limit(study) if strict else (study, 0)
    found = numbers(shown)
    audited = audit(shown)
    charts = {name: embed.figure_data(f) for name, f in figures(shown, found).items()}
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            study=shown,
            n=found,
            charts=charts,
            strict=strict,
            left_out=left_out,
            kinds=counts(found.points),
            bars=ladder(found.answer),
            miss=nearest_miss(shown),
            placed=_placed(found),
            done=len(study.trials),
            facts=reproduce.facts(shown),
            fingerprint=reproduce.fingerprint(shown),
            command=reproduce.command(shown),
            commands=reproduce.commands(shown),
            best_yaml=best_yaml or reproduce.best_yaml(shown, found.answer),
            changed_yaml=reproduce.changed_yaml(found.answer),
            failures=failures(shown),
            totals=totals(shown),
            unknown=unknown_values(shown),
            audit=audited,
            only_audit=bool(audited) and not found.points,
            trials=table(shown, shown.trials, found.points, found.answer),
            view=view_data(shown, found),
            scripts=_SCRIPTS,
        )
    )


def without_over_limit(study: StudyData) -> tuple[StudyData, int]:
    """The study less its COMPLETE trials over a limit, and how many those are."""
    kept = [t for t in study.trials if not (t.is_complete and study.broken_limits(t))]
    left_out = len(study.trials) - len(kept)
    return dataclasses.replace(study, trials=tuple(kept)), left_out


def numbers(study: StudyData) -> Numbers:
    """Everything the page needs, from the study alone."""
    found = points(study)
    weight = importance(study)
    concluded = answer(study, found)
    always = {t.number for t in baseline_trials(study).values()} | {concluded.best}
    return Numbers(
        points=found,
        drawn=drawn_points(found, always),
        axes=trade_axes(study, found),
        answer=concluded,
        waterfall=waterfall(study),
        importance=weight,
        coordinates=coordinates(study, found, weight, always),
        history=history(study),
        timing=timing(study),
        roofline=roofline(study),
        predictions=predictions(study),
    )


def drawn_points(found: Sequence[Point], always: set[int | None]) -> Thinned[Point]:
    """The points of the trade-off: failures are kept while a browser can carry them."""
    failed = sum(p.kind == "failed" for p in found)
    many = failed > MOST_FAILURES
    return thin(
        found,
        MOST_POINTS + (0 if many else failed),
        keep=lambda p: (
            p.kind == "front"
            or not always.isdisjoint(p.trials)
            or (p.kind == "failed" and not many)
        ),
        kept="the front, the best, the baselines" + ("" if many else ", every failure"),
    )


def trade_axes(study: StudyData, found: Sequence[Point]) -> tuple[str, str]:
    """The second objective across and the first one up; with one objective, what limits it."""
    goal = study.goal.metric
    wanted = [o.metric for o in study.objectives[1:]] + [lim.metric for lim in study.limits]
    wanted += ["peak_memory_bytes", "request_latency_ms_p99", "step_time_ms"]
    measured = dict.fromkeys(name for p in found for name in p.metrics)
    others = [name for name in [*wanted, *measured] if name != goal and name in measured]
    return (others[0] if others else goal), goal


def figures(study: StudyData, found: Numbers) -> dict[str, go.Figure]:
    """The charts that there are numbers for, by the name of their place."""
    goal = study.goal.metric
    if study.trials and not found.points:
        return {}  # an audit alone: it has a table, not a search
    drawn: dict[str, go.Figure | None] = {"trade": _trade(study, found)}
    if found.waterfall:
        drawn["earned"] = earned_figure(found.waterfall)
    if found.importance.shown:
        drawn["importance"] = importance_figure(found.importance.shown)
    if found.coordinates:
        drawn["coordinates"] = coordinates_figure(found.coordinates)
    if found.history.moments.items:
        drawn["history"] = history_figure(found.history, goal)
    if found.timing:
        drawn["timing"] = timing_figure(found.timing)
    if found.roofline:
        drawn["roofline"] = roofline_figure(found.roofline)
        drawn["bottleneck"] = bottleneck_figure(found.roofline)
    for i, prediction in enumerate(found.predictions):
        drawn[f"prediction-{i}"] = prediction_figure(prediction)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _trade(study: StudyData, found: Numbers) -> go.Figure:
    across, up = found.axes
    bases = baseline_trials(study)
    by_trial = {number: point for point in found.drawn.items for number in point.trials}
    marked = {
        name: point
        for name, t in bases.items()
        if (point := by_trial.get(t.number)) is not None and point.metrics
    }
    base = bases.get("common_practice") or bases.get("default")
    return trade_figure(
        found.drawn.items,
        x=across,
        y=up,
        limits=study.limits,
        baselines=marked,
        base=base.configuration if base else study.defaults,
        best=found.answer.best,
    )


def view_data(study: StudyData, found: Numbers) -> dict[str, Any]:
    """What the page's script needs beside the trials: axes to choose from, colours, knob order."""
    names = dict.fromkeys(name for p in found.drawn.items for name in p.metrics)
    asked = [o.metric for o in study.objectives] + [lim.metric for lim in study.limits]
    metrics = list(dict.fromkeys([*(m for m in asked if m in names), *names]))
    return {
        "dark": style.DARK,
        "over": style.OVER,
        "axes": found.axes,
        "units": {
            m: {"title": u.title, "label": u.label, "unit": u.unit, "scale": u.scale}
            for m in metrics
            if (u := units.unit(m))
        },
        "points": {
            "number": [p.number for p in found.drawn.items],
            "trials": [list(p.trials) for p in found.drawn.items if len(p.trials) > 1],
            "metrics": {
                m: [_rounded(p.metrics.get(m, p.predicted.get(m))) for p in found.drawn.items]
                for m in metrics
            },
        },
        "limits": [{"metric": x.metric, "value": x.value} for x in study.limits],
        "important": [s.knob for s in found.importance.shares[:8]],
        "baselines": BASELINES,
    }


def environment() -> jinja2.Environment:
    """Everything is escaped unless it was built as Markup here."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "data_block": embed.data_block,
        "quantity": units.quantity,
        "number": units.number,
        "knob_value": units.knob_value,
        "duration": units.duration,
        "percent": units.percent,
        "sign": units.sign,
    }
    made.globals |= {
        "unit": units.unit,
        "static": embed.static,
        "plotly_script": embed.plotly_script,
        "baseline_words": BASELINES,
    }
    return made


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def _placed(found: Numbers) -> int:
    """Failed points that can be drawn: the estimate said where they would have been."""
    return sum(
        p.kind == "failed" and all(axis in p.predicted for axis in found.axes)
        for p in found.drawn.items
    )
