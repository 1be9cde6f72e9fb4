"""From the catalogue to the space of one study: what means something here, and what is fixed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from autotune.space import Choices, Floats, Knob, SearchSpace, SpaceError, members, nearest
from autotune.trial import Configuration, KnobValue

_VERSION = re.compile(r"^(\w+)(>=|==|<)([\d.]+)$")
_OUTSIDE = {"vllm": "vllm", "sglang": "sglang"}  # a need that names an engine
_PINNED_RUNNERS = ("toy", "command")


def select(
    space: SearchSpace,
    *,
    task: str,
    runner: str,
    context: Mapping[str, Any],
    settings: Configuration,
    only: Sequence[str],
    exclude: Sequence[str],
    workload: Mapping[str, Any],
) -> SearchSpace:
    """The space of a study.

    Keeps knobs of the task that this host and engine can act on; fixes what the user set, what
    the filters leave out (at its default) and the facts of the job. Raises SpaceError.
    """
    knobs = tuple(k for k in space.knobs if _in_scope(k, task, runner) and is_live(k, context))
    names = [k.name for k in knobs]
    for glob in (*only, *exclude):
        if not any(fnmatch(name, glob) for name in names):
            raise SpaceError(f"no knob here matches {glob}{nearest(glob, names)}")
    fixed: dict[str, KnobValue] = {}
    for knob in knobs:
        named = any(fnmatch(knob.name, glob) for glob in only)
        left_out = (only and not named) or any(fnmatch(knob.name, glob) for glob in exclude)
        if left_out or (knob.workload and not named):
            fixed[knob.name] = workload.get(knob.name, knob.default)
        elif knob.name in workload and not named and knob.workload:
            fixed[knob.name] = workload[knob.name]
    for name, value in settings.items():
        if name not in names:
            raise SpaceError(f"--set {name} has no effect here: not active on this host or task")
        fixed[name] = value
    kept = set(names)
    rules = tuple(r for r in space.rules if r.requirement.names & kept)
    return dataclasses.replace(
        space, name=f"{runner}-{task}", knobs=knobs, rules=rules, context=dict(context), fixed=fixed
    )


def _in_scope(knob: Knob, task: str, runner: str) -> bool:
    if runner in _PINNED_RUNNERS:
        return runner in knob.scope
    return task in knob.scope and "export" not in knob.apply


def is_live(knob: Knob, context: Mapping[str, Any]) -> bool:
    """Whether a knob can act at all with these facts: its needs are met and its condition,
    read with every other knob free, is not false by the facts alone."""
    return all(_need_is_met(need, context) for need in knob.needs) and _can_hold(knob, context)


def _can_hold(knob: Knob, context: Mapping[str, Any]) -> bool:
    if knob.when is None:
        return True
    clauses = [part.strip() for part in re.split(r"\band\b", knob.when.text)]
    from autotune import requirement

    for clause in clauses:
        try:
            parsed = requirement.parse(clause)
        except requirement.BadRequirement:
            continue  # the split went through brackets: judged when the knobs are known
        if parsed.names <= context.keys() and not parsed.holds(context):
            return False
    return True


def _need_is_met(need: str, context: Mapping[str, Any]) -> bool:
    if need in ("cuda", "cpu"):
        return bool(context.get("device") == need)
    if need in _OUTSIDE:
        return bool(context.get("engine") == need)
    if need in ("multi_rank", "multi_gpu"):
        enough = int(context.get("world_size", 1)) > 1
        return enough and (need == "multi_rank" or context.get("device") == "cuda")
    if need == "multi_node":
        return int(context.get("nodes", 1)) > 1
    if match := _VERSION.match(need):
        have = context.get(match[1])
        if have is None:
            return False
        bound = float(match[3])
        return bool({">=": have >= bound, "==": have == bound, "<": have < bound}[match[2]])
    return bool(context.get(f"has.{need}", False))


def suits_device(knob: Knob, device: str) -> bool:
    """Whether a knob is meant for that device at all."""
    other = "cpu" if device == "cuda" else "cuda"
    if other in knob.needs or (
        device == "cpu" and any(n.startswith(("sm>", "multi_gpu")) for n in knob.needs)
    ):
        return False
    return knob.when is None or f'device == "{other}"' not in knob.when.text


def parse_setting(text: str, space: SearchSpace) -> tuple[str, KnobValue]:
    """``KNOB=VALUE`` with the value as the knob's domain would have it; SpaceError otherwise."""
    name, equals, written = text.partition("=")
    if not equals:
        raise SpaceError(f"--set {text!r} should read KNOB=VALUE")
    knob = space.knob(name.strip())
    for value in _readings(written.strip()):
        if knob.accepts(value):
            return knob.name, value
        if (
            isinstance(knob.domain, Floats)
            and isinstance(value, int)
            and float(value) in knob.domain
        ):
            return knob.name, float(value)
    values = members(knob.domain)
    close = ""
    if isinstance(knob.domain, Choices) and values is not None:
        close = nearest(written, [str(v) for v in values])
    raise SpaceError(f"{knob.name}={written} is outside {knob.domain}{close}")


def _readings(text: str) -> list[KnobValue]:
    found: list[KnobValue] = []
    if text.lower() in ("true", "false"):
        found.append(text.lower() == "true")
    for kind in (int, float):
        try:
            found.append(kind(text))
        except ValueError:
            continue
    return [*found, text]
