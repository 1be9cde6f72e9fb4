"""One knob, rule or preset between YAML and its type; unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune import requirement
from autotune.requirement import BadRequirement, Requirement
from autotune.space import (
    Choices,
    Domain,
    Floats,
    Integers,
    Knob,
    Rule,
    SpaceError,
    nearest,
)
from autotune.yaml_lines import line_of

_FILE_KEYS = ("knobs", "rules", "name", "summary")
_KNOB_KEYS = (
    "integers", "floats", "choices", "default", "apply", "when", "needs", "scope", "restart",
    "affects", "risk", "prior", "workload", "summary", "source",
)  # fmt: skip
_APPLY = ("env", "torch", "argument", "engine", "export")
_RESTART = ("process", "rebuild", "none")
_RISK = ("none", "numerics", "quality")
_SCOPE = ("train", "serve", "toy", "command")
_ALWAYS = requirement.parse("true")


def knobs_of(document: Mapping[str, Any], name: str) -> tuple[list[Knob], list[Rule]]:
    """Every knob and rule of a loaded file."""
    _only(document, _FILE_KEYS, name)
    knobs = _mapping(document.get("knobs", {}), f"{name}: knobs")
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise SpaceError(f"{name}:{line_of(document, 'rules')}: rules should be a list")
    return (
        [knob_of(str(n), body, f"{name}:{line_of(knobs, n)}") for n, body in knobs.items()],
        [rule_of(rule, name) for rule in rules],
    )


def knob_of(name: str, body: Any, where: str) -> Knob:
    """A knob from its YAML mapping."""
    fields = _mapping(body, f"{where}: {name}")
    _only(fields, _KNOB_KEYS, where.rpartition(":")[0], name)
    domain = _domain(fields, f"{where}: {name}")
    if "default" not in fields:
        raise SpaceError(f"{where}: {name} needs a default")
    default = _literal(fields["default"], f"{where}: default of {name}")
    if isinstance(domain, Floats) and isinstance(default, int) and not isinstance(default, bool):
        default = float(default)
    apply = _mapping(fields.get("apply", {"argument": name}), f"{where}: apply of {name}")
    _only(apply, _APPLY, where.rpartition(":")[0], name)
    return Knob(
        name=name,
        domain=domain,
        default=default,
        apply={str(k): str(v) for k, v in apply.items()},
        summary=str(fields.get("summary", "")),
        when=_requirement(fields.get("when"), f"{where}: when of {name}"),
        needs=_words(fields, "needs", None, where),
        scope=_words(fields, "scope", _SCOPE, where) or ("train", "serve", "command"),
        restart=_word(fields, "restart", _RESTART, "rebuild", where),
        affects=_words(fields, "affects", None, where),
        risk=_word(fields, "risk", _RISK, "none", where),
        prior=tuple(_member(v, domain, name, where) for v in fields.get("prior", ())),
        workload=bool(fields.get("workload", False)),
        source=str(fields.get("source", "")),
    )


def _member(value: Any, domain: Domain, name: str, where: str) -> Any:
    if value not in domain:
        raise SpaceError(f"{where}: prior {value!r} of {name} is outside {domain}")
    return value


def rule_of(body: Any, name: str) -> Rule:
    """A ``require:`` sentence with its reason."""
    fields = _mapping(body, f"{name}: a rule")
    _only(fields, ("require", "reason"), name)
    parsed = _requirement(fields.get("require"), f"{name}:{line_of(fields, 'require')}: require")
    if parsed is None:
        raise SpaceError(f"{name}: a rule needs 'require'")
    return Rule(requirement=parsed, reason=str(fields.get("reason", "")))


def presets_of(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Presets of a file: name, task, summary, when, configuration."""
    _only(document, ("presets",), name)
    found = []
    presets = _mapping(document.get("presets", {}), f"{name}: presets")
    for preset, body in presets.items():
        where = f"{name}:{line_of(presets, preset)}"
        fields = _mapping(body, f"{where}: {preset}")
        _only(fields, ("task", "summary", "when", "configuration"), name, str(preset))
        configuration = _mapping(fields.get("configuration", {}), f"{where}: configuration")
        found.append(
            {
                "name": str(preset),
                "task": str(fields.get("task", "train")),
                "summary": str(fields.get("summary", "")),
                "when": _requirement(fields.get("when"), f"{where}: when") or _ALWAYS,
                "configuration": {str(k): _literal(v, where) for k, v in configuration.items()},
            }
        )
    return found


def dump_knob(knob: Knob) -> dict[str, Any]:
    """Plain data that ``restore_knob`` reads."""
    domain: dict[str, Any]
    match knob.domain:
        case Integers(low=low, high=high, step=step, factor=factor):
            size = {"factor": factor} if factor is not None else {"step": step}
            domain = {"integers": {"low": low, "high": high, **size}}
        case Floats(low=flow, high=fhigh, step=fstep, log=log):
            domain = {"floats": {"low": flow, "high": fhigh, "log": log}}
            if fstep is not None:
                domain["floats"]["step"] = fstep
        case Choices(values=values):
            domain = {"choices": list(values)}
    return {
        "name": knob.name,
        **domain,
        "default": knob.default,
        "apply": dict(knob.apply),
        **({"when": knob.when.text} if knob.when else {}),
        "needs": list(knob.needs),
        "scope": list(knob.scope),
        "restart": knob.restart,
        "affects": list(knob.affects),
        "risk": knob.risk,
        "prior": list(knob.prior),
        "workload": knob.workload,
        "summary": knob.summary,
        "source": knob.source,
    }


def restore_knob(data: Mapping[str, Any]) -> Knob:
    """A knob from stored data."""
    fields = dict(data)
    name = str(fields.pop("name"))
    return knob_of(name, fields, "stored study:0")


def _domain(fields: Mapping[str, Any], where: str) -> Domain:
    given = [k for k in ("integers", "floats", "choices") if k in fields]
    if len(given) != 1:
        raise SpaceError(f"{where} needs exactly one of integers, floats, choices")
    body = fields[given[0]]
    if given[0] == "choices":
        if not isinstance(body, list) or not body:
            raise SpaceError(f"{where}: choices should be a list of values")
        values = tuple(_literal(v, where) for v in body)
        if len({(type(v), v) for v in values}) < len(values):
            raise SpaceError(f"{where}: a choice stands twice")
        return Choices(values=values)
    limits = _mapping(body, where)
    for key in ("low", "high"):
        if key not in limits:
            raise SpaceError(f"{where} needs {key}")
    if given[0] == "integers":
        _only(limits, ("low", "high", "step", "factor"), where)
        whole = {k: _whole(v, f"{where}: {k}") for k, v in limits.items()}
        steps = whole.get("step", 1) < 1 or whole.get("factor", 2) < 2
        if steps or whole["low"] > whole["high"]:
            raise SpaceError(f"{where}: {dict(limits)} has no members")
        return Integers(**whole)
    _only(limits, ("low", "high", "step", "log"), where)
    real = {k: _real(v, f"{where}: {k}") for k, v in limits.items() if k != "log"}
    domain = Floats(**real, log=bool(limits.get("log", False)))
    if domain.low > domain.high or (domain.step or 1) <= 0 or (domain.log and domain.low <= 0):
        raise SpaceError(f"{where}: {domain} has no members")
    return domain


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpaceError(f"{where} should be a whole number, not {value!r}")
    return value


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpaceError(f"{where} should be a number, not {value!r}")
    return float(value)


def _literal(value: Any, where: str) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise SpaceError(f"{where}: {value!r} should be a single value; quote texts")
    return value


def _requirement(text: Any, where: str) -> Requirement | None:
    if text is None:
        return None
    try:
        return requirement.parse(str(text).lower() if isinstance(text, bool) else str(text))
    except BadRequirement as error:
        raise SpaceError(f"{where}: {error}") from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpaceError(f"{where} should hold keys and values, not {value!r}")
    return value


def _only(fields: Mapping[str, Any], known: tuple[str, ...], name: str, owner: str = "") -> None:
    for key in fields:
        if key not in known:
            of = f" of {owner}" if owner else ""
            line = line_of(fields, key)
            place = f"{name}:{line}" if line else name
            raise SpaceError(f"{place}: unknown key {key}{of}{nearest(str(key), known)}")


def _word(
    fields: Mapping[str, Any], key: str, known: tuple[str, ...], default: str, where: str
) -> str:
    value = str(fields.get(key, default))
    if value not in known:
        raise SpaceError(f"{where}: {key} {value}{nearest(value, known) or f' (one of {known})'}")
    return value


def _words(
    fields: Mapping[str, Any], key: str, known: tuple[str, ...] | None, where: str
) -> tuple[str, ...]:
    value = fields.get(key, ())
    if not isinstance(value, list | tuple):
        raise SpaceError(f"{where}: {key} should be a list")
    words = tuple(str(v) for v in value)
    for word in words:
        if known is not None and word not in known:
            raise SpaceError(f"{where}: {key} {word}{nearest(word, known) or f' (one of {known})'}")
    return words
