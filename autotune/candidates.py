"""Which configurations of a search go on to the final."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.pareto import front
from autotune.sampler.protocol import Key, key
from autotune.study import Limit, Objective
from autotune.trial import Configuration, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration that the search thinks well of, and the trial that found it."""

    number: int
    configuration: Configuration


def pick(
    records: Iterable[TrialRecord],
    objectives: Sequence[Objective],
    limits: Sequence[Limit] = (),
    *,
    count: int = 5,
) -> list[Candidate]:
    """The best feasible configurations of a search, best first, each once.

    One objective: by its value. Several: the front only, from its knee outwards.
    """
    found: dict[Key, tuple[TrialRecord, list[float]]] = {}
    for record in records:
        losses = losses_of(record, objectives, limits)
        identity = key(record.spec.configuration)
        if losses is not None and (identity not in found or losses < found[identity][1]):
            found[identity] = (record, losses)
    entries = list(found.values())
    if len(objectives) > 1:
        entries = [entries[i] for i in front([losses for _, losses in entries])]
        ranks = knee_distances([losses for _, losses in entries])
    else:
        ranks = [losses[0] for _, losses in entries]
    order = sorted(range(len(entries)), key=lambda i: (ranks[i], entries[i][0].spec.number))
    return [
        Candidate(number=entries[i][0].spec.number, configuration=entries[i][0].spec.configuration)
        for i in order[:count]
    ]


def losses_of(
    record: TrialRecord, objectives: Sequence[Objective], limits: Sequence[Limit]
) -> list[float] | None:
    """Objective values to be minimised, or None for a trial that failed or breaks a limit."""
    if not all(limit.is_met(record.metric(limit.metric)) for limit in limits):
        return None
    losses = []
    for objective in objectives:
        value = record.metric(objective.metric)
        if value is None or not math.isfinite(value):
            return None
        losses.append(objective.sign * value)
    return losses


def knee_distances(points: Sequence[Sequence[float]]) -> list[float]:
    """How far each point of a front is from the best value of every objective at once."""
    if not points:
        return []
    lows = [min(column) for column in zip(*points, strict=True)]
    spans = [max(c) - low or 1.0 for c, low in zip(zip(*points, strict=True), lows, strict=True)]
    return [
        math.hypot(*((x - low) / span for x, low, span in zip(p, lows, spans, strict=True)))
        for p in points
    ]
