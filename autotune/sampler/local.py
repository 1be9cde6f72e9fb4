"""Iterated local search: walks down from one start after another, for optima that no model sees."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np

from autotune.sampler.judge import Judge
from autotune.sampler.memory import Memory
from autotune.sampler.moves import Moves
from autotune.trial import Configuration

_LEAPS = 8
_BREADTH = 3  # knobs that a restart changes at most


class LocalSearch:
    """First improvement in the order that the model likes; stuck, it starts again nearby."""

    def __init__(self, moves: Moves, memory: Memory, rng: random.Random) -> None:
        self._moves, self._memory, self._rng = moves, memory, rng
        self._here: Configuration | None = None
        self._trying: list[Configuration] = []
        self._starts = 0

    def ask(
        self, judge: Judge, elite: Sequence[Configuration], names: Collection[str] | None = None
    ) -> Configuration | None:
        """The next step of the walk over these knobs (or all), or a new start."""
        self._walk()
        if self._here is None:
            self._here = elite[0]
        around = list(self._moves.beside(self._here, self._memory.seen, names))
        if not around:
            return self._restart(judge, elite, names)
        chosen = around[self._liked(judge, around)]
        self._trying.append(chosen)
        return chosen

    def _walk(self) -> None:
        """Move to the best of what was tried, if that is better than here."""
        if self._here is None:
            return
        waiting = []
        for configuration in self._trying:
            loss, here = self._memory.loss(configuration), self._memory.loss(self._here)
            if loss is not None and (here is None or loss < here):
                self._here = configuration
            elif self._memory.is_running(configuration):
                waiting.append(configuration)
        self._trying = waiting

    def _liked(self, judge: Judge, around: Sequence[Configuration]) -> int:
        rows = self._memory.encoder.rows(around)
        mean, spread = judge.expect(rows)
        noise = np.array([self._rng.gauss(0, 1) for _ in around])
        optimism = np.exp(-(mean + spread * noise - judge.best))
        return int(np.argmax(optimism * (judge.chance(rows) + 0.01)))

    def _restart(
        self, judge: Judge, elite: Sequence[Configuration], names: Collection[str] | None
    ) -> Configuration | None:
        """Two or three knobs away from one of the best, or anywhere."""
        usable = self._moves.names if names is None else names
        self._starts += 1
        found: list[Configuration] = []
        base = self._rng.choice(list(elite))
        here = [n for n in base if n in usable]
        if self._starts % 2 or names is not None:
            for _ in range(_LEAPS):
                size = min(len(here), self._rng.randint(2, _BREADTH))
                leap = self._moves.leap(base, self._rng.sample(here, size), self._memory.seen)
                if leap is not None:
                    found.append(leap)
        found = found or self._moves.unseen(_LEAPS, self._memory.seen)
        if not found:
            return None
        chance = judge.chance(self._memory.encoder.rows(found))
        self._here = found[int(np.argmax(chance))]
        return self._here
