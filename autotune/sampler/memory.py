"""What a strategy knows: every configuration tried or running, and how the finished ones did."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.candidates import losses_of
from autotune.sampler.encoding import Encoder, Matrix
from autotune.sampler.protocol import Key, key
from autotune.space import SearchSpace
from autotune.study import Limit, Objective
from autotune.trial import Configuration, Status, TrialRecord

Vector = NDArray[np.float64]

_SHARPNESS = 0.05  # of the sum that an augmented Chebyshev norm adds, so that ties break well


class Memory:
    """Told of every proposal and record; a failed trial and a broken limit count as failures."""

    def __init__(
        self, space: SearchSpace, objectives: Sequence[Objective], limits: Sequence[Limit]
    ) -> None:
        self._objectives, self._limits = tuple(objectives), tuple(limits)
        self.encoder = Encoder(space)
        self.seen: set[Key] = set()
        self.configurations: list[Configuration] = []
        self._index: dict[Key, int] = {}
        self._rows: list[Matrix] = []
        self._losses: list[list[float] | None] = []
        self._running: dict[Key, Matrix] = {}

    def __len__(self) -> int:
        return len(self._losses)

    def start(self, configuration: Configuration) -> None:
        """A proposal leaves; nobody will propose it again."""
        identity = key(configuration)
        self.seen.add(identity)
        self._running[identity] = self.encoder.rows([configuration])[0]

    def finish(self, record: TrialRecord) -> bool:
        """A record comes back, asked for here or elsewhere; whether it is a new one."""
        configuration = record.spec.configuration
        identity = key(configuration)
        row = self._running.pop(identity, None)
        if record.status is Status.ABANDONED:
            if identity not in self._index:
                self.seen.discard(identity)  # nobody knows how it would have ended
            return False
        self.seen.add(identity)
        if identity in self._index:
            return False
        self._index[identity] = len(self._losses)
        self.configurations.append(dict(configuration))
        self._rows.append(self.encoder.rows([configuration])[0] if row is None else row)
        self._losses.append(losses_of(record, self._objectives, self._limits))
        return True

    def is_running(self, configuration: Configuration) -> bool:
        """Whether it was proposed and has not come back."""
        return key(configuration) in self._running

    def loss(self, configuration: Configuration) -> float | None:
        """The first objective's loss of something measured."""
        index = self._index.get(key(configuration))
        losses = None if index is None else self._losses[index]
        return None if losses is None else losses[0]

    @property
    def lowest(self) -> float | None:
        """The first objective's lowest loss so far."""
        return min((losses[0] for losses in self._losses if losses is not None), default=None)

    @property
    def best_configuration(self) -> Configuration | None:
        """The one with the first objective's lowest loss."""
        known = [(losses[0], i) for i, losses in enumerate(self._losses) if losses is not None]
        return self.configurations[min(known)[1]] if known else None

    @property
    def last_ran(self) -> bool:
        """Whether the newest record is a success."""
        return self._losses[-1] is not None

    @property
    def rows(self) -> Matrix:
        """Every finished trial, one row each."""
        return np.stack(self._rows)

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """Which rows have a loss."""
        return np.array([losses is not None for losses in self._losses], dtype=bool)

    @property
    def running(self) -> Matrix | None:
        """Rows of what was proposed and has not come back."""
        return np.stack(list(self._running.values())) if self._running else None

    def losses(self, rng: np.random.Generator) -> Vector:
        """One number per successful row, to be minimised, on a scale where ratios are steps.

        Several objectives are folded into one by random weights, anew at every call: over many
        calls the whole front is searched.
        """
        table = np.array([losses for losses in self._losses if losses is not None])
        columns = [_scaled(table[:, i]) for i in range(table.shape[1])]
        if len(columns) == 1:
            return columns[0]
        weights = rng.dirichlet(np.ones(len(columns)))
        unit = [(c - c.min()) / (np.ptp(c) or 1.0) for c in columns]
        weighted = np.stack([w * c for w, c in zip(weights, unit, strict=True)])
        return np.asarray(weighted.max(axis=0) + _SHARPNESS * weighted.sum(axis=0))

    def best(self, count: int, losses: Vector) -> list[Configuration]:
        """The configurations with the lowest losses, best first."""
        good = np.flatnonzero(self.succeeded)
        return [self.configurations[good[i]] for i in np.argsort(losses, kind="stable")[:count]]


def _scaled(losses: Vector) -> Vector:
    """Logarithms where every value has one sign: a time twice as long is one step worse."""
    if (losses > 0).all():
        return np.log(losses)
    if (losses < 0).all():
        return -np.log(-losses)
    spread = float(np.median(np.abs(losses - np.median(losses))))
    return np.asarray(losses / (spread if spread > 0 and math.isfinite(spread) else 1.0))
