"""Trials without processes: spaces made up on the spot and records as the loop would hand back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from autotune.requirement import parse
from autotune.sampler.protocol import Proposal, Strategy
from autotune.space import Choices, Domain, Floats, Integers, Knob, Rule, SearchSpace
from autotune.study import Objective
from autotune.trial import (
    Configuration,
    Fidelity,
    KnobValue,
    Measurement,
    Status,
    TrialRecord,
    TrialSpec,
)

SPEED = Objective(metric="tokens_per_second", direction="max")
Truth = Callable[[Configuration], float | None]  # None: the trial crashes


def knob(name: str, domain: Domain, default: KnobValue, when: str = "") -> Knob:
    """A knob of which nothing else is known."""
    return Knob(
        name=name,
        domain=domain,
        default=default,
        apply={"argument": name},
        summary=name,
        when=parse(when) if when else None,
    )


def space(knobs: Iterable[Knob], *rules: str) -> SearchSpace:
    """A space with these rules between its knobs."""
    made = tuple(Rule(requirement=parse(rule), reason="so it is") for rule in rules)
    return SearchSpace(name="simulated", knobs=tuple(knobs), rules=made)


def random_space(seed: int) -> SearchSpace:
    """Every kind of domain, conditions on earlier knobs, defaults outside, and two rules."""
    rng = random.Random(seed)
    knobs = [knob("fast", Choices(values=(False, True)), False)]
    knobs.append(knob("batch", Integers(low=1, high=64, factor=2), 1))
    knobs.append(knob("lanes", Integers(low=1, high=9), 3))
    for i in range(rng.randint(2, 6)):
        when = rng.choice(["", "fast == true", "batch >= 8"])
        domain, default = rng.choice(
            [
                (Choices(values=("a", "b", "c")), "b"),
                (Integers(low=0, high=12, step=3), 0),
                (Integers(low=1, high=4), "unset"),
                (Floats(low=0.1, high=0.9, step=0.2), 0.1),
                (Floats(low=1e-5, high=1e-1, log=True), 1e-3),
            ]
        )
        knobs.append(knob(f"k{i}", domain, default, when))
    return space(knobs, "batch * lanes <= 96", "fast or lanes <= 6")


def record(
    number: int, proposal: Proposal, value: float | None, status: Status | None = None
) -> TrialRecord:
    """What the loop hands back for a proposal; None is a crash."""
    spec = TrialSpec(
        study="simulated",
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
    done = value is not None
    return TrialRecord(
        spec=spec,
        status=status or (Status.COMPLETE if done else Status.CRASHED),
        measurement=Measurement(metrics={SPEED.metric: value}) if done else None,
        failure=None,
        wall_seconds=1.0,
        started_at="",
        host="",
        folder="",
    )


def search(strategy: Strategy, truth: Truth, trials: int, first: int = 0) -> list[TrialRecord]:
    """One trial at a time, until the strategy has nothing more to propose."""
    records = []
    for number in range(first, first + trials):
        proposal = strategy.ask()
        if proposal is None:
            break
        records.append(record(number, proposal, truth(proposal.configuration)))
        strategy.tell(records[-1])
    return records
