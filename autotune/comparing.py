"""Two studies held side by side, in plain data."""

from __future__ import annotations

from typing import Any

from autotune.study import Study
from autotune.summary import best_record, counts
from autotune.trial import TrialRecord


def compared(first: Study, second: Study) -> dict[str, Any]:
    """Best metrics with their ratio (second over first), and the knobs that differ."""
    bests = [best_record(first), best_record(second)]
    metrics = [dict(b.measurement.metrics) if b and b.measurement else {} for b in bests]
    return {
        "studies": [first.spec.name, second.spec.name],
        "trials": [len(first.records), len(second.records)],
        "counts": [counts(first), counts(second)],
        "same_machine": _machine(first) == _machine(second),
        "metrics": {
            name: {"first": a, "second": b, "ratio": b / a if a and b is not None else None}
            for name in sorted(metrics[0].keys() & metrics[1].keys())
            for a, b in [(metrics[0][name], metrics[1][name])]
        },
        "knobs": _differences(*bests),
    }


def _machine(study: Study) -> tuple[Any, ...]:
    fingerprint = study.spec.fingerprint
    return tuple(str(fingerprint.get(key)) for key in ("gpus", "host", "torch"))


def _differences(a: TrialRecord | None, b: TrialRecord | None) -> dict[str, dict[str, Any]]:
    first = a.spec.configuration if a else {}
    second = b.spec.configuration if b else {}
    return {
        name: {"first": first.get(name), "second": second.get(name)}
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The comparison for a person."""
    first, second = found["studies"]
    text = [f"{'':<36} {first[:28]:>28} {second[:28]:>28}  ratio"]
    for name, row in found["metrics"].items():
        cells = ["unknown" if row[k] is None else f"{row[k]:,.5g}" for k in ("first", "second")]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        text.append(f"{name:<36} {cells[0]:>28} {cells[1]:>28}  {ratio}")
    text += [
        f"{n:<36} {row['first']!s:>28} {row['second']!s:>28}" for n, row in found["knobs"].items()
    ]
    if not found["same_machine"]:
        text.append("measured on different machines: ratios also hold what the machines differ in")
    return text
