"""Spaces made up for the benchmark, where the truth is known: many knobs of which few matter,
conditions between them, a region that crashes, and noise; and one in which nothing matters."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from autotune.requirement import parse
from autotune.space import Choices, Floats, Integers, Knob, Rule, SearchSpace
from autotune.trial import Configuration, KnobValue, Status
from benchmarks.search.problem import Answer, Problem

NAMES = ("synthetic400", "synthetic40")
_NOISE = 0.02
_SECONDS = 20.0
_MATTER = 10


def problem(name: str) -> Problem:
    """The synthetic problem of that name; its layout depends on the name alone."""
    return _build(name, int(name.removeprefix("synthetic")))


def _build(name: str, size: int) -> Problem:
    rng = random.Random(name)
    knobs = tuple(_knob(i, rng) for i in range(size))
    order = rng.sample(range(size), size)
    important = [knobs[i] for i in order if not knobs[i].when][:_MATTER]
    gains = {k.name: _effect(k, rng) for k in important}
    barred = [k for k in knobs if isinstance(k.domain, Integers) and k not in important]
    rule = Rule(
        requirement=parse(f"{barred[0].name} + {barred[1].name} <= 96"), reason="does not fit"
    )
    space = SearchSpace(name=name, knobs=knobs, rules=(rule,))
    crash = _crash_region([k for k in knobs if not k.when], important, rng)

    def truth(configuration: Configuration) -> float | None:
        if crash(configuration):
            return None
        gain = sum(effect(configuration[name]) for name, effect in gains.items())
        pair = [gains[k.name](configuration[k.name]) / _PEAK for k in important[:2]]
        return 1000.0 * math.exp(gain + 0.1 * pair[0] * pair[1])

    def ask(configuration: Configuration, noise: random.Random) -> Answer:
        value = truth(configuration)
        if value is None:
            return Answer(status=Status.CRASHED, value=None, seconds=_SECONDS / 2)
        measured = value * math.exp(noise.gauss(0, _NOISE))
        return Answer(status=Status.COMPLETE, value=measured, seconds=_SECONDS)

    best = 1000.0 * math.exp(_PEAK * len(important) + 0.1)
    return Problem(
        name=name,
        space=space,
        direction="max",
        best=best,
        ask=ask,
        truth=truth,
        within=0.10,
        typical_seconds=_SECONDS,
        has_default=True,
    )


_PEAK = 0.12  # log gain of an important knob at its best


def _knob(number: int, rng: random.Random) -> Knob:
    kind = rng.choice(("switch", "switch", "choice", "steps", "range"))
    name = f"k{number}"
    when = None
    if number % 5 == 4:
        when = parse(f"k{number - 4} == true")
    if number % 5 == 0:
        kind = "switch"  # the parent of the one that follows at 4
    domain, default = _DOMAINS[kind](rng)
    return Knob(
        name=name, domain=domain, default=default, apply={"argument": name}, summary=name, when=when
    )


def _switch(_: random.Random) -> tuple[Choices, KnobValue]:
    return Choices(values=(False, True)), False


def _choice(rng: random.Random) -> tuple[Choices, KnobValue]:
    return Choices(values=tuple("abcdef"[: rng.randint(3, 6)])), "a"


def _steps(_: random.Random) -> tuple[Integers, KnobValue]:
    return Integers(low=1, high=64), 8


def _range(_: random.Random) -> tuple[Floats, KnobValue]:
    return Floats(low=0.0, high=1.0), 0.5


_DOMAINS: dict[str, Callable[[random.Random], tuple[Choices | Integers | Floats, KnobValue]]] = {
    "switch": _switch,
    "choice": _choice,
    "steps": _steps,
    "range": _range,
}


def _effect(knob: Knob, rng: random.Random) -> Callable[[KnobValue], float]:
    """The log gain of a value: at its peak somewhere that is not the default."""
    match knob.domain:
        case Choices(values=values):
            good = rng.choice([v for v in values if v != knob.default])
            return lambda value: _PEAK if value == good else 0.0
        case Integers(low=low, high=high):
            peak = rng.uniform(0.6, 0.9)
            return lambda value: _bump((math.log(float(value)) / math.log(high / low)) - peak)
        case Floats():
            peak = rng.choice((0.1, 0.9))
            return lambda value: _bump(float(value) - peak)


def _bump(distance: float) -> float:
    return _PEAK * max(-1.0, 1.0 - (distance / 0.35) ** 2)


def _crash_region(
    knobs: list[Knob], important: list[Knob], rng: random.Random
) -> Callable[[Configuration], bool]:
    """A value of some choice, or two switches together: about a third of random draws crash."""
    choices = [k for k in knobs if isinstance(k.domain, Choices) and len(k.domain.values) > 2]
    switches = [k for k in knobs if k.domain == Choices(values=(False, True))]
    spare = [k for k in choices if k not in important]
    alone = rng.choice(spare)
    assert isinstance(alone.domain, Choices)
    fatal = alone.domain.values[-1]
    first, second = rng.sample([k for k in switches if k not in important], 2)

    def crashes(configuration: Configuration) -> bool:
        both = bool(configuration[first.name]) and bool(configuration[second.name])
        return configuration[alone.name] == fatal or both

    return crashes
