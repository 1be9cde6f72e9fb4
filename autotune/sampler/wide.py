"""The model's proposals in a wide space: only the knobs that seem to matter are looked at."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from autotune.sampler.judge import Judge
from autotune.sampler.memory import Memory, Vector
from autotune.sampler.moves import Moves
from autotune.sampler.screening import important
from autotune.trial import Configuration

_LOOKS = 100  # steps that are looked at for a proposal
_BASES = 3  # of the best, from which they start
_BREADTH = 3  # knobs that a leap changes at most
_NEWS = 0.05  # growth of the number of trials after which the selection is made anew


class Narrow:
    """The part of a wide space that the trials so far say is worth a model."""

    def __init__(self, moves: Moves, memory: Memory, rng: random.Random) -> None:
        self._moves, self._memory, self._rng = moves, memory, rng
        self._made_at = 0
        self.names: list[str] = []
        self.columns = np.zeros(0, dtype=np.intp)

    def update(self, losses: Vector) -> None:
        """Select again when there is enough news."""
        if len(losses) < self._made_at * (1 + _NEWS) + 1:
            return
        self._made_at = len(losses)
        good = np.flatnonzero(self._memory.succeeded)
        owners = self._memory.encoder.owners
        self.names = important(self._memory.rows[good], losses, owners)
        chosen = set(self.names)
        columns = [i for i, owner in enumerate(owners) if chosen.issuperset(owner)]
        if columns != self.columns.tolist():
            self.columns = np.array(columns, dtype=np.intp)

    def ask(self, judge: Judge, elite: Sequence[Configuration]) -> Configuration | None:
        """The best by the model of steps of one to three of the knobs that matter."""
        found = []
        for _ in range(_LOOKS):
            size = min(len(self.names), self._rng.randint(1, _BREADTH))
            base = self._rng.choice(list(elite[:_BASES]))
            leap = self._moves.leap(base, self._rng.sample(self.names, size), self._memory.seen)
            if leap is not None:
                found.append(leap)
        if not found:
            return None
        scores = judge.scores(self._memory.encoder.rows(found))
        return found[int(np.argmax(scores))]
