"""What a study says, in words and in plain data: for terminals, --json and the service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from autotune.study import Comparison, Interval, Study
from autotune.trial import Status, TrialRecord, to_json


def best_record(study: Study) -> TrialRecord | None:
    """The feasible record with the best first objective; of the final stage where there is one."""
    objective = study.spec.objectives[0]
    feasible = [r for r in study.records if study.is_feasible(r)]
    if study.outcome is not None and study.outcome.best is not None:
        chosen = [r for r in study.records if r.spec.number == study.outcome.best]
        feasible = chosen or feasible
    return min(
        feasible,
        key=lambda r: (r.metric(objective.metric) or 0.0) * objective.sign,
        default=None,
    )


def counts(study: Study) -> dict[str, int]:
    """Trials by status, most frequent first."""
    return dict(Counter(str(r.status) for r in study.records).most_common())


def nearest_miss(study: Study) -> str:
    """The limit that binds, and how near the nearest trial came to it; empty when not that."""
    best: tuple[float, str] | None = None
    for record in study.records:
        if record.status is not Status.COMPLETE:
            continue
        for limit in study.spec.limits:
            value = record.metric(limit.metric)
            if value is not None and not limit.is_met(value):
                excess = limit.excess(value)
                text = f"{limit} is missed by trial {record.spec.number} with {value:,.4g}"
                if best is None or excess < best[0]:
                    best = (excess, text)
    return best[1] if best else ""


def summary(study: Study) -> dict[str, Any]:
    """The study in plain data, without its records."""
    best = best_record(study)
    return {
        "study": study.spec.name,
        "model": study.spec.model_name,
        "task": study.spec.task,
        "runner": study.spec.runner,
        "state": study.state,
        "trials": len(study.records),
        "trials_planned": study.spec.budget.trials,
        "counts": counts(study),
        "best_trial": best.spec.number if best else None,
        "best": dict(best.measurement.metrics) if best and best.measurement else {},
        "nearest_miss": nearest_miss(study) if best is None else "",
        "outcome": to_json(study.outcome),
    }


def summary_lines(study: Study) -> list[str]:
    """The study for a person: the answer first, then what happened."""
    lines = [""]
    outcome = study.outcome
    if outcome is not None and outcome.verdict:
        lines.append(outcome.verdict)
    if outcome is not None:
        lines += [_comparison_line(c) for c in outcome.comparisons]
        lines += [f"    {name}: {value}" for name, value in outcome.changed.items()]
    if (best := best_record(study)) is None:
        lines.append(f"nothing feasible among {len(study.records)} trials")
        lines += [miss for miss in [nearest_miss(study)] if miss]
    elif outcome is None or not outcome.comparisons:
        objective = study.spec.objectives[0]
        value = best.metric(objective.metric)
        lines.append(f"best so far: trial {best.spec.number}, {objective.metric} {value:,.4g}")
    by_status = ", ".join(f"{n} {status}" for status, n in counts(study).items())
    lines.append(f"{len(study.records)} trials: {by_status}")
    if outcome is not None and outcome.stopped_because:
        lines.append(f"stopped because: {outcome.stopped_because}")
    return lines


def _comparison_line(comparison: Comparison) -> str:
    gain = comparison.gain
    return (
        f"  {gain.median:.3f} x {comparison.baseline.replace('_', ' ')} "
        f"[{gain.low:.3f}, {gain.high:.3f}], n={gain.n}: {comparison.verdict}"
    )


def interval_text(interval: Interval) -> str:
    """``14,240 [14,100, 14,300], n=5``"""
    return f"{interval.median:,.5g} [{interval.low:,.5g}, {interval.high:,.5g}], n={interval.n}"


def metric_table(metrics: Mapping[str, float | None]) -> list[str]:
    """One aligned line per metric; unknown values say so."""
    width = max((len(name) for name in metrics), default=0)
    return [
        f"  {name:<{width}}  {'unknown' if value is None else f'{value:,.6g}'}"
        for name, value in sorted(metrics.items())
    ]
