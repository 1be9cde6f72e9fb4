"""Moves budget to the proposer that works: each is paid by how often it finds something better."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from autotune.sampler.protocol import Key

_FORGET = 0.95  # per trial that comes back: what worked at first need not work now
_SHARES: Mapping[str, float] = {"model": 0.8, "local": 0.2, "groups": 0.8}  # at first
_BELIEF = 8.0  # trials' worth of belief in the shares at first
_LEAST = 0.1


class Portfolio:
    """Chooses among proposers at random, by shares that follow their success."""

    def __init__(self, arms: Sequence[str], rng: random.Random) -> None:
        self._rng = rng
        self._tries = dict.fromkeys(arms, 0.0)
        self._wins = dict.fromkeys(arms, 0.0)
        self._running: dict[Key, str] = {}

    def choose(self) -> str:
        """The proposer of the next trial."""
        rates = {
            a: (self._wins[a] + _BELIEF * 0.1) / (self._tries[a] + _BELIEF) for a in self._tries
        }
        weights = {a: rates[a] * _SHARES[a] for a in rates}
        total = sum(weights.values())
        shares = [max(_LEAST, weights[a] / total) for a in weights]
        return self._rng.choices(list(weights), shares)[0]

    def sent(self, identity: Key, arm: str) -> None:
        """Remember who asked for it."""
        self._running[identity] = arm

    def came_back(self, identity: Key, better: bool) -> None:
        """Credit whoever asked for it."""
        arm = self._running.pop(identity, None)
        if arm is None:
            return
        for name in self._tries:
            self._tries[name] *= _FORGET
            self._wins[name] *= _FORGET
        self._tries[arm] += 1
        self._wins[arm] += better
