"""The strategy that is used when nobody names one: openers, then whatever brings most."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autotune.sampler.encoding import Matrix
from autotune.sampler.judge import Judge
from autotune.sampler.local import LocalSearch
from autotune.sampler.memory import Memory, Vector
from autotune.sampler.moves import Moves
from autotune.sampler.portfolio import Portfolio
from autotune.sampler.protocol import Key, Proposal, key
from autotune.sampler.screening import WIDE, Screening
from autotune.sampler.wide import Narrow
from autotune.space import SearchSpace
from autotune.study import Limit, Objective
from autotune.trial import Configuration, TrialRecord

_VERY_WIDE = 400  # knobs
_FIRST = 8  # random trials before a model is asked
_FEWEST = 3  # successes that a model needs
_POOL = 1000  # random legal points that the model may choose from
_FRESH = 100  # of them new at every proposal
_ELITE = 5
_CLIMBERS = 3  # candidates from which the model looks further
_CLIMBS = 3
_TWO_STEPS = 20  # from each of the elite
_STAGES = {"groups": "screening", "model": "search", "local": "refine"}


class Auto:
    """Ask and tell; see docs/strategy.md for the stages."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        seed: int,
        openers: Sequence[Proposal],
        effects: Mapping[str, float] | None = None,
    ) -> None:
        """``effects``: how much each knob moved the objective in an audit, where one was made."""
        self._space, self._seed = space, seed
        self._effects = effects or {}
        self._wide = len(space.free()) >= WIDE
        self._openers = list(openers)
        self._steady = len(objectives) == 1
        self._memory = Memory(space, objectives, limits)
        self._reseed(0)
        self._pool: list[tuple[Key, Configuration, Matrix]] = []

    def _reseed(self, told: int) -> None:
        """Every source of chance anew: what follows a replay must not repeat what came before."""
        self._random = random.Random(f"{self._seed}/{told}")
        self._numbers = np.random.default_rng([self._seed, told])
        self._moves = Moves(self._space, self._random)
        self._local = LocalSearch(self._moves, self._memory, self._random)
        arms = ("model", "groups", "local") if self._wide else ("model", "local")
        self._portfolio = Portfolio(arms, self._random)
        self._judge = Judge(self._memory, self._numbers, steady=self._steady)
        self._narrow = Narrow(self._moves, self._memory, self._random)
        self._screening = Screening(
            self._moves, self._memory, self._random, self._space.free(), self._effects
        )

    def ask(self) -> Proposal | None:
        """Openers, a few random points, then model and local search as they earn it."""
        while self._openers:
            opener = self._openers.pop(0)
            if key(opener.configuration) not in self._memory.seen:
                return self._send(opener)
        good = int(self._memory.succeeded.sum()) if len(self._memory) else 0
        if good < _FEWEST or (len(self._memory) < _FIRST and not self._wide):
            return self._start()
        losses = self._memory.losses(self._numbers)
        elite = self._memory.best(_ELITE, losses)
        arm, found = self._chosen(losses, elite)
        if found is None:
            return self._anything()
        self._portfolio.sent(key(found), arm)
        stage = _STAGES[arm]
        return self._send(Proposal(configuration=found, stage=stage, label=arm))

    def _start(self) -> Proposal | None:
        """Before a model can be made: groups about what works in a wide space, else anything."""
        if not self._wide:
            return self._anything()
        base = self._memory.best_configuration or self._space.default()
        found = self._screening.ask(base, ())
        if found is None:
            return self._anything()
        return self._send(Proposal(configuration=found, stage="screening", label="groups"))

    def _chosen(
        self, losses: Vector, elite: Sequence[Configuration]
    ) -> tuple[str, Configuration | None]:
        columns = None
        if self._wide:
            self._narrow.update(losses)
            columns = self._narrow.columns
        arm = self._portfolio.choose()
        if self._wide and (arm == "groups" or not self._narrow.names):
            found = self._screening.ask(elite[0], self._narrow.names)
            if found is not None:
                return "groups", found
            if not self._narrow.names:
                return "groups", None
        judge = self._judge
        judge.learn(losses, columns)
        found = None
        if arm == "local":
            names = self._narrow.names if self._wide else None
            found = self._local.ask(judge, elite, names)
        if found is None and self._wide:
            return "model", self._narrow.ask(judge, elite)
        return (arm, found) if found is not None else ("model", self._model(judge, elite))

    def tell(self, record: TrialRecord) -> None:
        """Learn from a record and credit the arm that asked for it."""
        before = self._best()
        if self._memory.finish(record):
            after = self._best()
            better = after is not None and (before is None or after < before)
            self._portfolio.came_back(key(record.spec.configuration), better)
            if self._wide:
                self._screening.learn(record.spec.configuration, failed=not self._memory.last_ran)

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Rebuild what an earlier session knew; go on with fresh random numbers."""
        known = list(records)
        if known:
            self._reseed(len(known))
        for record in known:
            self.tell(record)

    def notices(self) -> tuple[str, ...]:
        """That a space is too wide for a model of all its knobs."""
        count = len(self._space.free())
        if count <= _VERY_WIDE:
            return ()
        return (
            f"a model of {count:,} knobs would take longer than the trials; switched to a cheaper "
            "search, which screens groups of knobs and models those that matter",
        )

    def _best(self) -> float | None:
        return self._memory.lowest

    def _send(self, proposal: Proposal) -> Proposal:
        self._memory.start(proposal.configuration)
        return proposal

    def _anything(self) -> Proposal | None:
        found = self._moves.unseen(1, self._memory.seen)
        if not found:
            return None
        return self._send(Proposal(configuration=found[0], stage="search", label="random"))

    def _model(self, judge: Judge, elite: Sequence[Configuration]) -> Configuration | None:
        """The best by the model of a pool of random points and of steps from the best trials."""
        self._refresh()
        near = [c for base in elite for c in self._moves.beside(base, self._memory.seen)]
        near += self._two_steps(elite)
        candidates = [c for _, c, _ in self._pool] + near
        if not candidates:
            return None
        rows = [r for _, _, r in self._pool]
        matrix = np.vstack([*rows, self._memory.encoder.rows(near)]) if near else np.stack(rows)
        return self._climbed(judge, candidates, judge.scores(matrix))

    def _climbed(
        self, judge: Judge, candidates: Sequence[Configuration], scores: Vector
    ) -> Configuration:
        """What is reached from the best few by steps that the model likes still better."""
        order = np.argsort(-scores, kind="stable")[:_CLIMBERS]
        front: list[tuple[float, Configuration]] = [
            (float(scores[i]), candidates[i]) for i in order
        ]
        looked: set[Key] = set()
        for _ in range(_CLIMBS):
            around = []
            for _, base in front:
                if key(base) not in looked:
                    looked.add(key(base))
                    around += list(self._moves.beside(base, self._memory.seen))
            if not around:
                break
            found = judge.scores(self._memory.encoder.rows(around))
            everything = front + list(zip(map(float, found), around, strict=True))
            front = sorted(everything, key=lambda pair: -pair[0])[:_CLIMBERS]
        return front[0][1]

    def _two_steps(self, elite: Sequence[Configuration]) -> list[Configuration]:
        found = []
        for base in elite:
            names = [n for n in base if n in self._moves.names]
            for _ in range(_TWO_STEPS):
                picked = self._random.sample(names, min(2, len(names)))
                leap = self._moves.leap(base, picked, self._memory.seen)
                if leap is not None:
                    found.append(leap)
        return found

    def _refresh(self) -> None:
        kept = [entry for entry in self._pool if entry[0] not in self._memory.seen]
        wanted = _FRESH if kept else _POOL
        known = {entry[0] for entry in kept}
        for configuration in self._moves.anywhere(wanted):
            identity = key(configuration)
            if identity not in known and identity not in self._memory.seen:
                known.add(identity)
                row = self._memory.encoder.rows([configuration])[0]
                kept.append((identity, configuration, row))
        self._pool = kept[-_POOL:]
