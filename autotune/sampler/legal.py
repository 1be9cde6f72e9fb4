"""Draws, repairs and enumerates legal configurations of a space."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator
from typing import Any

from autotune.requirement import BadRequirement
from autotune.sampler.protocol import Key, key
from autotune.space import Choices, Floats, Integers, Knob, SearchSpace, members
from autotune.trial import Configuration, KnobValue

_REPAIRS = 60  # steps before a draw is given up
_DRAWS = 60  # draws before enumeration is tried
_VISITS = 20_000  # configurations looked at before a space counts as too large to enumerate
_ENDLESS = 4096  # members
_BESIDE = 0.3  # how often a default outside its domain is drawn


def is_legal(space: SearchSpace, configuration: Configuration) -> bool:
    """Whether a complete configuration breaks no rule; one that cannot be judged is not legal."""
    try:
        return space.broken_rule(configuration) is None
    except BadRequirement:
        return False


def complete(space: SearchSpace, chosen: Configuration) -> dict[str, KnobValue]:
    """The full active configuration for values of which some may belong to inactive knobs."""
    return space.complete({k.name: chosen[k.name] for k in space.knobs if k.name in chosen})


def draw_value(knob: Knob, rng: random.Random) -> KnobValue:
    """A value of the domain, uniform over its members (log-uniform where the domain says so)."""
    match knob.domain:
        case Integers(factor=None, low=low, high=high, step=step):
            return low + step * rng.randrange((high - low) // step + 1)
        case Integers() as domain:
            return rng.choice(domain.values())
        case Choices(values=values):
            return rng.choice(values)
        case Floats(step=None, low=low, high=high, log=log):
            if log:
                return min(high, max(low, math.exp(rng.uniform(math.log(low), math.log(high)))))
            return rng.uniform(low, high)
        case Floats() as domain:
            return rng.choice(domain.grid())


def draw(space: SearchSpace, rng: random.Random) -> dict[str, KnobValue] | None:
    """A random legal configuration; None when repair did not find one."""
    return repair(space, {knob.name: draw_any(knob, rng) for knob in space.free()}, rng)


def draw_any(knob: Knob, rng: random.Random) -> KnobValue:
    """A value of the domain, or the default where that lies beside it ("unset", say)."""
    if not default_is_inside(knob) and rng.random() < _BESIDE:
        return knob.default
    return draw_value(knob, rng)


def repair(
    space: SearchSpace, chosen: Configuration, rng: random.Random
) -> dict[str, KnobValue] | None:
    """The configuration with the knobs of each broken rule drawn anew until none is broken.

    A knob goes back to its default half of the time: defaults are legal together far more often
    than random values are.
    """
    wanted = dict(chosen)
    free = {knob.name: knob for knob in space.free()}
    for _ in range(_REPAIRS):
        full = complete(space, wanted)
        try:
            rule = space.broken_rule(full)
            if rule is None:
                return full
            names = sorted(free.keys() & rule.requirement.names & full.keys())
        except BadRequirement:
            names = sorted(free.keys() & full.keys())
        if not names:
            return None
        knob = free[rng.choice(names)]
        wanted[knob.name] = knob.default if rng.random() < 0.5 else draw_any(knob, rng)
    return None


def unseen(
    space: SearchSpace, seen: Collection[Key], rng: random.Random
) -> dict[str, KnobValue] | None:
    """A random legal configuration not in ``seen``; None when there seems to be none left."""
    for _ in range(_DRAWS):
        found = draw(space, rng)
        if found is not None and key(found) not in seen:
            return found
    for visited, configuration in enumerate(enumerate_space(space)):
        if key(configuration) not in seen and is_legal(space, configuration):
            return configuration
        if visited > _VISITS:
            break
    return None


def enumerate_space(space: SearchSpace) -> Iterator[dict[str, KnobValue]]:
    """Every complete configuration, legal or not; knobs with endless values only at default."""
    # A stack of our own: recursion would be as deep as the catalogue is long.
    stack: list[tuple[int, dict[str, Any], dict[str, KnobValue]]] = [(0, dict(space.context), {})]
    while stack:
        index, values, active = stack.pop()
        while index < len(space.knobs):
            knob = space.knobs[index]
            index += 1
            if not knob.is_active(values):
                continue
            options = values_of(space, knob)
            for option in reversed(options[1:]):
                branch = {**active, knob.name: option}
                stack.append((index, {**values, knob.name: option}, branch))
            values[knob.name] = active[knob.name] = options[0]
        yield active


def values_of(space: SearchSpace, knob: Knob) -> list[KnobValue]:
    """The values a search may give a knob, its default included."""
    if knob.name in space.fixed:
        return [space.fixed[knob.name]]
    listed = None if is_endless(knob) else members(knob.domain)
    if listed is None:
        return [knob.default]
    options = list(listed)
    return options if default_is_inside(knob) else [knob.default, *options]


def is_endless(knob: Knob) -> bool:
    """Whether a domain has no list of members, or one too long to write down."""
    match knob.domain:
        case Integers(factor=None, low=low, high=high, step=step):
            return (high - low) // step >= _ENDLESS
        case Floats(step=None):
            return True
        case Floats(low=low, high=high, step=float(step)):
            return (high - low) / step >= _ENDLESS
    return False


def default_is_inside(knob: Knob) -> bool:
    """Whether the upstream default is a member of the domain, not a value beside it."""
    return knob.default in knob.domain
