"""All trials as columns: what the table, the linked selection and the CSV file are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.numbers import encoding, failures
from reports.numbers.answer import Answer, baseline_trials
from reports.numbers.points import Point
from reports.numbers.study import StudyData, Trial

# Samples are kept for the trials that a reader will ask about, and for others while they fit.
_MOST_SAMPLES = 60_000
_MOST_SAMPLES_EACH = 200
_MOST_DETAIL = 1_500_000
_MOST_DETAIL_EACH = 2_000


def table(
    study: StudyData, trials: Sequence[Trial], points: Sequence[Point], answer: Answer
) -> dict[str, Any]:
    """Columns of equal length; texts that repeat are kept once and referred to by index."""
    kinds = {n: p.kind for p in points for n in p.trials}
    varying = encoding.varying(trials)
    metrics = list(dict.fromkeys(_first_metrics(study, trials)))
    return {
        "study": study.name,
        "number": [t.number for t in trials],
        "stage": _coded([t.stage for t in trials]),
        "status": _coded([t.status for t in trials]),
        "kind": _coded([kinds.get(t.number, "") for t in trials]),
        "depth": _coded([_depth(t) for t in trials]),
        "seconds": [round(t.wall_seconds, 3) for t in trials],
        "metrics": {m: [_short(t.metrics.get(m)) for t in trials] for m in metrics},
        "knobs": {k: _coded([t.configuration.get(k) for t in trials]) for k in varying},
        "constant": _constant(trials, varying),
        "reason": _coded([_said(t) for t in trials]),
        "detail": _details(trials),
        "folder": _folders(trials),
        "samples": _samples(trials, kinds),
        "notices": {t.number: list(t.notices) for t in trials if t.notices},
        "best": answer.best,
        "baselines": _baselines(study),
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in study.objectives],
        "limits": [{"metric": x.metric, "op": x.op, "value": x.value} for x in study.limits],
    }


def _first_metrics(study: StudyData, trials: Sequence[Trial]) -> list[str]:
    asked = [o.metric for o in study.objectives] + [lim.metric for lim in study.limits]
    return [*asked, *dict.fromkeys(name for t in trials for name in t.metrics)]


def _coded(values: Sequence[Any]) -> dict[str, Any]:
    """Distinct values once, and the index of each row's; None is -1."""
    codes: dict[tuple[type, Any], int] = {}
    index = [
        -1 if value is None else codes.setdefault((type(value), value), len(codes))
        for value in values
    ]
    return {"values": [value for _, value in codes], "index": index}


def _short(value: float | None) -> float | int | None:
    if value is None:
        return None
    rounded = float(f"{value:.9g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _depth(trial: Trial) -> str:
    return "full" if trial.is_full_depth else "slices " + "+".join(map(str, trial.depths))


def _said(trial: Trial) -> str | None:
    return None if trial.is_complete else failures.first_line(trial)[:300]


def _details(trials: Sequence[Trial]) -> dict[str, Any]:
    """The last lines of failed trials' logs, equal ones once, while they fit."""
    room = _MOST_DETAIL
    known: set[str] = set()
    kept: list[str | None] = []
    for trial in trials:
        text = trial.detail[-_MOST_DETAIL_EACH:] or None
        if text is not None and text not in known:
            room -= len(text)
            text = text if room >= 0 else None
        if text is not None:
            known.add(text)
        kept.append(text)
    return _coded(kept)


def _constant(trials: Sequence[Trial], varying: Sequence[str]) -> dict[str, Any]:
    moving = set(varying)
    first = trials[0].configuration if trials else {}
    return {name: value for name, value in first.items() if name not in moving}


def _folders(trials: Sequence[Trial]) -> dict[str, Any]:
    """Paths share their parent: kept once, with the last part by row."""
    return {
        "parent": _coded([t.folder.rpartition("/")[0] for t in trials]),
        "name": [t.folder.rpartition("/")[2] for t in trials],
    }


def _baselines(study: StudyData) -> dict[str, dict[str, Any]]:
    found = {name: dict(t.configuration) for name, t in baseline_trials(study).items()}
    if "default" not in found and study.defaults:
        found["default"] = dict(study.defaults)
    return found


def _samples(
    trials: Sequence[Trial], kinds: Mapping[int, str]
) -> dict[str, dict[str, list[float]]]:
    """By trial number and metric. Front, baselines and final stage come first in the budget."""
    wanted = ("default", "preset", "final", "ablation", "neighbour")
    order = sorted(
        (t for t in trials if t.samples),
        key=lambda t: (kinds.get(t.number) != "front", t.stage not in wanted, t.number),
    )
    kept: dict[str, dict[str, list[float]]] = {}
    room = _MOST_SAMPLES
    for trial in order:
        some = {n: list(v[:_MOST_SAMPLES_EACH]) for n, v in trial.samples.items() if v}
        room -= sum(map(len, some.values()))
        if room < 0:
            break
        kept[str(trial.number)] = {n: [float(f"{x:.7g}") for x in v] for n, v in some.items()}
    return kept
