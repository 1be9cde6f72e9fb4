"""Climbing from the best opener, one or two knobs at a time: what experts would try first, then the
rest in random order. For spaces so wide that a budget allows fewer trials than there are knobs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from autotune.candidates import losses_of
from autotune.sampler import legal
from autotune.sampler.protocol import Key, Proposal, key
from autotune.space import Floats, Knob, SearchSpace, members
from autotune.study import Limit, Objective
from autotune.trial import Configuration, KnobValue, TrialRecord

_PROMISING = 0.003  # a relative gain above which a change is kept for pairing with others
_TRIES = 400
_VERY_WIDE = 400  # knobs

Move = tuple[str, KnobValue]


class Climb:
    """Greedy in the first objective; limits make a trial infeasible."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        seed: int,
        openers: Sequence[Proposal],
    ) -> None:
        self._space, self._objectives, self._limits = space, tuple(objectives), tuple(limits)
        self._random = random.Random(seed)
        self._openers = list(openers)
        self._seen: set[Key] = set()
        self._best: tuple[list[float], Configuration] | None = None
        self._moves = self._all_moves()
        self._tried: dict[Key, tuple[Move, float]] = {}
        self._promising: dict[Move, float] = {}
        self._proposed = 0

    def ask(self) -> Proposal | None:
        """An opener, then the incumbent with one change (every fourth time: two good ones)."""
        while self._openers:
            opener = self._openers.pop(0)
            if key(opener.configuration) not in self._seen:
                self._seen.add(key(opener.configuration))
                return opener
        if self._best is None:
            return self._anything()
        self._proposed += 1
        if self._proposed % 4 == 0 and (pair := self._pair()) is not None:
            return pair
        return self._step()

    def tell(self, record: TrialRecord) -> None:
        """Move to a better configuration; remember which changes helped."""
        identity = key(record.spec.configuration)
        self._seen.add(identity)
        losses = losses_of(record, self._objectives, self._limits)
        move, before = self._tried.pop(identity, (None, 0.0))
        if losses is None:
            return
        if move is not None and before and (before - losses[0]) / abs(before) > _PROMISING:
            self._promising[move] = (before - losses[0]) / abs(before)
        if self._best is None or losses < self._best[0]:
            self._best = (losses, dict(record.spec.configuration))

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Rebuild what an earlier session knew."""
        for record in records:
            self.tell(record)

    def notices(self) -> tuple[str, ...]:
        """That it took the place of a model of all knobs, where somebody may have expected one."""
        count = len(self._space.free())
        if count <= _VERY_WIDE:
            return ()
        return (
            f"a model of {count:,} knobs would take longer than the trials; "
            "switched to a cheaper search, which changes one or two knobs at a time",
        )

    def _all_moves(self) -> list[Move]:
        """Experts' values first, then one other value of every knob, the likely ones first."""
        first: list[Move] = []
        rest: list[tuple[float, Move]] = []
        for knob in self._space.free():
            first += [(knob.name, value) for value in knob.prior]
            others = [v for v in _values(knob) if v != knob.default]
            if others:
                likely = "throughput" in knob.affects
                rank = self._random.random() + (0 if likely else 1)
                rest.append((rank, (knob.name, self._random.choice(others))))
        return [*first, *(move for _, move in sorted(rest, key=lambda pair: pair[0]))]

    def _step(self) -> Proposal | None:
        for index, move in enumerate(self._moves):
            proposal = self._propose((move,), "search")
            if proposal is not None:
                del self._moves[: index + 1]
                return proposal
        self._moves = self._all_moves()
        return self._anything()

    def _pair(self) -> Proposal | None:
        good = sorted(self._promising, key=lambda move: -self._promising[move])[:6]
        for first in good:
            others = [m for m in good if m[0] != first[0]]
            proposal = self._propose((*others[:1], first), "refine")
            if proposal is not None:
                return proposal
        return None

    def _propose(self, moves: Sequence[Move], stage: str) -> Proposal | None:
        assert self._best is not None
        losses, incumbent = self._best
        changed = dict(incumbent)
        for name, value in moves:
            if incumbent.get(name) == value:
                return None
            changed[name] = value
        wanted = legal.complete(self._space, changed)
        if any(wanted.get(name) != value for name, value in moves):
            return None  # not active beside the incumbent
        identity = key(wanted)
        if identity in self._seen or not legal.is_legal(self._space, wanted):
            return None
        self._seen.add(identity)
        if len(moves) == 1:
            self._tried[identity] = (moves[0], losses[0])
        label = ", ".join(f"{name}={value}" for name, value in moves)
        return Proposal(configuration=wanted, stage=stage, label=label[:120])

    def _anything(self) -> Proposal | None:
        """A random legal configuration, not far from the default."""
        base = self._best[1] if self._best else self._space.default()
        knobs = list(self._space.free())
        for _ in range(_TRIES):
            changed = dict(base)
            for knob in self._random.sample(knobs, min(len(knobs), self._random.randint(1, 3))):
                values = list(_values(knob))
                if values:
                    changed[knob.name] = self._random.choice(values)
            wanted = legal.complete(self._space, changed)
            if key(wanted) not in self._seen and legal.is_legal(self._space, wanted):
                self._seen.add(key(wanted))
                return Proposal(configuration=wanted, stage="search", label="random step")
        return None


def _values(knob: Knob) -> Iterator[KnobValue]:
    finite = members(knob.domain)
    if finite is not None:
        yield from finite
        return
    assert isinstance(knob.domain, Floats)
    low, high = knob.domain.low, knob.domain.high
    yield from (low, round((low + high) / 2, 6), high)
