"""What it takes to get the same again: hardware, versions, seed, command, best.yaml."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from reports.numbers.answer import Answer
from reports.numbers.study import Interval, StudyData, mapping
from reports.numbers.units import duration, knob_value

_SECRET = ("token", "secret", "password", "passwd", "key", "credential", "auth")
_MASK = "(hidden)"


def facts(study: StudyData) -> list[tuple[str, str]]:
    """The study's own settings, as label and text."""
    spec, budget = study.spec, mapping(study.spec.get("budget"))
    rows = [
        ("Model", spec.get("model_name")),
        ("Task", f"{spec.get('task', '')} with runner {spec.get('runner', '')}"),
        ("Objectives", ", ".join(f"{o.metric} ({o.direction})" for o in study.objectives)),
        ("Limits", ", ".join(f"{x.metric} {x.op} {x.value:g}" for x in study.limits) or "none"),
        ("Budget", _budget(budget)),
        ("Strategy", spec.get("strategy")),
        ("Seed", spec.get("seed")),
        ("Workers", f"{spec.get('workers', 1)} x {spec.get('gpus_per_trial', 0)} GPUs"),
        ("Created", spec.get("created_at")),
        ("State", study.state),
    ]
    rows += [(f"Workload: {name}", value) for name, value in mapping(spec.get("workload")).items()]
    rows += [(f"Environment: {n}", v) for n, v in _masked(mapping(spec.get("environ"))).items()]
    return [(label, str(value)) for label, value in rows if value not in (None, "")]


def fingerprint(study: StudyData) -> list[tuple[str, str]]:
    """The machine and its versions, flattened to dotted names."""
    return list(_flat("", mapping(study.spec.get("fingerprint"))))


def command(study: StudyData) -> str:
    """The command line of the study, empty when it was not kept."""
    kept = mapping(study.spec.get("fingerprint")).get("command")
    if isinstance(kept, list):
        return shlex.join(map(str, kept))
    return str(kept or "")


def commands(study: StudyData) -> list[tuple[str, str]]:
    """What to type next, with a label each."""
    name = shlex.quote(study.name)
    following = [
        ("Export", f"autotune export {name} --format yaml -o best.yaml"),
        ("Measure again", "autotune measure best.yaml"),
        ("As shell", f"autotune export {name} --format shell"),
    ]
    if study.state != "finished":
        following.insert(0, ("Go on", f"autotune resume {name}"))
    return following


def best_yaml(study: StudyData, answer: Answer) -> str:
    """best.yaml as plain scalars, from what the study holds."""
    spec = study.spec
    print_ = mapping(spec.get("fingerprint"))
    first = next(iter(answer.gains), None)
    document: dict[str, Any] = {
        "model": spec.get("model_name"),
        "task": spec.get("task"),
        "runner": spec.get("runner"),
        "seed": spec.get("seed"),
        "configuration": dict(answer.configuration),
        "changed": dict(answer.changed),
        "measured": {m.metric: _plain(m.best) for m in answer.metrics if m.best},
        "baseline": {m.metric: _plain(m.common) for m in answer.metrics if m.common},
        "gain": _plain(first.ratio) if first else None,
        "verdict": first.verdict if first else answer.verdict,
        "versions": print_.get("versions"),
        "command": command(study) or None,
    }
    kept = {name: value for name, value in document.items() if value not in (None, {}, "")}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100)


def changed_yaml(answer: Answer) -> str:
    """Only the diff, as plain YAML."""
    return yaml.safe_dump(dict(answer.changed), sort_keys=False, allow_unicode=True)


def _plain(value: Interval | None) -> dict[str, float | int] | None:
    if value is None:
        return None
    fields = {"median": value.median, "low": value.low, "high": value.high, "n": value.n}
    return {name: number for name, number in fields.items() if number is not None}


def _budget(budget: Mapping[str, Any]) -> str:
    seconds, trials = budget.get("seconds"), budget.get("trials")
    parts = [duration(float(seconds))] if isinstance(seconds, int | float) else []
    parts += [f"{trials} trials"] if trials is not None else []
    return " or ".join(parts) or "unbounded"


def _masked(environ: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _MASK if any(word in name.lower() for word in _SECRET) else value
        for name, value in environ.items()
    }


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        shown = _masked(value)
        return [row for key, item in shown.items() for row in _flat(f"{prefix}.{key}", item)]
    if isinstance(value, list):
        if all(not isinstance(item, Mapping | list) for item in value):
            return [(prefix.lstrip("."), " ".join(map(str, value)))]
        rows = (_flat(f"{prefix}.{i}", item) for i, item in enumerate(value))
        return [row for some in rows for row in some]
    text = knob_value(value) if isinstance(value, bool | int | float) else str(value or "")
    return [(prefix.lstrip("."), text)] if text else []
