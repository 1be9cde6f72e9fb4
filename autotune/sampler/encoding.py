"""Configurations as rows of numbers that trees can split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.legal import default_is_inside
from autotune.sampler.params import is_ordered
from autotune.space import Choices, Floats, Integers, Knob, SearchSpace
from autotune.trial import Configuration, KnobValue

Matrix = NDArray[np.float32]

_WORDS = 8  # choices up to which each gets a column of its own
_LOG_FROM = 4.0  # highest over lowest, from which on a knob is seen in powers
_PAIRED = 8  # knobs seen in powers up to which the products of two are columns too
_INACTIVE = -1.0
_BESIDE = -0.5  # the upstream default where it lies outside the domain ("unset")


class Encoder:
    """One row per configuration; ``owners[j]`` are the knobs that column j speaks of.

    What fits in memory, or in a block of threads, is decided by products of knobs: the sums of
    logarithms stand beside the knobs themselves.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._columns = [_Column(knob) for knob in space.free()]
        self.owners: list[tuple[str, ...]] = []
        for column in self._columns:
            self.owners += [(column.name,)] * column.width
        offsets = np.cumsum([0, *(c.width for c in self._columns)])
        logs = [i for i, c in enumerate(self._columns) if c.is_log]
        pairs = list(itertools.combinations(logs, 2)) if len(logs) <= _PAIRED else []
        self.owners += [(self._columns[a].name, self._columns[b].name) for a, b in pairs]
        self._plain = int(offsets[-1])
        self._left = np.array([offsets[a] for a, _ in pairs], dtype=int)
        self._right = np.array([offsets[b] for _, b in pairs], dtype=int)
        self._spans = np.array([c.span for c in self._columns for _ in range(c.width)])

    def rows(self, configurations: Sequence[Configuration]) -> Matrix:
        """The configurations as a matrix."""
        plain = np.array(
            [[x for c in self._columns for x in c.place(conf)] for conf in configurations],
            dtype=np.float32,
        ).reshape(len(configurations), self._plain)
        if not len(self._left):
            return plain
        a, b = plain[:, self._left], plain[:, self._right]
        products = a * self._spans[self._left] + b * self._spans[self._right]
        return np.hstack([plain, products]).astype(np.float32)


class _Column:
    """How one knob is seen: places from 0 to 1, or one column per word."""

    def __init__(self, knob: Knob) -> None:
        self.name, self._default = knob.name, knob.default
        self._beside = not default_is_inside(knob)
        self._words: dict[str, int] = {}
        self._low, self._high = _bounds(knob)
        self.is_log = self._low > 0 and self._high / self._low >= _LOG_FROM
        if isinstance(knob.domain, Choices) and not is_ordered(knob.domain):
            self._words = {repr(value): i for i, value in enumerate(knob.domain.values)}
            self.is_log = False
        self.width = len(self._words) if 2 < len(self._words) <= _WORDS else 1
        low, high = (math.log2(x) if self.is_log else x for x in (self._low, self._high))
        self.span = high - low or 1.0
        self._start = low

    def place(self, configuration: Configuration) -> tuple[float, ...]:
        """The knob's columns for a configuration."""
        value = configuration.get(self.name)
        if value is None:
            return (_INACTIVE,) * self.width
        if self._words:
            return self._word(value)
        if (self._beside and value == self._default) or not isinstance(value, int | float):
            return (_BESIDE,)
        number = math.log2(value) if self.is_log and value > 0 else float(value)
        return ((number - self._start) / self.span,)

    def _word(self, value: KnobValue) -> tuple[float, ...]:
        index = self._words.get(repr(value))
        if self.width == 1:
            return (_BESIDE if index is None else index / max(1, len(self._words) - 1),)
        return tuple(1.0 if i == index else 0.0 for i in range(self.width))


def _bounds(knob: Knob) -> tuple[float, float]:
    match knob.domain:
        case Integers(low=low, high=high) | Floats(low=low, high=high):
            return float(low), float(high)
        case Choices(values=values) as domain if is_ordered(domain):
            return float(min(map(float, values))), float(max(map(float, values)))
    return 0.0, 1.0
