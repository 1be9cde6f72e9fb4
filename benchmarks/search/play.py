"""Plays one strategy against one problem with one seed."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.sampler import factory
from autotune.sampler.protocol import Proposal, Strategy
from autotune.study import Budget, Objective
from autotune.trial import Fidelity, Measurement, Status, TrialRecord, TrialSpec
from benchmarks.search import reference
from benchmarks.search.problem import Answer, Problem

STRATEGIES = (*factory.NAMES, *reference.NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """One run: the true gap of the best found after each trial, and what it cost."""

    problem: str
    strategy: str
    seed: int
    gaps: tuple[float, ...]  # inf until something succeeded
    failed: tuple[bool, ...]
    seconds: tuple[float, ...]  # of the trials, cumulated, compile and run
    ask_seconds: tuple[float, ...]  # asking and telling
    solved_at: int | None  # trials to within the problem's share of best

    def gap_at(self, trials: int) -> float:
        """The gap after that many trials, or after the last there was."""
        return self.gaps[min(trials, len(self.gaps)) - 1]

    def gap_by(self, seconds: float) -> float:
        """The gap when the trials had cost that much; inf before the first came back."""
        done = sum(1 for spent in self.seconds if spent <= seconds)
        return self.gaps[done - 1] if done else float("inf")

    @property
    def solved_seconds(self) -> float | None:
        """What the trials had cost when the problem was solved."""
        return None if self.solved_at is None else self.seconds[self.solved_at - 1]

    @property
    def invalid_share(self) -> float:
        return sum(self.failed) / len(self.failed)

    @property
    def late_invalid_share(self) -> float:
        """Of the second half of the trials."""
        half = self.failed[len(self.failed) // 2 :]
        return sum(half) / len(half)

    @property
    def ask_median(self) -> float:
        return statistics.median(self.ask_seconds)


Maker = Callable[[Problem, int, int], Strategy]


def maker(name: str) -> Maker:
    """The strategy of that name; it starts at the default where the problem has one."""

    def build(problem: Problem, seed: int, trials: int) -> Strategy:
        if name in reference.NAMES:
            return reference.make(name, problem.space, problem.objective, seed)
        return factory.make(
            name,
            problem.space,
            objectives=(problem.objective,),
            seed=seed,
            budget=Budget(seconds=None, trials=trials),
            start_at_default=problem.has_default,
        )

    return build


def play(
    problem: Problem, strategy: str, *, seed: int, trials: int, until_solved: bool = False
) -> Game:
    """Ask, answer, tell; one trial at a time."""
    rng = random.Random(f"{seed}/noise")
    player = maker(strategy)(problem, seed, trials)
    gaps: list[float] = []
    failed: list[bool] = []
    clock: list[float] = []
    asks: list[float] = []
    best, spent = float("inf"), 0.0
    for number in range(trials):
        start = time.perf_counter()
        proposal = player.ask()
        asks.append(time.perf_counter() - start)
        if proposal is None:
            break  # the space is exhausted
        answer = problem.ask(proposal.configuration, rng)
        start = time.perf_counter()
        player.tell(record(problem.objective, number, proposal, answer))
        asks[-1] += time.perf_counter() - start
        truth = problem.truth(proposal.configuration) if answer.value is not None else None
        if truth is not None:
            best = min(best, problem.gap(truth))
        spent += answer.seconds
        gaps.append(best)
        failed.append(answer.status is not Status.COMPLETE)
        clock.append(spent)
        if until_solved and best <= problem.within:
            break
    solved = next((i + 1 for i, gap in enumerate(gaps) if gap <= problem.within), None)
    return Game(
        problem=problem.name,
        strategy=strategy,
        seed=seed,
        gaps=tuple(gaps),
        failed=tuple(failed),
        seconds=tuple(clock),
        ask_seconds=tuple(asks),
        solved_at=solved,
    )


def record(objective: Objective, number: int, proposal: Proposal, answer: Answer) -> TrialRecord:
    """A trial record as the loop would hand it back."""
    spec = TrialSpec(
        study="benchmark",
        number=number,
        task="train",
        runner="toy",
        model={},
        workload={},
        configuration=dict(proposal.configuration),
        applied=(),
        stage=proposal.stage,
        fidelity=Fidelity(),
        seed=0,
        gpus=0,
        timeout_seconds=60.0,
    )
    metrics: Mapping[str, float | None] = {objective.metric: answer.value}
    done = answer.status is Status.COMPLETE
    return TrialRecord(
        spec=spec,
        status=answer.status,
        measurement=Measurement(metrics=metrics) if done else None,
        failure=None,
        wall_seconds=answer.seconds,
        started_at="",
        host="",
        folder="",
    )
