"""Two well-known searches to be measured against, written plainly: iterated local search and a
random forest with expected improvement. They know nothing that ``auto`` does beyond its basics."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from autotune.sampler import legal
from autotune.sampler.protocol import Key, Proposal, Strategy, key
from autotune.space import Choices, Floats, Knob, SearchSpace, members
from autotune.study import Objective
from autotune.trial import Configuration, KnobValue, TrialRecord

NAMES = ("ils", "rf")
_INITIAL = 10  # random points before the forest is asked
_POOL = 500
_NEIGHBOURS = 100  # of each of the best three
_TREES = 50
_GRID = 9  # values of a continuous knob that local search steps over


def make(name: str, space: SearchSpace, objective: Objective, seed: int) -> Strategy:
    """A reference strategy by name."""
    kind = {"ils": LocalSearch, "rf": Forest}[name]
    return kind(space, objective, seed)


class _Reference:
    def __init__(self, space: SearchSpace, objective: Objective, seed: int) -> None:
        self._space, self._objective = space, objective
        self._rng = random.Random(seed)
        self._seen: set[Key] = set()
        self._losses: list[tuple[float | None, Configuration]] = []

    def tell(self, record: TrialRecord) -> None:
        value = record.metric(self._objective.metric)
        loss = None if value is None else self._objective.sign * value
        self._losses.append((loss, record.spec.configuration))

    def replay(self, records: Iterable[TrialRecord]) -> None:
        for record in records:
            self._seen.add(key(record.spec.configuration))
            self.tell(record)

    def notices(self) -> tuple[str, ...]:
        return ()

    def _propose(self, configuration: Configuration | None) -> Proposal | None:
        if configuration is None:
            return None
        self._seen.add(key(configuration))
        return Proposal(configuration=configuration, stage="search")

    def _random(self) -> Configuration | None:
        return legal.unseen(self._space, self._seen, self._rng)

    def _beside(self, base: Configuration) -> Iterator[Configuration]:
        """Every legal configuration that differs in one knob, in random order."""
        moves = [(k.name, v) for k in self._space.free() if k.name in base for v in _values(k)]
        self._rng.shuffle(moves)
        for name, value in moves:
            if base[name] != value:
                changed = legal.complete(self._space, {**base, name: value})
                if key(changed) not in self._seen and legal.is_legal(self._space, changed):
                    yield changed


class LocalSearch(_Reference):
    """First improvement over one-knob steps; at a local optimum, start again from a random one."""

    def __init__(self, space: SearchSpace, objective: Objective, seed: int) -> None:
        super().__init__(space, objective, seed)
        self._here: tuple[float, Configuration] | None = None
        self._steps: Iterator[Configuration] = iter(())

    def ask(self) -> Proposal | None:
        return self._propose(next(self._steps, None) or self._restart())

    def tell(self, record: TrialRecord) -> None:
        super().tell(record)
        loss, configuration = self._losses[-1]
        if loss is not None and (self._here is None or loss < self._here[0]):
            self._here = (loss, configuration)
            self._steps = self._beside(configuration)

    def _restart(self) -> Configuration | None:
        self._here, self._steps = None, iter(())
        return self._random()


class Forest(_Reference):
    """Expected improvement of a random forest times its chance of success."""

    def ask(self) -> Proposal | None:
        good = [(loss, c) for loss, c in self._losses if loss is not None]
        if len(self._losses) < _INITIAL or len(good) < 3:
            return self._propose(self._random())
        good.sort(key=lambda pair: pair[0])
        pool = [c for _ in range(_POOL) if (c := legal.draw(self._space, self._rng)) is not None]
        for _, configuration in good[:3]:
            pool += itertools.islice(self._beside(configuration), _NEIGHBOURS)
        pool = [c for c in pool if key(c) not in self._seen]
        if not pool:
            return self._propose(self._random())
        scores = self._scores(good, pool)
        return self._propose(pool[int(np.argmax(scores))])

    def _scores(
        self, good: list[tuple[float, Configuration]], pool: list[Configuration]
    ) -> np.ndarray:
        losses = np.array([loss for loss, _ in good])
        if (losses > 0).all():
            losses = np.log(losses)
        forest = RandomForestRegressor(_TREES, random_state=self._rng.randrange(1 << 30), n_jobs=1)
        forest.fit(self._encode([c for _, c in good]), losses)
        points = self._encode(pool)
        votes = np.stack([tree.predict(points) for tree in forest.estimators_])
        mean, spread = votes.mean(0), votes.std(0) + 1e-9
        z = (losses.min() - mean) / spread
        score = spread * (z * norm.cdf(z) + norm.pdf(z))
        succeeded = [loss is not None for loss, _ in self._losses]
        if not all(succeeded):
            judge = RandomForestClassifier(_TREES, random_state=0, n_jobs=1)
            judge.fit(self._encode([c for _, c in self._losses]), succeeded)
            score = score * (judge.predict_proba(points)[:, 1] + 1e-6)
        return np.asarray(score)

    def _encode(self, configurations: list[Configuration]) -> np.ndarray:
        rows = [[_place(k, c.get(k.name)) for k in self._space.free()] for c in configurations]
        return np.array(rows, dtype=np.float32)


def _values(knob: Knob) -> list[KnobValue]:
    finite = members(knob.domain)
    if finite is not None:
        listed = list(finite)
        return listed if len(listed) <= 64 else listed[:: len(listed) // 32]
    assert isinstance(knob.domain, Floats)
    low, high = knob.domain.low, knob.domain.high
    return [low + (high - low) * i / (_GRID - 1) for i in range(_GRID)]


def _place(knob: Knob, value: KnobValue | None) -> float:
    if value is None:
        return -1.0
    if isinstance(knob.domain, Choices) and value in knob.domain.values:
        return float(knob.domain.values.index(value))
    return float(value) if isinstance(value, int | float) else -2.0
