"""From the catalogue to the space of one study: what means something here, and what is fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from autotune.conditions import VERSION
from autotune.requirement import BadRequirement
from autotune.space import Choices, Floats, Knob, SearchSpace, SpaceError, members, nearest
from autotune.trial import Configuration, KnobValue

_ENGINES = ("vllm", "sglang")  # needs that name the engine that serves
_EXPORTS = ("trtllm", "deepspeed", "megatron")  # needs that name a target of export
_OWN_KNOBS = ("toy", "command")  # runners that take no knob meant for torch


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
    the filters leave out (at its default) and the facts of the job. Raises SpaceError when a
    filter matches nothing, or when what is fixed can never be active or breaks a rule.
    """
    there = [k for k in space.knobs if _in_scope(k, task, runner)]
    knobs = [_of_versions(k, context) for k in there if is_live(k, context)]
    _check_globs(only, exclude, [k.name for k in knobs], [k.name for k in space.knobs])
    fixed = _fixed(knobs, only, exclude, workload)
    for name, value in settings.items():
        if all(k.name != name for k in knobs):
            raise SpaceError(f"--set {name} has no effect here: {_why_not(space, name, context)}")
        fixed[name] = value
    knobs = _possible(knobs, context, fixed)
    kept = {k.name for k in knobs}
    for name in settings:
        if name not in kept:
            condition = space.knob(name).when
            raise SpaceError(
                f"--set {name} has no effect here: it needs {condition and condition.text}"
            )
    _check_only_acts(space, only, kept, fixed)
    selected = dataclasses.replace(
        space,
        name=f"{runner}-{task}",
        knobs=tuple(knobs),
        rules=tuple(r for r in space.rules if r.requirement.names & kept),
        context=dict(context),
        fixed={name: value for name, value in fixed.items() if name in kept},
    )
    _check_fixed_is_legal(selected)
    return selected


def _fixed(
    knobs: Sequence[Knob], only: Sequence[str], exclude: Sequence[str], workload: Mapping[str, Any]
) -> dict[str, KnobValue]:
    """What the filters and the job leave no choice about."""
    fixed: dict[str, KnobValue] = {}
    for knob in knobs:
        named = any(fnmatchcase(knob.name, glob) for glob in only)
        left_out = any(fnmatchcase(knob.name, glob) for glob in exclude)
        if left_out or (only and not named) or (knob.workload and not named):
            fixed[knob.name] = workload.get(knob.name, knob.default)
    return fixed


def _possible(
    knobs: Sequence[Knob], context: Mapping[str, Any], fixed: Configuration
) -> list[Knob]:
    """The knobs that can be active once the fixed ones are; parents come before children."""
    values: dict[str, Any] = dict(context)
    open_names: set[str] = set()
    kept = []
    for knob in knobs:
        if knob.when is not None and not knob.when.can_hold(values, open_names):
            continue
        kept.append(knob)
        sure = knob.when is None or knob.when.names.isdisjoint(open_names)
        if knob.name in fixed and sure:
            values[knob.name] = fixed[knob.name]
        else:
            open_names.add(knob.name)
    return kept


def _check_globs(
    only: Sequence[str], exclude: Sequence[str], here: Sequence[str], known: Sequence[str]
) -> None:
    """Excluding what does not act here is no fault: the same command then runs everywhere."""
    for glob in (*only, *exclude):
        if any(fnmatchcase(name, glob) for name in here):
            continue
        elsewhere = [name for name in known if fnmatchcase(name, glob)]
        if not elsewhere:
            raise SpaceError(f"no knob matches {glob}{nearest(glob, known)}")
        if glob in only:
            raise SpaceError(
                f"--only {glob}: {elsewhere[0]} has no effect on this host or for this task"
            )


def _check_only_acts(
    space: SearchSpace, only: Sequence[str], kept: set[str], fixed: Configuration
) -> None:
    """``--only`` names children whose parents it leaves at defaults that keep them inactive."""
    for glob in only:
        named = [k for k in space.knobs if fnmatchcase(k.name, glob)]
        if any(k.name in kept for k in named):
            continue
        knob = next(k for k in named if k.when is not None)
        parents = sorted(knob.when.names & fixed.keys()) if knob.when else []
        held = ", ".join(f"{name}={fixed[name]}" for name in parents)
        needed = knob.when.text if knob.when else ""
        raise SpaceError(
            f"--only {glob} leaves nothing to tune: {knob.name} needs {needed}, but {held}; "
            f"add --only {parents[0] if parents else 'its parents'} or --set it"
        )


def _check_fixed_is_legal(space: SearchSpace) -> None:
    """Fixed values that contradict one another leave no legal configuration at all."""
    values = {**space.context, **{n: v for n, v in space.default().items() if n in space.fixed}}
    for rule in space.rules:
        try:
            if rule.requirement.is_violated(values):
                raise SpaceError(f"{rule.requirement.text} is required: {rule.reason}")
        except BadRequirement as error:
            raise SpaceError(str(error)) from None


def _in_scope(knob: Knob, task: str, runner: str) -> bool:
    if runner in _OWN_KNOBS:
        return runner in knob.scope
    return task in knob.scope and "export" not in knob.apply


def _of_versions(knob: Knob, context: Mapping[str, Any]) -> Knob:
    """The knob with the default of the versions here."""
    for need, default in knob.default_by.items():
        if _need_is_met(need, context):
            return dataclasses.replace(knob, default=default, default_by={})
    return dataclasses.replace(knob, default_by={}) if knob.default_by else knob


def _why_not(space: SearchSpace, name: str, context: Mapping[str, Any]) -> str:
    knob = space.knob(name)
    unmet = [need for need in knob.needs if not _need_is_met(need, context)]
    if unmet:
        return f"it needs {', '.join(unmet)}"
    if not _can_hold(knob, context):
        return f"it needs {knob.when.text if knob.when else ''}"
    return f"it is a knob of {', '.join(knob.scope)}"


def is_live(knob: Knob, context: Mapping[str, Any]) -> bool:
    """Whether a knob can act at all with these facts: its needs are met and its condition,
    read with every other knob free, is not false by the facts alone."""
    return all(_need_is_met(need, context) for need in knob.needs) and _can_hold(knob, context)


def _can_hold(knob: Knob, context: Mapping[str, Any]) -> bool:
    if knob.when is None:
        return True
    return knob.when.can_hold(context, knob.when.names - context.keys())


def _need_is_met(need: str, context: Mapping[str, Any]) -> bool:
    if need in ("cuda", "cpu"):
        return bool(context.get("device") == need)
    if need in _ENGINES:
        return bool(context.get("engine") == need)
    if need in _EXPORTS:
        return bool(context.get("export") == need)
    if need in ("multi_rank", "multi_gpu"):
        enough = int(context.get("world_size", 1)) > 1
        return enough and (need == "multi_rank" or context.get("device") == "cuda")
    if need == "multi_node":
        return int(context.get("nodes", 1)) > 1
    if match := VERSION.match(need):
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
        device == "cpu" and any(n.startswith(("sm>", "multi_gpu", "nvswitch")) for n in knob.needs)
    ):
        return False
    return knob.when is None or knob.when.can_hold({"device": device}, knob.when.names - {"device"})


def parse_setting(text: str, space: SearchSpace) -> tuple[str, KnobValue]:
    """``KNOB=VALUE`` with the value as the knob's domain would have it; SpaceError otherwise."""
    name, equals, written = text.partition("=")
    if not equals:
        raise SpaceError(f"--set {text!r} should read KNOB=VALUE")
    knob = space.knob(name.strip())
    for value in _readings(written.strip()):
        if isinstance(knob.domain, Floats) and type(value) is int:
            value = float(value)
        if knob.accepts(value):
            return knob.name, value
    close = ""
    if isinstance(knob.domain, Choices) and (values := members(knob.domain)) is not None:
        close = nearest(written, [_spelt(v) for v in values])
    raise SpaceError(f"{knob.name}={written} is outside {knob.domain}{close}")


def _spelt(value: KnobValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _readings(text: str) -> list[KnobValue]:
    """What a word on the command line may mean, the most particular first."""
    found: list[KnobValue] = []
    if text.lower() in ("true", "false"):
        found.append(text.lower() == "true")
    for kind in (int, float):
        try:
            found.append(kind(text))
        except ValueError:
            continue
    return [*found, text]
