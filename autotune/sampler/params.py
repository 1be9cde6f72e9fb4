"""How knobs look to optuna: positions in a list, a continuous range, or a choice."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.sampler.legal import default_is_inside
from autotune.space import Choices, Floats, Integers, Knob, SearchSpace
from autotune.trial import Configuration, KnobValue

_BESIDE = "?"  # suffix of the parameter that says "at its default, which lies outside the domain"


class Params:
    """Translates between configurations and optuna parameters for one space."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._distributions = {k.name: _distribution(k) for k in space.free()}
        self._values = {k.name: _listed(k) for k in space.free()}
        self._beside = {k.name for k in space.free() if not default_is_inside(k)}

    def suggest(self, trial: optuna.Trial) -> dict[str, KnobValue]:
        """Draw each active knob in file order, so that ``when`` sees its parents already drawn."""
        values: dict[str, Any] = dict(self._space.context)
        active: dict[str, KnobValue] = {}
        for knob in self._space.knobs:
            if knob.is_active(values):
                fixed = self._space.fixed
                value = fixed[knob.name] if knob.name in fixed else self._one(trial, knob)
                values[knob.name] = active[knob.name] = value
        return active

    def _one(self, trial: optuna.Trial, knob: Knob) -> KnobValue:
        name = knob.name
        if name in self._beside and trial.suggest_categorical(name + _BESIDE, [False, True]):
            return knob.default
        listed = self._values[name]
        match self._distributions[name]:
            case FloatDistribution(low=low, high=high, log=log):
                return trial.suggest_float(name, low, high, log=log)
            case IntDistribution(low=low, high=high, step=step):
                drawn = trial.suggest_int(name, low, high, step=step)
            case CategoricalDistribution(choices=choices):
                drawn = int(str(trial.suggest_categorical(name, choices)))
        return listed[drawn] if listed is not None else drawn

    def covers(self, configuration: Configuration) -> bool:
        """Whether optuna can be told of it: every free knob has a value that a search may give."""
        return all(
            knob.accepts(configuration[knob.name])
            for knob in self._space.free()
            if knob.name in configuration
        )

    def as_params(
        self, configuration: Configuration
    ) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """The parameters that would have led to a configuration."""
        params: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        for name, distribution in self._distributions.items():
            if name not in configuration:
                continue
            value = configuration[name]
            if name in self._beside:
                beside = value == self._space.knob(name).default
                params[name + _BESIDE] = beside
                distributions[name + _BESIDE] = CategoricalDistribution([False, True])
                if beside:
                    continue
            params[name] = self._internal(name, value)
            distributions[name] = distribution
        return params, distributions

    def _internal(self, name: str, value: KnobValue) -> Any:
        listed = self._values[name]
        if listed is None:
            return value
        return next(i for i, v in enumerate(listed) if type(v) is type(value) and v == value)


def is_ordered(domain: Choices) -> bool:
    """Whether choices are numbers: then they are tried as places in an ascending list."""
    numbers = [v for v in domain.values if not isinstance(v, bool | str)]
    return len(numbers) == len(domain.values) > 2


def _listed(knob: Knob) -> list[KnobValue] | None:
    match knob.domain:
        case Integers(factor=None) | Floats(step=None):
            return None
        case Integers() as domain:
            return list(domain.values())
        case Floats() as domain:
            return list(domain.grid())
        case Choices(values=values) as domain:
            return sorted(values, key=float) if is_ordered(domain) else list(values)


def _distribution(knob: Knob) -> BaseDistribution:
    match knob.domain:
        case Integers(factor=None, low=low, high=high, step=step):
            return IntDistribution(low, high - (high - low) % step, step=step)
        case Floats(step=None, low=low, high=high, log=log):
            return FloatDistribution(low, high, log=log)
        case Choices() as domain if not is_ordered(domain):
            return CategoricalDistribution(range(len(domain.values)))
    return IntDistribution(0, len(_listed(knob) or ()) - 1)
