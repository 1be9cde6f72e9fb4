"""Knobs that are attributes of torch: set right after import, and read back when the trial ends."""

from __future__ import annotations

import importlib
from typing import Any

from autotune.trial import AppliedKnob, KnobValue, TrialSpec
from trials.errors import Unsupported
from trials.settings import Settings


def attribute_knobs(spec: TrialSpec) -> list[AppliedKnob]:
    """Active knobs that are applied by setting an attribute."""
    return [knob for knob in spec.applied if "torch" in knob.apply]


def apply(spec: TrialSpec, settings: Settings) -> None:
    """Set every such knob that is away from its default, and read all of them back.

    Raises Unsupported for an attribute that is not there, and for one that refuses the value.
    """
    for knob in attribute_knobs(spec):
        owner, name = _owner(knob.apply["torch"], knob.name)
        if not knob.is_default and knob.value != "unset":
            try:
                setattr(owner, name, plain(knob.value))
            except (AttributeError, TypeError, ValueError, RuntimeError, AssertionError) as error:
                raise Unsupported(f"{knob.name}={knob.value!r} was refused: {error}") from error
    read_back(spec, settings)


def read_back(spec: TrialSpec, settings: Settings) -> None:
    """Record what each attribute holds now; Unsupported when it is not what was asked for."""
    for knob in attribute_knobs(spec):
        owner, name = _owner(knob.apply["torch"], knob.name)
        live = getattr(owner, name)
        if knob.value == "unset" or knob.is_default:
            settings.effective(
                knob.name, live if isinstance(live, bool | int | float | str) else "unset"
            )
            continue
        if live != plain(knob.value):
            raise Unsupported(f"{knob.name} was set to {knob.value!r} but reads back {live!r}")
        settings.effective(knob.name, knob.value)


def plain(value: KnobValue) -> Any:
    """The word ``none`` stands for None."""
    return None if value == "none" else value


def _owner(path: str, knob: str) -> tuple[Any, str]:
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for part in parts[cut:-1]:
                owner = getattr(owner, part)
            getattr(owner, parts[-1])
        except AttributeError:
            break
        return owner, parts[-1]
    raise Unsupported(f"{knob}: {path} is not in this version of torch")
