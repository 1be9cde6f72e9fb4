"""Legal configurations to choose from: random ones, and steps from those that did well."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from autotune.sampler import legal
from autotune.sampler.protocol import Key, key
from autotune.space import Floats, Knob, SearchSpace, members
from autotune.trial import Configuration, KnobValue

_STEPS = 12  # values of a long domain that are tried from one configuration
_NEAR = 0.15  # of the span of a continuous domain: a step beside, not a leap


class Moves:
    """Draws and steps within one space; never anything that a rule forbids."""

    def __init__(self, space: SearchSpace, rng: random.Random) -> None:
        self.space, self.rng = space, rng
        self._knobs = {knob.name: knob for knob in space.free()}
        self._listed = {knob.name: _listed(knob) for knob in space.free()}

    def anywhere(self, count: int) -> list[Configuration]:
        """Random legal configurations."""
        drawn = (legal.draw(self.space, self.rng) for _ in range(count))
        return [c for c in drawn if c is not None]

    def unseen(self, count: int, seen: Collection[Key]) -> list[Configuration]:
        """Random legal configurations that are new; listed where draws are in vain."""
        found = [c for c in self.anywhere(count) if key(c) not in seen]
        if found:
            return found
        last = legal.unseen(self.space, seen, self.rng)
        return [] if last is None else [last]

    @property
    def names(self) -> Collection[str]:
        """Of the knobs that may be changed."""
        return self._knobs.keys()

    def beside(
        self, base: Configuration, seen: Collection[Key], names: Collection[str] | None = None
    ) -> Iterator[Configuration]:
        """Legal, unseen configurations one knob away, of these knobs or of any."""
        for name in self._knobs if names is None else names:
            if name not in base:
                continue
            for value in self.others(self._knobs[name], base[name]):
                found = self.changed(base, {name: value}, seen)
                if found is not None:
                    yield found

    def leap(
        self, base: Configuration, names: Sequence[str], seen: Collection[Key]
    ) -> Configuration | None:
        """``base`` with each of these knobs at another value, if that is legal and new."""
        values = {}
        for name in names:
            others = self.others(self._knobs[name], base.get(name, self._knobs[name].default))
            if others:
                values[name] = self.rng.choice(others)
        return self.changed(base, values, seen)

    def changed(
        self, base: Configuration, values: Configuration, seen: Collection[Key]
    ) -> Configuration | None:
        """``base`` with these values, if that is legal and new."""
        found = legal.complete(self.space, {**base, **values})
        if key(found) in seen or not legal.is_legal(self.space, found):
            return None
        return found

    def others(self, knob: Knob, value: KnobValue) -> list[KnobValue]:
        """Values other than this one, near ones and a sample of far ones where there are many."""
        listed = self._listed[knob.name]
        if listed is None:
            return self._continuous(knob, value)
        others = [v for v in listed if v != value or type(v) is not type(value)]
        if len(others) <= _STEPS:
            return others
        place = next((i for i, v in enumerate(listed) if v == value), None)
        near = [] if place is None else listed[max(0, place - 2) : place] + listed[place + 1 :][:2]
        return [*near, *self.rng.sample(others, _STEPS - len(near))]

    def _continuous(self, knob: Knob, value: KnobValue) -> list[KnobValue]:
        found: list[KnobValue] = [legal.draw_any(knob, self.rng) for _ in range(_STEPS // 2)]
        if isinstance(knob.domain, Floats) and isinstance(value, int | float):
            low, high = knob.domain.low, knob.domain.high
            for _ in range(_STEPS // 2):
                near = value + self.rng.gauss(0, _NEAR) * (high - low)
                found.append(min(high, max(low, near)))
        return [v for v in found if v != value]


def _listed(knob: Knob) -> list[KnobValue] | None:
    if legal.is_endless(knob):
        return None
    finite = list(members(knob.domain) or ())
    return finite if legal.default_is_inside(knob) else [knob.default, *finite]
