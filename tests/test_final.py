"""The final stage over simulated studies: it confirms what is there and claims nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from autotune.candidates import pick
from autotune.final import FinalStage
from autotune.interval import Looks
from autotune.sampler.factory import make
from autotune.space import Choices, Integers, SearchSpace
from autotune.study import Outcome
from autotune.trial import Configuration, TrialRecord
from tests.simulated import SPEED, knob, record, search, space

_NOISE = 0.02
Speed = Callable[[Configuration], float]


def _space() -> SearchSpace:
    switches = [knob(f"switch{i}", Choices(values=(False, True)), False) for i in range(5)]
    return space([*switches, *(knob(f"steps{i}", Integers(low=1, high=8), 1) for i in range(3))])


def _study(
    speed: Speed, seed: int, strategy: str, trials: int
) -> tuple[Outcome, list[TrialRecord]]:
    """Search and final stage of one study, every measurement with noise."""
    rng, where = random.Random(seed), _space()

    def measured(configuration: Configuration) -> float:
        return speed(configuration) * math.exp(rng.gauss(0, _NOISE))

    records = search(make(strategy, where, objectives=[SPEED], seed=seed), measured, trials)
    final = FinalStage(
        where,
        objectives=[SPEED],
        limits=(),
        candidates=pick(records, [SPEED]),
        baselines={"default": where.default()},
        neighbours=False,
    )
    finals: list[TrialRecord] = []
    while (proposal := final.ask()) is not None:
        value = measured(proposal.configuration)
        finals.append(record(len(records) + len(finals), proposal, value))
        final.tell(finals[-1])
    return final.conclude("done"), finals


def _claims_a_gain(outcome: Outcome) -> bool:
    return any(c.verdict == "better" for c in outcome.comparisons)


def test_where_nothing_matters_hardly_a_study_claims_a_gain() -> None:
    claims = sum(_claims_a_gain(_study(lambda _: 1000.0, s, "random", 25)[0]) for s in range(40))
    assert claims <= 2


def test_a_planted_gain_of_three_percent_is_found_and_confirmed() -> None:
    def speed(configuration: Configuration) -> float:
        return 1030.0 if configuration["switch0"] else 1000.0

    outcomes = [_study(speed, seed, "auto", 20)[0] for seed in range(40)]
    found = [o for o in outcomes if _claims_a_gain(o) and o.changed.get("switch0") is True]
    assert len(found) >= 36


def test_changes_that_do_not_pay_are_taken_back() -> None:
    def speed(configuration: Configuration) -> float:
        return 1300.0 if configuration["switch0"] and configuration["steps0"] > 3 else 1000.0

    outcomes = [_study(speed, seed, "auto", 30)[0] for seed in range(5)]
    assert all({"switch0", "steps0"} <= o.changed.keys() for o in outcomes)
    # As found, a configuration differs from the default in six of eight knobs or so.
    assert sum(len(o.changed) - 2 for o in outcomes) <= 8


def test_final_numbers_come_from_the_final_repeats_alone() -> None:
    where = _space()
    strategy = make("random", where, objectives=[SPEED], seed=1)
    lucky = search(strategy, lambda _: 2000.0, 8)
    final = FinalStage(
        where,
        objectives=[SPEED],
        limits=(),
        candidates=pick(lucky[1:], [SPEED]),
        baselines={"default": where.default()},
        looks=Looks(first=5, last=7),
        neighbours=False,
    )
    number, noise = len(lucky), random.Random(5)
    while (proposal := final.ask()) is not None:
        final.tell(record(number, proposal, noise.uniform(999.0, 1001.0)))
        number += 1
    outcome = final.conclude("done")
    assert outcome.measured[SPEED.metric].high < 1003
    assert not _claims_a_gain(outcome)
