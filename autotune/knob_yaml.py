"""One knob or rule between YAML and its type; whatever is misspelt or misplaced is an error."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping
from typing import Any

from autotune import conditions, requirement
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
from autotune.trial import KnobValue
from autotune.yaml_lines import line_of

_FILE_KEYS = ("knobs", "rules", "name", "summary")
_DOMAINS = ("integers", "floats", "choices")
_KNOB_KEYS = (
    *_DOMAINS, "default", "default_by", "apply", "when", "needs", "scope", "restart", "affects",
    "risk", "prior", "workload", "summary", "source",
)  # fmt: skip
_LIMITS = ("low", "high", "step", "factor", "log")
_APPLY = ("env", "torch", "argument", "engine", "export")
_RESTART = ("process", "rebuild", "none")
_RISK = ("none", "numerics", "quality")
_SCOPE = ("train", "serve", "toy", "command")
_AFFECTS = ("throughput", "latency", "memory", "energy", "quality")
_NAME = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", re.ASCII)
_LONGEST_NAME = 80
_WORDS_OF_YAML_1_1 = ("yes", "no", "on", "off")


def knobs_of(document: Mapping[str, Any], name: str) -> tuple[list[Knob], list[Rule]]:
    """Every knob and rule of a loaded file."""
    for key in document:
        if key in _KNOB_KEYS and key not in _FILE_KEYS:
            where = place_of(document, key, name)
            raise SpaceError(f"{where}: {key} belongs to a knob: put it below knobs: and a name")
    only(document, _FILE_KEYS, name)
    knobs = mapping(document.get("knobs", {}), f"{name}: knobs")
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise SpaceError(f"{place_of(document, 'rules', name)}: rules should be a list")
    if not knobs and not rules:
        raise SpaceError(f"{name}: has neither knobs nor rules")
    return (
        [knob_of(str(n), body, name, place_of(knobs, n, name)) for n, body in knobs.items()],
        [rule_of(rule, name, place_of(document, "rules", name)) for rule in rules],
    )


def knob_of(name: str, body: Any, file: str, where: str) -> Knob:
    """A knob from its YAML mapping; ``where`` is file and line of its name."""
    _check_name(name, where)
    fields = mapping(body, f"{where}: {name}")
    for key in fields:
        if key in _LIMITS:
            what = f"integers: {{{key}: ...}} or floats: {{{key}: ...}}"
            raise SpaceError(
                f"{place_of(fields, key, file)}: {key} of {name} belongs inside {what}"
            )
    only(fields, _KNOB_KEYS, file, name)
    domain = _domain(fields, name, file, where)
    apply = mapping(fields.get("apply", {"argument": name}), f"{where}: apply of {name}")
    only(apply, _APPLY, file, f"apply of {name}")
    if len(apply) != 1:
        place = place_of(fields, "apply", file)
        raise SpaceError(f"{place}: apply of {name} should have one entry, not {len(apply)}")
    needs = _words(fields, "needs", None, file)
    for need in needs:
        conditions.check_need(need, place_of(fields, "needs", file))
    return Knob(
        name=name,
        domain=domain,
        default=_default(fields, name, domain, file, where),
        default_by=_default_by(fields, name, domain, file, where),
        apply={str(k): str(v) for k, v in apply.items()},
        summary=_text(fields, "summary", file),
        when=requirement_of(
            fields.get("when"), f"{place_of(fields, 'when', file)}: when of {name}"
        ),
        needs=needs,
        # A knob without a scope is a user's own: whatever their trials run, they mean it.
        scope=_words(fields, "scope", _SCOPE, file) or _SCOPE,
        restart=_word(fields, "restart", _RESTART, "rebuild", file),
        affects=_words(fields, "affects", _AFFECTS, file),
        risk=_word(fields, "risk", _RISK, "none", file),
        prior=_prior(fields, name, domain, file),
        workload=_flag(
            fields.get("workload", False),
            f"{place_of(fields, 'workload', file)}: workload of {name}",
        ),
        source=_text(fields, "source", file),
    )


def _check_name(name: str, where: str) -> None:
    words = name.split(".")
    if not _NAME.match(name) or any(keyword.iskeyword(w) or w in ("true", "false") for w in words):
        better = re.sub(r"\W+", "_", name.strip(), flags=re.ASCII) or "knob"
        hint = f"; {better}, say" if _NAME.match(better) and better != name else ""
        raise SpaceError(f"{where}: {name!r} is no name for a knob (letters, digits, _, .){hint}")
    if len(name) > _LONGEST_NAME:
        raise SpaceError(f"{where}: the name {name[:20]}... is longer than {_LONGEST_NAME}")
    if name in conditions.FACTS:
        raise SpaceError(f"{where}: {name} is a fact of the host or study, not a knob")


def _default(
    fields: Mapping[str, Any], name: str, domain: Domain, file: str, where: str
) -> KnobValue:
    if "default" not in fields:
        raise SpaceError(f"{where}: {name} needs a default")
    place = place_of(fields, "default", file)
    return _in_place(fields["default"], domain, f"{place}: default of {name}")


def _default_by(
    fields: Mapping[str, Any], name: str, domain: Domain, file: str, where: str
) -> dict[str, KnobValue]:
    given = mapping(fields.get("default_by", {}), f"{where}: default_by of {name}")
    found = {}
    for version, value in given.items():
        place = place_of(given, version, file)
        if not conditions.VERSION.match(str(version)):
            raise SpaceError(f"{place}: {version} should read like torch<2.13")
        found[str(version)] = _in_place(value, domain, f"{place}: default of {name}")
    return found


def _in_place(value: Any, domain: Domain, where: str) -> KnobValue:
    """A default: a choice, or for numbers a number or a word (``unset``) beside the range."""
    default = _literal(value, where)
    if isinstance(domain, Choices):
        if default not in domain:
            close = nearest(str(default), str(domain).split(" | "))
            if default in _WORDS_OF_YAML_1_1 and True in domain:
                close = "; bare yes, no, on and off are text here: write true or false"
            raise SpaceError(f"{where}: {default!r} is not among {domain}{close}")
        return default
    if isinstance(default, bool):
        raise SpaceError(f"{where}: {default!r} should be a number, or a word such as unset")
    if isinstance(domain, Floats) and isinstance(default, int):
        return float(default)
    return default


def _prior(
    fields: Mapping[str, Any], name: str, domain: Domain, file: str
) -> tuple[KnobValue, ...]:
    given = fields.get("prior", [])
    where = place_of(fields, "prior", file)
    if not isinstance(given, list):
        raise SpaceError(f"{where}: prior of {name} should be a list")
    for value in given:
        if value not in domain:
            raise SpaceError(f"{where}: prior {value!r} of {name} is outside {domain}")
    return tuple(float(v) if isinstance(domain, Floats) else v for v in given)


def rule_of(body: Any, name: str, where: str) -> Rule:
    """A ``require:`` sentence with its reason; ``where`` is the place of the list it is in."""
    fields = mapping(body, f"{where}: a rule")
    only(fields, ("require", "reason"), name)
    parsed = requirement_of(fields.get("require"), f"{place_of(fields, 'require', name)}: require")
    if parsed is None:
        raise SpaceError(f"{where}: a rule needs 'require'")
    return Rule(requirement=parsed, reason=_text(fields, "reason", name))


def _domain(fields: Mapping[str, Any], name: str, file: str, where: str) -> Domain:
    given = [k for k in _DOMAINS if k in fields]
    if len(given) != 1:
        raise SpaceError(f"{where}: {name} needs exactly one of integers, floats, choices")
    kind = given[0]
    place = f"{place_of(fields, kind, file)}: {kind} of {name}"
    body = fields[kind]
    if kind == "choices":
        return _choices(body, place)
    limits = mapping(body, place)
    only(limits, _LIMITS[:4] if kind == "integers" else ("low", "high", "step", "log"), file, name)
    for key in ("low", "high"):
        if key not in limits:
            raise SpaceError(f"{place} needs {key}")
    if kind == "integers":
        return _integers({k: _whole(v, f"{place}: {k}") for k, v in limits.items()}, place)
    log = _flag(limits.get("log", False), f"{place}: log")
    real = {k: _real(v, f"{place}: {k}") for k, v in limits.items() if k != "log"}
    return _floats(real, log, place)


def _integers(limits: Mapping[str, int], place: str) -> Integers:
    if "factor" in limits and "step" in limits:
        raise SpaceError(f"{place}: take step or factor, not both")
    if limits.get("step", 1) < 1 or limits.get("factor", 2) < 2:
        raise SpaceError(f"{place}: step should be at least 1 and factor at least 2")
    if "factor" in limits and limits["low"] < 1:
        raise SpaceError(f"{place}: factor needs low of at least 1")
    if limits["low"] > limits["high"]:
        raise SpaceError(f"{place}: low {limits['low']} is above high {limits['high']}")
    return Integers(**limits)


def _floats(limits: Mapping[str, float], log: bool, place: str) -> Floats:
    if limits.get("step", 1.0) <= 0:
        raise SpaceError(f"{place}: step should be above 0")
    if log and (limits["low"] <= 0 or "step" in limits):
        raise SpaceError(f"{place}: log needs low above 0 and no step")
    if limits["low"] > limits["high"]:
        raise SpaceError(f"{place}: low {limits['low']} is above high {limits['high']}")
    return Floats(**limits, log=log)


def _choices(body: Any, place: str) -> Choices:
    if not isinstance(body, list) or not body:
        raise SpaceError(f"{place} should be a list of values")
    values = tuple(_literal(v, place) for v in body)
    if len({(type(v), v) for v in values}) < len(values):
        raise SpaceError(f"{place}: a choice stands twice")
    return Choices(values=values)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpaceError(f"{where} should be a whole number, not {value!r}")
    return value


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpaceError(f"{where} should be a finite number, not {value!r}")
    return float(value)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise SpaceError(f"{where} should be true or false, not {value!r}")
    return value


def _literal(value: Any, where: str) -> KnobValue:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpaceError(f"{where}: {value!r} is not a finite number")
    if not isinstance(value, bool | int | float | str):
        raise SpaceError(f"{where}: {value!r} should be a single value; quote texts")
    return value


def requirement_of(text: Any, where: str) -> Requirement | None:
    """A parsed condition, or None where there is none."""
    if text is None:
        return None
    if not isinstance(text, str | bool | int):
        raise SpaceError(f"{where} should be an expression in quotes, not {text!r}")
    try:
        return requirement.parse(str(text).lower() if isinstance(text, bool) else str(text))
    except BadRequirement as error:
        raise SpaceError(f"{where}: {error}") from None


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value itself; SpaceError unless it holds keys and values."""
    if not isinstance(value, Mapping):
        raise SpaceError(f"{where} should hold keys and values, not {value!r}")
    return value


def only(fields: Mapping[str, Any], known: tuple[str, ...], file: str, owner: str = "") -> None:
    """Raise SpaceError for the first key that is not known, with its line and the nearest one."""
    for key in fields:
        if key not in known:
            of = f" of {owner}" if owner else ""
            where = place_of(fields, key, file)
            close = nearest(str(key), known) or f" (one of {', '.join(known)})"
            raise SpaceError(f"{where}: unknown key {key}{of}{close}")


def place_of(fields: Mapping[str, Any], key: Any, file: str) -> str:
    """``file:line`` of a key, as far as it is known."""
    line = line_of(fields, key)
    return f"{file}:{line}" if line else file


def _text(fields: Mapping[str, Any], key: str, file: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise SpaceError(f"{place_of(fields, key, file)}: {key} should be text, not {value!r}")
    return value


def _word(
    fields: Mapping[str, Any], key: str, known: tuple[str, ...], default: str, file: str
) -> str:
    value = str(fields.get(key, default))
    return _known(value, key, known, place_of(fields, key, file))


def _words(
    fields: Mapping[str, Any], key: str, known: tuple[str, ...] | None, file: str
) -> tuple[str, ...]:
    value = fields.get(key, [])
    where = place_of(fields, key, file)
    if not isinstance(value, list):
        raise SpaceError(f"{where}: {key} should be a list")
    words = tuple(str(v) for v in value)
    return words if known is None else tuple(_known(w, key, known, where) for w in words)


def _known(word: str, key: str, known: tuple[str, ...], where: str) -> str:
    if word not in known:
        close = nearest(word, known) or f" (one of {', '.join(known)})"
        raise SpaceError(f"{where}: unknown {key} {word}{close}")
    return word
