"""The optuna door: any of its samplers behind ask and tell.

The study lives in memory and is rebuilt by replay. Limits are told as constraints, and so are
failures where the sampler knows constraints; optuna never sees a value that is not finite.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna

from autotune.sampler import legal
from autotune.sampler.ends import Ends
from autotune.sampler.params import Params
from autotune.sampler.protocol import Key, Proposal, key
from autotune.space import SearchSpace
from autotune.study import Limit, Objective
from autotune.trial import Configuration, Status, TrialRecord

NAMES = ("tpe", "random", "nsga2", "nsga3", "gp", "qmc", "cmaes")
_KNOW_CONSTRAINTS = ("tpe", "tpe-grouped", "nsga2", "nsga3", "gp")
_ASKS_PAST_FAILURES, _FEW_KNOBS = 60, 50  # where asking costs little
_ASKS = 12  # of the sampler, before a repaired or random configuration is taken
# Knobs times trials above which a sampler costs more than half a second per suggestion
# (measured, see the tests); a grouped TPE is the first way out, NSGA-II the second.
_TPE_KNOBS = 400
_GROUPED_FROM = 120 * 400
_GP_TRIALS_KNOBS = 100 * 20


class OptunaStrategy:
    """One optuna sampler as a Strategy, with legality and no duplicates added."""

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        *,
        objectives: Sequence[Objective],
        limits: Sequence[Limit] = (),
        seed: int = 0,
        openers: Sequence[Proposal] = (),
    ) -> None:
        if name not in NAMES:
            raise ValueError(f"unknown sampler {name}; known are {', '.join(NAMES)}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._name, self._space, self._seed = name, space, seed
        self._objectives, self._limits = tuple(objectives), tuple(limits)
        self._params = Params(space)
        self._rng = random.Random(f"{seed}/draws")
        self._openers = list(openers)
        self._seen: set[Key] = set()
        self._running: dict[Key, optuna.Trial | None] = {}
        self._told = 0
        self._ends = Ends(space, random.Random(f"{seed}/ends"))
        self._worst: list[float] = []  # of each objective so far, to be minimised
        self._notices: list[str] = []
        self._kind = ""
        self._study = optuna.create_study(
            directions=["maximize" if o.direction == "max" else "minimize" for o in objectives]
        )
        self._choose_sampler()

    def ask(self) -> Proposal | None:
        """The next proposal: openers first, then the sampler's own."""
        while self._openers:
            opener = self._openers.pop(0)
            if key(opener.configuration) not in self._seen:
                return self._propose(opener, None)
        self._choose_sampler()
        curious = self._ends.is_curious()
        for _ in range(self._most_asks()):
            trial = self._study.ask()
            wanted = self._params.suggest(trial)
            usable = key(wanted) not in self._seen and legal.is_legal(self._space, wanted)
            if usable and (curious or self._ends.is_promising(wanted)):
                return self._propose(self._search(wanted, self._name), trial)
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            if usable:
                continue  # but most like one that failed
            repaired = legal.repair(self._space, wanted, self._rng)
            if repaired is not None and key(repaired) not in self._seen:
                return self._propose(self._search(repaired, f"{self._name}, repaired"), None)
        return self._anything()

    def _anything(self) -> Proposal | None:
        """A random configuration that was not tried, if there is one; a promising one rather."""
        found = None
        for _ in range(_ASKS):
            found = legal.unseen(self._space, self._seen, self._rng)
            if found is None or self._ends.is_promising(found):
                break
        return self._propose(self._search(found, "random, unseen"), None) if found else None

    def tell(self, record: TrialRecord) -> None:
        """Learn from a record; final repeats and ablations teach the sampler nothing new."""
        identity = key(record.spec.configuration)
        known = identity in self._seen and identity not in self._running
        self._seen.add(identity)
        trial = self._running.pop(identity, None)
        if known or record.status is Status.ABANDONED:
            self._fail(trial)
            if record.status is Status.ABANDONED and not known:
                self._seen.discard(identity)  # nobody knows how it would have ended
            return
        self._told += 1
        self._ends.add(record)
        state, values = self._verdict(record)
        constraints = self._constraints(record)
        if trial is not None and state is not optuna.trial.TrialState.FAIL:
            for name, value in constraints.items():
                trial.set_constraint(name, value)
        if trial is not None:
            self._study.tell(trial, values, state)
        elif self._params.covers(record.spec.configuration):
            self._add(record.spec.configuration, state, values, constraints)

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Tell an earlier session's records, then draw from a fresh stream of random numbers."""
        for record in records:
            self.tell(record)
        if self._told:
            self._seed += 1_000_003 * self._told
            self._rng = random.Random(f"{self._seed}/draws")
            self._kind = ""

    def notices(self) -> tuple[str, ...]:
        """What was decided that nobody asked for."""
        return tuple(self._notices)

    def _search(self, configuration: Configuration, label: str) -> Proposal:
        return Proposal(configuration=configuration, stage="search", label=label)

    def _propose(self, proposal: Proposal, trial: optuna.Trial | None) -> Proposal:
        identity = key(proposal.configuration)
        self._seen.add(identity)
        self._running[identity] = trial
        return proposal

    def _most_asks(self) -> int:
        # A quasi-random sequence starts from its beginning after a replay; walk past what is known.
        if self._name == "qmc":
            return len(self._seen) + _ASKS
        return _ASKS_PAST_FAILURES if len(self._space.free()) <= _FEW_KNOBS else _ASKS

    def _fail(self, trial: optuna.Trial | None) -> None:
        if trial is not None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _add(
        self,
        configuration: Configuration,
        state: optuna.trial.TrialState,
        values: list[float] | None,
        constraints: Mapping[str, float],
    ) -> None:
        params, distributions = self._params.as_params(configuration)
        self._study.add_trial(
            optuna.trial.create_trial(
                state=state,
                values=values,
                params=params,
                distributions=distributions,
                constraints=dict(constraints) or None,
                system_attrs=self._generation(state),
            )
        )

    def _generation(self, state: optuna.trial.TrialState) -> dict[str, Any] | None:
        """NSGA reads a trial's generation from an attribute; a replayed trial needs it too."""
        sampler = self._study.sampler
        if state is not optuna.trial.TrialState.COMPLETE or not hasattr(sampler, "population_size"):
            return None
        done = self._study.get_trials(deepcopy=False, states=(state,))
        attribute = f"{type(sampler).__name__}:generation"
        return {attribute: len(done) // int(sampler.population_size or 50)}

    def _verdict(self, record: TrialRecord) -> tuple[optuna.trial.TrialState, list[float] | None]:
        values = [record.metric(o.metric) for o in self._objectives]
        finite = [v for v in values if v is not None and math.isfinite(v)]
        if record.status is Status.COMPLETE and len(finite) == len(values):
            signed = [v * o.sign for v, o in zip(finite, self._objectives, strict=True)]
            self._worst = [max(pair) for pair in zip(signed, self._worst or signed, strict=True)]
            return optuna.trial.TrialState.COMPLETE, finite
        if self._kind in _KNOW_CONSTRAINTS and record.status is not Status.STOPPED_EARLY:
            # A trial told as failed is forgotten, and its neighbours are proposed for ever.
            worst = self._worst or [0.0] * len(values)
            signs = [o.sign for o in self._objectives]
            values_told = [w * sign for w, sign in zip(worst, signs, strict=True)]
            return optuna.trial.TrialState.COMPLETE, values_told
        return optuna.trial.TrialState.FAIL, None

    def _constraints(self, record: TrialRecord) -> dict[str, float]:
        """Above 0 is over the limit; an unknown value meets no limit, nor does a failure."""
        found = {"ran": -1.0 if record.status is Status.COMPLETE else 1.0}
        for number, limit in enumerate(self._limits):
            value = record.metric(limit.metric)
            known = value is not None and math.isfinite(value)
            found[f"{number}:{limit}"] = limit.excess(value) if known and value is not None else 1.0
        return found

    def _choose_sampler(self) -> None:
        kind = self._affordable()
        if kind == self._kind:
            return
        if kind not in (self._name, "tpe-grouped"):
            self._notices.append(
                f"{self._name} would take too long per proposal with {len(self._space.free())} "
                f"knobs after {self._told} trials; switched to the cheaper {kind}"
            )
        self._kind = kind
        self._study.sampler = _sampler(kind, self._seed, multi=len(self._objectives) > 1)

    def _affordable(self) -> str:
        knobs, name = len(self._space.free()), self._name
        if name == "tpe" and knobs > _TPE_KNOBS:
            return "nsga2"
        if name == "tpe" and knobs * self._told > _GROUPED_FROM:
            return "tpe-grouped"
        if name == "gp" and knobs * self._told > _GP_TRIALS_KNOBS:
            return "tpe" if knobs <= _TPE_KNOBS else "nsga2"
        return name


def _sampler(kind: str, seed: int, *, multi: bool) -> optuna.samplers.BaseSampler:
    with warnings.catch_warnings():
        # Experimental here means that a keyword may change; the version is pinned.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match kind:
            case "tpe":
                return optuna.samplers.TPESampler(seed=seed)
            case "tpe-grouped":
                return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
            case "nsga2":
                return optuna.samplers.NSGAIISampler(seed=seed)
            case "nsga3":
                return optuna.samplers.NSGAIIISampler(seed=seed)
            case "gp":
                return optuna.samplers.GPSampler(seed=seed)
            case "qmc":
                return optuna.samplers.QMCSampler(seed=seed, scramble=True)
    if multi:
        raise ValueError("cmaes takes one objective; use nsga2 or tpe for several")
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
