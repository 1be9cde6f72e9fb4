"""Wide spaces: a group of knobs at a time, so that hundreds are tried in tens of trials; and which
knobs the trials so far say matter."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.sampler.encoding import Matrix
from autotune.sampler.memory import Memory, Vector
from autotune.sampler.moves import Moves
from autotune.space import Knob
from autotune.trial import Configuration, KnobValue

WIDE = 40  # free knobs from which on they are screened
_GROUPS = 20  # groups that a wide space is cut into at first
_SHRINK, _GROW = 0.6, 1.1  # of the group after a failure and after a success
_TRIES = 12
_TRUST_EXPERTS = 0.6  # how often a value comes from the knob's prior where it has one
_DARE = 0.1  # how often a value is tried that so far was seen in failures only
_MOST_KNOBS = 16  # that are called important


class Screening:
    """Changes a group of knobs of the best so far; every knob gets its turn, experts' first.

    A better group becomes the new best as a whole. Failures make groups smaller, and values that
    were only ever seen in failures are left alone.
    """

    def __init__(
        self,
        moves: Moves,
        memory: Memory,
        rng: random.Random,
        knobs: Sequence[Knob],
        effects: Mapping[str, float],
    ) -> None:
        self._moves, self._memory, self._rng = moves, memory, rng
        self._knobs = {knob.name: knob for knob in knobs}
        self._effects = effects
        self._size = len(knobs) / _GROUPS
        self._waiting: list[str] = []
        self._tried: Counter[tuple[str, str]] = Counter()
        self._good: set[tuple[str, str]] = set()
        self._bad: set[tuple[str, str]] = set()

    def learn(self, configuration: Configuration, *, failed: bool) -> None:
        """Take note of what ran and what did not."""
        pairs = {(name, repr(value)) for name, value in configuration.items()}
        if failed:
            self._bad |= pairs
            self._size = max(1.0, self._size * _SHRINK)
        else:
            self._good |= pairs
            self._size = min(len(self._knobs) / _GROUPS, self._size * _GROW)

    def ask(self, base: Configuration, settled: Sequence[str]) -> Configuration | None:
        """``base`` with the next group changed; ``settled`` knobs are others' business."""
        size = max(1, round(self._size))
        for _ in range(_TRIES):
            names = self._next(size, settled)
            values = {name: self._value(self._knobs[name], base.get(name)) for name in names}
            found = self._moves.changed(base, values, self._memory.seen)
            if found is not None:
                for name, value in values.items():
                    self._tried[name, repr(value)] += 1
                return found
            size = max(1, size // 2)
        return None

    def _next(self, size: int, settled: Sequence[str]) -> list[str]:
        if len(self._waiting) < size:
            names = [n for n in self._knobs if n not in settled and n not in self._waiting]
            self._rng.shuffle(names)
            self._waiting += sorted(names, key=self._turn) if not self._tried else names
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        return taken

    def _turn(self, name: str) -> float:
        """What an audit saw move, what experts would try, what is about speed; then the rest."""
        knob = self._knobs[name]
        promise = 4.0 * bool(knob.prior) + 1.0 * ("throughput" in knob.affects)
        return -(promise + min(4.0, 100 * abs(self._effects.get(name, 0.0))))

    def _value(self, knob: Knob, now: KnobValue | None) -> KnobValue:
        if knob.prior and self._rng.random() < _TRUST_EXPERTS:
            fresh = [v for v in knob.prior if v != now]
            if fresh:
                return self._rng.choice(fresh)
        values = self._moves.others(knob, knob.default if now is None else now)
        if not values:
            return knob.default
        if self._rng.random() > _DARE:
            values = [v for v in values if not self._is_suspect(knob.name, v)] or values
        self._rng.shuffle(values)
        return min(values, key=lambda v: self._tried[knob.name, repr(v)])

    def _is_suspect(self, name: str, value: KnobValue) -> bool:
        pair = (name, repr(value))
        return pair in self._bad and pair not in self._good


def important(rows: Matrix, losses: Vector, owners: Sequence[tuple[str, ...]]) -> list[str]:
    """The knobs that explain the losses, by forward selection of columns; the first matter most.

    Stops when another column explains no more than the luckiest of so many columns of noise.
    """
    x = rows - rows.mean(axis=0)
    norms = np.sqrt((x * x).sum(axis=0))
    x = x[:, norms > 0] / norms[norms > 0]
    names = [owner for owner, norm in zip(owners, norms, strict=True) if norm > 0]
    rest = losses - losses.mean()
    basis = np.empty((0, len(losses)))
    found: list[str] = []
    while len(found) < _MOST_KNOBS and len(basis) < len(losses) // 3 and len(names):
        gains = (rest @ x) ** 2 / (rest @ rest + 1e-12)
        chosen = int(np.argmax(gains))
        # 2 log(p) / n: the share of variance that the best of p columns explains by luck alone.
        if gains[chosen] < 2 * np.log(len(names)) / len(losses):
            break
        direction = x[:, chosen] - basis.T @ (basis @ x[:, chosen])
        length = float(np.linalg.norm(direction))
        if length < 1e-6:
            break
        direction = direction / length
        basis = np.vstack([basis, direction])
        rest = rest - direction * (direction @ rest)
        found += [n for n in names[chosen] if n not in found]
    return found
