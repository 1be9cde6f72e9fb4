"""A problem to search: a space, an oracle, and what is known to be best."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.requirement import parse
from autotune.sampler.protocol import Key, key
from autotune.space import Knob, Rule, SearchSpace
from autotune.study import Objective
from autotune.trial import Configuration, Status

METRIC = "score"
_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one trial would have said, and what it would have cost."""

    status: Status
    value: float | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """``ask`` answers for a configuration; ``best`` is the best value there is, noise aside."""

    name: str
    space: SearchSpace
    direction: str
    best: float
    ask: Callable[[Configuration, random.Random], Answer]
    truth: Callable[[Configuration], float | None]  # without noise; None where a trial fails
    within: float = 0.05  # of best: what counts as solved
    typical_seconds: float = 0.0  # of a trial; 0 where the table does not know
    has_default: bool = False  # a table knows none

    @property
    def objective(self) -> Objective:
        return Objective(metric=METRIC, direction=self.direction)

    def gap(self, value: float) -> float:
        """How far a value is from the best, relative to it; 0 is best."""
        if self.direction == "max":
            return 1.0 - value / self.best
        return value / self.best - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSpace(SearchSpace):
    """A space whose legal configurations are listed: the static constraints of a table, known."""

    legal: frozenset[Key]
    listed: Rule

    def broken_rule(self, configuration: Configuration) -> Rule | None:
        """The only rule: to be in the list."""
        return None if key(configuration) in self.legal else self.listed


def listed_space(name: str, knobs: Sequence[Knob], legal: frozenset[Key]) -> ListedSpace:
    """The rule names every knob, so that a repair may draw any of them anew."""
    named = [knob.name for knob in knobs if knob.name.replace(".", "_").isidentifier()]
    text = " or ".join(f"{name} == ''" for name in named[:_NAMED]) or "false"
    rule = Rule(requirement=parse(text), reason="not in the table")
    return ListedSpace(name=name, knobs=tuple(knobs), legal=legal, listed=rule)
