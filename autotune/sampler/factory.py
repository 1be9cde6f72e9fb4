"""Builds a strategy by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.sampler import legal, warm
from autotune.sampler.auto import Auto
from autotune.sampler.optuna_strategy import NAMES as _OPTUNA
from autotune.sampler.optuna_strategy import OptunaStrategy
from autotune.sampler.protocol import Key, Proposal, Strategy, key
from autotune.space import SearchSpace
from autotune.study import Budget, Limit, Objective
from autotune.trial import TrialRecord

_WIDE = 60  # free knobs, from which on a model of all of them needs more trials than there are

NAMES = ("auto", *_OPTUNA)


def make(
    name: str,
    space: SearchSpace,
    *,
    objectives: Sequence[Objective],
    limits: Sequence[Limit] = (),
    seed: int = 0,
    presets: Sequence[Mapping[str, Any]] = (),
    budget: Budget | None = None,
    history: Sequence[TrialRecord] = (),
    effects: Mapping[str, float] | None = None,
    start_at_default: bool = True,
) -> Strategy:
    """A strategy that starts with the default, the presets and what did well in ``history``.

    ``history`` holds the records of another study: hints of where to look, never facts.
    ``effects`` says how much each knob moved the objective in an audit. A benchmark over a table
    has no default; it passes ``start_at_default=False``.
    """
    openers = _openers(space, objectives, presets, history, start_at_default)
    del budget
    if name == "auto":
        return Auto(
            space, objectives=objectives, limits=limits, seed=seed, openers=openers, effects=effects
        )
    return OptunaStrategy(
        name,
        space,
        objectives=objectives,
        limits=limits,
        seed=seed,
        openers=openers,
    )


def _openers(
    space: SearchSpace,
    objectives: Sequence[Objective],
    presets: Sequence[Mapping[str, Any]],
    history: Sequence[TrialRecord],
    start_at_default: bool,
) -> list[Proposal]:
    found: list[Proposal] = []
    seen: set[Key] = set()
    if start_at_default:
        found.append(Proposal(configuration=space.default(), stage="default", label="default"))
    for preset in presets:
        wanted = legal.complete(space, preset["configuration"])
        found.append(Proposal(configuration=wanted, stage="preset", label=str(preset["name"])))
    found.extend(warm.openers(space, objectives, history))
    kept = []
    for proposal in found:
        identity = key(proposal.configuration)
        # The default is measured even when it is not legal here: it is the baseline.
        usable = proposal.stage == "default" or legal.is_legal(space, proposal.configuration)
        if usable and identity not in seen:
            seen.add(identity)
            kept.append(proposal)
    return kept
