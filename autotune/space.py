"""What can be tuned: domains, knobs and the rules between them. Plain data, no file formats."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from autotune.requirement import Requirement
from autotune.trial import Configuration, KnobValue


class SpaceError(ValueError):
    """A configuration or a space is not legal; the message names the knob and the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """low, low+step, ... high; with ``factor`` low, low*factor, ... instead."""

    low: int
    high: int
    step: int = 1
    factor: int | None = None

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        if self.factor is not None:
            return value in self.values()
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def values(self) -> tuple[int, ...]:
        """Every member, ascending."""
        if self.factor is None:
            return tuple(range(self.low, self.high + 1, self.step))
        found, value = [], self.low
        while value <= self.high:
            found.append(value)
            value *= self.factor
        return tuple(found)

    def __str__(self) -> str:
        by = f"x{self.factor}" if self.factor is not None else f"step {self.step}"
        return f"{self.low}..{self.high} {by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floats:
    """A closed interval; with ``step`` the exact decimal grid low, low+step, ... high."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not math.isfinite(value) or not self.low <= value <= self.high:
            return False
        return self.step is None or float(value) in self.grid()

    def grid(self) -> tuple[float, ...]:
        """The members of a stepped range, decimal-exact, top included; empty when continuous."""
        if self.step is None:
            return ()
        low, high, step = (Decimal(repr(x)) for x in (self.low, self.high, self.step))
        count = int((high - low) / step)
        return tuple(float(low + i * step) for i in range(count + 1))

    def __str__(self) -> str:
        suffix = f" step {self.step}" if self.step is not None else (" log" if self.log else "")
        return f"{self.low}..{self.high}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """An unordered set of literal values."""

    values: tuple[KnobValue, ...]

    def __contains__(self, value: object) -> bool:
        return any(type(value) is type(v) and value == v for v in self.values)

    def __str__(self) -> str:
        return " | ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in self.values)


Domain = Integers | Floats | Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting that a trial can change, with everything the catalogue knows about it."""

    name: str
    domain: Domain
    default: KnobValue  # what the library does when nobody touches it; may lie outside the domain
    apply: Mapping[str, str]  # env | torch | argument | engine | export -> target
    summary: str
    when: Requirement | None = None
    needs: tuple[str, ...] = ()  # cuda, sm>=89, torch>=2.13, torchao, multi_rank, vllm, ...
    scope: tuple[str, ...] = ("train", "serve")
    restart: str = "rebuild"  # process | rebuild | none
    affects: tuple[str, ...] = ()
    risk: str = "none"  # none | numerics | quality
    prior: tuple[KnobValue, ...] = ()  # values worth trying first
    workload: bool = False  # part of the job, not of its tuning: fixed unless the user frees it
    source: str = ""
    default_by: Mapping[str, KnobValue] = field(default_factory=dict)  # other versions: need -> it

    def accepts(self, value: KnobValue) -> bool:
        """Whether a value may be set: in the domain, or an upstream default."""
        defaults = (self.default, *self.default_by.values())
        return value in self.domain or any(value == d and type(value) is type(d) for d in defaults)

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Whether the knob means anything beside these knob and context values."""
        return self.when is None or self.when.holds(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A ``require:`` sentence and the reason that is shown when it is broken."""

    requirement: Requirement
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The knobs of a study in an order in which every parent comes before its children.

    ``context`` holds facts of the host that expressions may name (device, sm, torch, world_size,
    model.hidden_size ...); ``fixed`` holds knobs that the user or a filter pinned to one value.
    """

    name: str
    knobs: tuple[Knob, ...]
    rules: tuple[Rule, ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    fixed: Configuration = field(default_factory=dict)

    def knob(self, name: str) -> Knob:
        """The knob of that name; SpaceError with the nearest known name otherwise."""
        for knob in self.knobs:
            if knob.name == name:
                return knob
        raise SpaceError(f"unknown knob {name}{nearest(name, (k.name for k in self.knobs))}")

    def free(self) -> tuple[Knob, ...]:
        """Knobs that a search may vary."""
        return tuple(k for k in self.knobs if k.name not in self.fixed)

    def complete(self, chosen: Configuration) -> dict[str, KnobValue]:
        """The full configuration: fixed values, then chosen ones, then defaults; active only.

        Raises SpaceError for a name that is unknown.
        """
        known = {knob.name for knob in self.knobs}
        for name in chosen.keys() - known:
            raise SpaceError(f"unknown knob {name}{nearest(name, known)}")
        values: dict[str, Any] = dict(self.context)
        active: dict[str, KnobValue] = {}
        for knob in self.knobs:
            if knob.is_active(values):
                value = self.fixed.get(knob.name, chosen.get(knob.name, knob.default))
                values[knob.name] = active[knob.name] = value
        return active

    def default(self) -> dict[str, KnobValue]:
        """Every active knob at the upstream default (or where it was fixed)."""
        return self.complete({})

    def broken_rule(self, configuration: Configuration) -> Rule | None:
        """The first rule that a complete configuration breaks, or None when it is legal."""
        values = {**self.context, **configuration}
        return next((r for r in self.rules if r.requirement.is_violated(values)), None)

    def check(self, configuration: Configuration) -> None:
        """Raise SpaceError for an unknown name, a value outside its domain or a broken rule."""
        for name, value in configuration.items():
            knob = self.knob(name)
            if not knob.accepts(value):
                raise SpaceError(f"{name}={value!r} is outside {knob.domain}")
        if rule := self.broken_rule(self.complete(configuration)):
            raise SpaceError(f"{rule.requirement.text} is required: {rule.reason}")

    def changed(self, configuration: Configuration) -> dict[str, KnobValue]:
        """The knobs of a configuration that differ from their default, in file order."""
        defaults = {knob.name: knob.default for knob in self.knobs}
        return {
            name: value
            for name, value in configuration.items()
            if (value, type(value)) != (defaults[name], type(defaults[name]))
        }


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` for an error line, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def members(domain: Domain) -> Iterator[KnobValue] | None:
    """Every value of a finite domain in order; None for a continuous one."""
    match domain:
        case Integers():
            return iter(domain.values())
        case Choices(values=values):
            return iter(values)
        case Floats(step=None):
            return None
        case Floats():
            return iter(domain.grid())
