"""Search spaces as files: the catalogue with a user's own files on top, and as stored data."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import conditions, knob_yaml, yaml_lines
from autotune.model_file import load_model, model_names
from autotune.presets import load_presets, load_workload
from autotune.rooms import rooms_root
from autotune.selection import is_live, parse_setting, select, suits_device
from autotune.space import Choices, Floats, Integers, Knob, Rule, SearchSpace, SpaceError
from autotune.yaml_lines import line_of

__all__ = [
    "dump",
    "files",
    "is_live",
    "load_catalogue",
    "load_model",
    "load_presets",
    "load_workload",
    "model_names",
    "parse_setting",
    "restore",
    "select",
    "suits_device",
]


def files() -> list[Path]:
    """The files of the catalogue."""
    found = (rooms_root() / "search_spaces").glob("*.yaml")
    return sorted(path for path in found if path.name != "workloads.yaml")


@functools.cache
def _own(path: Path) -> yaml_lines.Lines:
    """A file of the catalogue, which no user edits: read once, since reading takes a second."""
    return yaml_lines.load(path)


def load_catalogue(extra: Sequence[Path] = ()) -> SearchSpace:
    """Every knob and rule, those of ``extra`` files last.

    A name may be defined once; only knobs of the toy may be defined anew, since their names
    (``batch``, ``seed``) are what anybody would call their own.
    """
    knobs: dict[str, Knob] = {}
    rules: list[Rule] = []
    places: dict[str, str] = {}
    for path, document in [
        *((path, _own(path)) for path in files()),
        *((path, yaml_lines.load(path)) for path in extra),
    ]:
        found, more = knob_yaml.knobs_of(document, str(path))
        for knob in found:
            place = f"{path}:{line_of(document['knobs'], knob.name)}"
            if knob.name in knobs and knobs[knob.name].scope != ("toy",):
                known = places[knob.name]
                raise SpaceError(f"{place}: knob {knob.name} is defined in {known} too")
            knobs.pop(knob.name, None)
            knobs[knob.name], places[knob.name] = knob, place
        rules += more
        places |= _rule_places(document, str(path))
    conditions.check(knobs, rules, places)
    ordered = _parents_first(knobs, places)
    return SearchSpace(name="catalogue", knobs=tuple(ordered), rules=tuple(rules))


def _rule_places(document: Mapping[str, Any], name: str) -> dict[str, str]:
    rules = document.get("rules", [])
    return {str(r["require"]): f"{name}:{line_of(r, 'require')}" for r in rules}


def _parents_first(knobs: Mapping[str, Knob], places: Mapping[str, str]) -> list[Knob]:
    """File order, but every knob after those that its condition names."""
    done: dict[str, Knob] = {}

    def visit(knob: Knob, path: tuple[str, ...]) -> None:
        if knob.name in done:
            return
        if knob.name in path:
            circle = " -> ".join([*path[path.index(knob.name) :], knob.name])
            raise SpaceError(f"{places[knob.name]}: conditions go in a circle: {circle}")
        for name in sorted(knob.when.names if knob.when else ()):
            if name in knobs:
                visit(knobs[name], (*path, knob.name))
        done[knob.name] = knob

    for knob in knobs.values():
        visit(knob, ())
    return list(done.values())


def dump(space: SearchSpace) -> dict[str, Any]:
    """Plain data that ``restore`` turns back into an equal space."""
    return {
        "name": space.name,
        "knobs": [_dump_knob(k) for k in space.knobs],
        "rules": [{"require": r.requirement.text, "reason": r.reason} for r in space.rules],
        "context": dict(space.context),
        "fixed": dict(space.fixed),
    }


def restore(data: Mapping[str, Any]) -> SearchSpace:
    """The space of a stored study; SpaceError when the data is not one."""
    where = "stored study"
    try:
        return SearchSpace(
            name=str(data["name"]),
            knobs=tuple(
                knob_yaml.knob_of(
                    str(k["name"]), {n: v for n, v in k.items() if n != "name"}, where, where
                )
                for k in data["knobs"]
            ),
            rules=tuple(knob_yaml.rule_of(r, where, where) for r in data["rules"]),
            context=dict(data["context"]),
            fixed=dict(data["fixed"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, SpaceError):
            raise
        raise SpaceError(f"a stored search space is damaged: {error!r}") from None


def _dump_knob(knob: Knob) -> dict[str, Any]:
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
        **({"default_by": dict(knob.default_by)} if knob.default_by else {}),
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
