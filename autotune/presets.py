"""Named starting configurations, and what a job is where the user says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import requirement, yaml_lines
from autotune.knob_yaml import mapping, only, requirement_of
from autotune.rooms import rooms_root
from autotune.space import SearchSpace, SpaceError, nearest
from autotune.yaml_lines import line_of

_ALWAYS = requirement.parse("true")
_TASKS = ("train", "serve")


def load_presets(space: SearchSpace, task: str) -> list[dict[str, Any]]:
    """Presets of a task whose condition holds here: name, summary, configuration, dropped.

    A knob that is not in the space, not active beside the others, or fixed to another value is
    dropped and listed with the reason. A preset that breaks a rule here is left out.
    """
    found = []
    for path in sorted((rooms_root() / "search_spaces" / "presets").glob("*.yaml")):
        for entry in presets_of(yaml_lines.load(path), str(path)):
            if entry["task"] != task or not entry["when"].holds(space.context):
                continue
            kept, dropped = _kept(space, entry["configuration"])
            if space.broken_rule(space.complete(kept)) is None:
                about = {"name": entry["name"], "summary": entry["summary"]}
                found.append({**about, "configuration": kept, "dropped": dropped})
    return sorted(found, key=lambda p: p["name"] != "common_practice")


def _kept(space: SearchSpace, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    known = {knob.name: knob for knob in space.knobs}
    possible = {n: v for n, v in wanted.items() if n in known and n not in space.fixed}
    active = space.complete(possible)
    kept, dropped = {}, []
    for name, value in wanted.items():
        if name not in known:
            dropped.append(f"{name}={value}: has no effect on this host or task")
        elif name in space.fixed:
            if space.fixed[name] != value:
                dropped.append(f"{name}={value}: fixed to {space.fixed[name]}")
        elif name not in active:
            dropped.append(f"{name}={value}: not active beside the rest")
        elif not known[name].accepts(value):
            dropped.append(f"{name}={value}: outside {known[name].domain}")
        else:
            kept[name] = value
    return kept, dropped


def presets_of(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Presets of a file: name, task, summary, when, configuration."""
    only(document, ("presets",), name)
    found = []
    presets = mapping(document.get("presets", {}), f"{name}: presets")
    for preset, body in presets.items():
        where = f"{name}:{line_of(presets, preset)}: {preset}"
        fields = mapping(body, where)
        only(fields, ("task", "summary", "when", "configuration"), name, str(preset))
        task = fields.get("task")
        if task not in _TASKS:
            raise SpaceError(f"{where}: task {task}{nearest(str(task), _TASKS)} (train or serve)")
        configuration = mapping(fields.get("configuration", {}), f"{where}: configuration")
        for knob, value in configuration.items():
            if not isinstance(value, bool | int | float | str):
                line = line_of(configuration, knob)
                raise SpaceError(f"{name}:{line}: {knob} should be a single value, not {value!r}")
        found.append(
            {
                "name": str(preset),
                "task": task,
                "summary": str(fields.get("summary", "")),
                "when": requirement_of(fields.get("when"), f"{where}: when") or _ALWAYS,
                "configuration": {str(k): v for k, v in configuration.items()},
            }
        )
    return found


def load_workload(task: str, device: str) -> dict[str, Any]:
    """What the job is where the user says nothing: knob values (with a dot) and other facts."""
    path: Path = rooms_root() / "search_spaces" / "workloads.yaml"
    found = yaml_lines.load(path)
    return dict(mapping(found.get(task, {}), f"{path}: {task}").get(device, {}))
