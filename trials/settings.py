"""The knobs of one trial: what was asked for, who read it, and what took effect."""

from __future__ import annotations

import math
from typing import Any

from autotune.trial import KnobValue, TrialSpec


class Settings:
    """Hands out argument knobs and remembers which were taken; collects what is read back."""

    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.values = {k.name: k.value for k in spec.applied}
        self._arguments = {k.name: k for k in spec.applied if "argument" in k.apply}
        self._taken: set[str] = set()
        self.read_back: dict[str, KnobValue] = {}
        self.notices: list[str] = []
        self.facts: dict[str, Any] = {}

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a knob, or ``default`` when it is not active; marks it as read."""
        self._taken.add(name)
        return self.values.get(name, default)

    def effective(self, name: str, value: KnobValue) -> None:
        """Record what the live object says of a knob."""
        if name in self.values:
            self.read_back[name] = value

    def notice(self, text: str) -> None:
        """Something a person should know; each text once."""
        if text not in self.notices:
            self.notices.append(text)

    def fact(self, name: str, value: Any) -> None:
        """Something about the trial that is no knob and no metric; goes into its telemetry."""
        self.facts[name] = value

    def mismatches(self) -> list[str]:
        """Argument knobs away from their default of which the live object says something else."""
        return [
            f"{name} was set to {knob.value!r} but reads back {self.read_back[name]!r}"
            for name, knob in self._arguments.items()
            if not knob.is_default
            and name in self.read_back
            and not same(self.read_back[name], knob.value)
        ]

    def unread(self) -> list[str]:
        """Argument knobs away from their default that nothing took: they had no effect."""
        return [
            name
            for name, knob in self._arguments.items()
            if not knob.is_default and name not in self._taken
        ]


def same(live: object, asked: object) -> bool:
    """Equal as values: up to the rounding of a float, and ``true`` or 1 for True."""
    if isinstance(live, bool) or isinstance(asked, bool):
        return _as_truth(live) == _as_truth(asked)
    try:
        return math.isclose(float(str(live)), float(str(asked)), rel_tol=1e-6)
    except ValueError:
        return str(live).lower() == str(asked).lower()


def _as_truth(value: object) -> str:
    text = str(value).lower()
    return {"1": "true", "0": "false"}.get(text, text)
