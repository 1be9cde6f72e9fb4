"""Knobs as numbers: which vary, and a column for each that a forest or an axis can use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.numbers.study import KnobValue, Trial

_ABSENT = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """How the values of one knob lie on a line from 0 to 1."""

    knob: str
    kind: str  # number | log | choice
    low: float
    high: float
    choices: tuple[str, ...]

    def place(self, value: KnobValue | None) -> float | None:
        """Position between 0 and 1, or None when the knob was not active."""
        if value is None:
            return None
        if self.kind == "choice":
            return self.choices.index(label(value)) / max(1, len(self.choices) - 1)
        if not _is_number(value):
            return None
        raw = math.log(float(value)) if self.kind == "log" else float(value)
        return (raw - self.low) / ((self.high - self.low) or 1.0)


def varying(trials: Sequence[Trial]) -> list[str]:
    """Knobs that took at least two values (inactive counts as one), in first-seen order."""
    names = dict.fromkeys(name for t in trials for name in t.configuration)
    return [name for name in names if _varies(name, trials)]


def _varies(name: str, trials: Sequence[Trial]) -> bool:
    first = trials[0].configuration.get(name)
    kind = type(first)
    values = (t.configuration.get(name) for t in trials)
    return any(value != first or type(value) is not kind for value in values)


def axis(knob: str, trials: Sequence[Trial]) -> Axis:
    """The axis of a knob over the values it took."""
    seen = [t.configuration[knob] for t in trials if knob in t.configuration]
    numbers = [float(v) for v in seen if _is_number(v)]
    if len(numbers) < len(seen) or not numbers:
        return Axis(knob=knob, kind="choice", low=0, high=1, choices=_ordered(seen))
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= 8:
        return Axis(knob=knob, kind="log", low=math.log(low), high=math.log(high), choices=())
    return Axis(knob=knob, kind="number", low=low, high=high, choices=())


def column(knob: str, trials: Sequence[Trial], targets: Sequence[float]) -> list[float]:
    """The knob over the trials as numbers; choices in the order of their mean target.

    That order lets a tree split any set of good choices from the bad ones at once.
    """
    values = [t.configuration.get(knob) for t in trials]
    if all(v is None or _is_number(v) for v in values):
        return [float(v) if v is not None else _ABSENT for v in values]
    sums: dict[str, list[float]] = {}
    for value, target in zip(values, targets, strict=True):
        sums.setdefault(_key(value), []).append(target)
    ranked = sorted(sums, key=lambda k: sum(sums[k]) / len(sums[k]))
    rank = {k: float(i) for i, k in enumerate(ranked)}
    return [rank[_key(v)] for v in values]


def label(value: KnobValue) -> str:
    """A choice as the axis shows it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(value: object) -> str:
    return f"{type(value).__name__}:{value}"


def _ordered(seen: Sequence[KnobValue]) -> tuple[str, ...]:
    numbers = sorted({float(v) for v in seen if _is_number(v)})
    words = sorted({label(v) for v in seen if not _is_number(v)})
    texts = {float(v): label(v) for v in seen if _is_number(v)}
    return (*words, *(texts[n] for n in numbers))
