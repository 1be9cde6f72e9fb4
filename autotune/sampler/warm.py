"""What another study may say to this one: where to look first, never what is true here."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.sampler.protocol import Proposal
from autotune.space import SearchSpace
from autotune.study import Objective
from autotune.trial import Configuration, KnobValue, TrialRecord

_OPENERS = 3


def openers(
    space: SearchSpace, objectives: Sequence[Objective], history: Sequence[TrialRecord]
) -> list[Proposal]:
    """The best few configurations of another study, as far as this space can express them."""
    ranked = sorted(
        (record for record in history if _loss(record, objectives) is not None),
        key=lambda record: _loss(record, objectives) or 0.0,
    )
    found: dict[tuple[tuple[str, str], ...], Proposal] = {}
    for record in ranked:
        wanted = translated(space, record.spec.configuration)
        identity = tuple(sorted((n, repr(v)) for n, v in wanted.items()))
        found.setdefault(
            identity,
            Proposal(
                configuration=wanted,
                stage="preset",
                label=f"from {record.spec.study} #{record.spec.number}",
            ),
        )
        if len(found) == _OPENERS:
            break
    return list(found.values())


def translated(space: SearchSpace, configuration: Configuration) -> dict[str, KnobValue]:
    """A configuration of another space in this one: values that this one accepts, else defaults."""
    known = {knob.name: knob for knob in space.free()}
    kept = {
        name: value
        for name, value in configuration.items()
        if name in known and known[name].accepts(value)
    }
    return space.complete(kept)


def _loss(record: TrialRecord, objectives: Sequence[Objective]) -> float | None:
    """The first objective that both studies know, to be minimised."""
    for objective in objectives:
        value = record.metric(objective.metric)
        if value is not None:
            return objective.sign * value
    return None
