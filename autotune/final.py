"""The last stage: what the search found, held against the baselines in fresh processes.

Three steps, as ask and tell: take back the changes that do not pay (cheap fidelity), race the
result against the configuration as found, the runner-up and the baselines (full depth, repeats in
turn) until intervals decide, then look one step to each side of the winner's numeric knobs. Final
numbers come from the race alone, never from the search: the luckiest of many noisy trials looks
better than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune import conclusion
from autotune.ablation import Ablation, changes
from autotune.candidates import Candidate
from autotune.interval import Looks, compare
from autotune.neighbours import Neighbours
from autotune.race import Arm, Race
from autotune.sampler.protocol import Key, Proposal, key
from autotune.space import SearchSpace
from autotune.study import Limit, Objective, Outcome
from autotune.trial import Configuration, TrialRecord

STAGES = ("final", "ablation", "neighbour")
_ENTRANTS = 2  # candidates that race at a time; the others step in for one that fails
_NEAR_TIE_ROUNDS = 10  # between two candidates, a tie is soon good enough
_SAME = 0.005  # an interval within half a percent of 1 is a tie whatever more repeats would say


class FinalStage:
    """Ablation, race and neighbour check in that order; ``conclude`` works at any moment."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        candidates: Sequence[Candidate],
        baselines: Mapping[str, Configuration],
        looks: Looks | None = None,
        effects: Mapping[str, float] | None = None,
        ablation_trials: int = 60,
        neighbours: bool = True,
    ) -> None:
        """``baselines``: name -> configuration, the one that the headline gain is over first."""
        self._space = space
        self._objectives, self._limits = tuple(objectives), tuple(limits)
        self._looks = looks or Looks()
        self._baselines = {name: dict(c) for name, c in baselines.items()}
        self._reserve = [c for c in candidates if not self._is_baseline(c.configuration)]
        self._found = self._reserve[0] if self._reserve else None
        self._neighbours_wanted = neighbours
        self._neighbours: Neighbours | None = None
        self._race: Race | None = None
        self._race_done = False
        self._ablation: Ablation | None = None
        if self._found is not None and self._baselines:
            self._ablation = Ablation(
                space,
                self._found.configuration,
                next(iter(self._baselines.values())),
                objectives,
                effects=effects,
                trials=ablation_trials,
            )

    def ask(self) -> Proposal | None:
        """The next repeat; None while others must come back first, or when all is said."""
        if self._ablation is not None and not self._ablation.done:
            return self._ablation.ask()
        race = self._start_race()
        if not self._race_done:
            self._advance(race)
        if not self._race_done:
            return race.next(self._rounds_wanted(race))
        return self._ask_neighbours()

    def tell(self, record: TrialRecord) -> None:
        """Take in a record of this stage; records of other stages are none of its business."""
        if record.spec.stage == "ablation" and self._ablation is not None:
            self._ablation.tell(record)
        elif record.spec.stage == "final":
            race = self._start_race()
            race.tell(record)
            self._advance(race)
        elif record.spec.stage == "neighbour":
            self._ask_neighbours()
            if self._neighbours is not None:
                self._neighbours.tell(record)

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Take in what an earlier session measured, in the order in which it finished."""
        for record in records:
            if record.spec.stage in STAGES:
                self.tell(record)
        for race in (self._race, *(s.race for s in (self._neighbours,) if s is not None)):
            for arm in race.arms if race is not None else ():
                arm.running = 0

    def conclude(self, stopped_because: str = "") -> Outcome:
        """What is known now. Final numbers only; nothing is claimed that was not decided."""
        return conclusion.outcome(
            self._space,
            race=self._start_race(),
            objectives=self._objectives,
            limits=self._limits,
            looks=self._looks,
            baselines=self._baselines,
            contributions=self._ablation.contributions() if self._ablation is not None else (),
            neighbours=self._neighbours.found() if self._neighbours is not None else (),
            stopped_because=stopped_because,
        )

    def _is_baseline(self, configuration: Configuration) -> bool:
        return key(configuration) in {key(c) for c in self._baselines.values()}

    def _start_race(self) -> Race:
        if self._race is None:
            arms = self._entrants()
            known = {arm.key for arm in arms}
            for name, configuration in self._baselines.items():
                arm = Arm(name=name, configuration=configuration, patience=2)
                if arm.key not in known:
                    known.add(arm.key)
                    arms.append(arm)
            self._race = Race(
                arms,
                stage="final",
                full_depth=True,
                objectives=self._objectives,
                limits=self._limits,
            )
        return self._race

    def _entrants(self) -> list[Arm]:
        """The best in its minimal form, and the runner-up; the best as found waits in reserve."""
        arms: list[Arm] = []
        known: set[Key] = {key(c) for c in self._baselines.values()}
        waiting = list(self._reserve)
        if self._found is not None and self._ablation is not None:
            minimal = self._ablation.minimal()
            if key(minimal) != key(self._found.configuration) and key(minimal) not in known:
                self._enter(arms, known, "best", minimal, self._found.number)
                waiting = [*waiting[1:2], waiting[0], *waiting[2:]]
        free = _ENTRANTS - len(arms)
        for candidate in waiting[:free]:
            name = "runner-up" if arms else "best"
            self._enter(arms, known, name, candidate.configuration, candidate.number)
        self._reserve = waiting[free:]
        return arms

    def _enter(
        self, arms: list[Arm], known: set[Key], name: str, wanted: Configuration, number: int
    ) -> None:
        if key(wanted) not in known:
            known.add(key(wanted))
            arms.append(Arm(name=name, configuration=dict(wanted), number=number))

    def _rounds_wanted(self, race: Race) -> int:
        """Up to the next look and no further: a repeat that decides nothing is a waste."""
        return next((r for r in self._looks.rounds() if r > race.rounds()), self._looks.last)

    def _advance(self, race: Race) -> None:
        """At a look: retire what is decided, replace what failed, stop when nothing is open."""
        self._replace_failed(race)
        if not race.live():
            self._race_done = True
        if race.is_running() or race.rounds() not in self._looks.rounds():
            return
        for arm in self._candidates(race):
            if limit := race.breaks_limit(arm):
                arm.retired, arm.disqualified = f"breaks {limit}", True
        self._replace_failed(race)
        if race.rounds() == 0:
            return
        leader = conclusion.leader(race, self._objectives, self._looks, self._baselines)
        others = [a for a in race.live() if a is not leader]
        if leader is not None:
            for arm in others:
                if self._is_settled(race, leader, arm):
                    arm.retired = "decided"
        alone = all(arm.retired for arm in others)
        self._race_done = leader is None or alone or race.rounds() >= self._looks.last

    def _candidates(self, race: Race) -> list[Arm]:
        return [arm for arm in race.live() if arm.name not in self._baselines]

    def _replace_failed(self, race: Race) -> None:
        """When every candidate is out, the next of the search's best steps in."""
        if self._candidates(race) or race.is_running():
            return
        known = {arm.key for arm in race.arms}
        while self._reserve:
            following = self._reserve.pop(0)
            if key(following.configuration) in known:
                continue
            race.arms.insert(
                0,
                Arm(
                    name="best",
                    configuration=dict(following.configuration),
                    number=following.number,
                ),
            )
            for arm in race.arms[1:]:
                if arm.retired == "decided":
                    arm.retired = ""
            return

    def _is_settled(self, race: Race, leader: Arm, arm: Arm) -> bool:
        """Whether more rounds of this arm would change nothing that will be said."""
        objective = self._objectives[0]
        gain, verdict = compare(
            leader.values(objective.metric),
            arm.values(objective.metric),
            self._looks,
            direction=objective.direction,
        )
        same = gain.low > 1 - _SAME and gain.high < 1 + _SAME
        enough = arm.name not in self._baselines and race.rounds() >= _NEAR_TIE_ROUNDS
        return verdict in ("better", "worse") or same or enough

    def _ask_neighbours(self) -> Proposal | None:
        if not self._race_done or not self._neighbours_wanted:
            return None
        if self._neighbours is None:
            winner = conclusion.leader(
                self._start_race(), self._objectives, self._looks, self._baselines
            )
            if winner is None or not self._baselines:
                return None
            baseline = next(iter(self._baselines.values()))
            changed = changes(self._space, winner.configuration, baseline)
            self._neighbours = Neighbours(
                self._space, winner.configuration, tuple(changed), self._objectives
            )
        return self._neighbours.ask()
