"""What a final says: the winner, its numbers, the comparisons and one sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from autotune.interval import TOO_FEW, Looks, compare, median_interval
from autotune.race import Arm, Race
from autotune.sampler.protocol import key
from autotune.space import SearchSpace
from autotune.study import Comparison, Contribution, Interval, Limit, Objective, Outcome
from autotune.trial import Configuration, TrialRecord

_WORDS = {"worse": "worse than", TOO_FEW: "measured too few times to judge against"}


def leader(
    race: Race,
    objectives: Sequence[Objective],
    looks: Looks,
    baselines: Mapping[str, Configuration],
) -> Arm | None:
    """The candidate to recommend: the first listed unless a later one is proven better.

    Candidates are listed simplest first, so a tie goes to the smaller diff.
    """
    entrants = [
        arm
        for arm in race.arms
        if arm.name not in baselines and arm.records and not arm.disqualified
    ]
    if not entrants:
        return None
    best = entrants[0]
    for arm in entrants[1:]:
        if _beats(arm, best, objectives, looks):
            best = arm
    return best


def _beats(arm: Arm, other: Arm, objectives: Sequence[Objective], looks: Looks) -> bool:
    """Proven better in one objective and proven worse in none."""
    verdicts = [_compare(arm, other, objective, looks)[1] for objective in objectives]
    return "better" in verdicts and "worse" not in verdicts


def _compare(arm: Arm, other: Arm, objective: Objective, looks: Looks) -> tuple[Interval, str]:
    return compare(
        arm.values(objective.metric),
        other.values(objective.metric),
        looks,
        direction=objective.direction,
    )


def outcome(
    space: SearchSpace,
    *,
    race: Race,
    objectives: Sequence[Objective],
    limits: Sequence[Limit],
    looks: Looks,
    baselines: Mapping[str, Configuration],
    contributions: tuple[Contribution, ...],
    neighbours: tuple[Contribution, ...],
    stopped_because: str,
) -> Outcome:
    """The conclusion of a race, complete or cut short."""
    held = {name: _arm_of(race, configuration) for name, configuration in baselines.items()}
    measured = {name: arm for name, arm in held.items() if arm is not None and arm.records}
    winner = leader(race, objectives, looks, baselines)
    fallback = next(
        (a for a in measured.values() if not a.disqualified and not race.breaks_limit(a)), None
    )
    comparisons = _comparisons(winner, measured, objectives[0], looks) if winner else ()
    if winner is None or _is_no_better(winner, measured, objectives, looks):
        chosen = fallback or winner
    else:
        chosen = winner
    if chosen is None:
        return Outcome(
            best=None,
            verdict=_nothing(race, limits),
            stopped_because=stopped_because,
            baselines={name: _numbers(arm) for name, arm in measured.items()},
        )
    first = next(iter(baselines.values()), space.default())
    changed = _changed(space, chosen.configuration, first)
    return Outcome(
        # A baseline has no trial of the search: its first repeat stands for it.
        best=chosen.records[0].spec.number if chosen.number is None else chosen.number,
        configuration=dict(chosen.configuration),
        changed=changed,
        changed_from_upstream=space.changed(chosen.configuration),
        measured=_numbers(chosen),
        baselines={name: _numbers(arm) for name, arm in measured.items()},
        comparisons=comparisons,
        contributions=contributions,
        neighbours=neighbours,
        verdict=_sentence(winner, chosen, comparisons, objectives[0], neighbours),
        stopped_because=stopped_because,
        extrapolated=any(not r.spec.fidelity.is_full_depth for r in chosen.records),
    )


def _arm_of(race: Race, configuration: Configuration) -> Arm | None:
    return next((arm for arm in race.arms if arm.key == key(configuration)), None)


def _comparisons(
    winner: Arm, measured: Mapping[str, Arm], objective: Objective, looks: Looks
) -> tuple[Comparison, ...]:
    found = []
    for name, arm in measured.items():
        gain, verdict = _compare(winner, arm, objective, looks)
        found.append(Comparison(baseline=name, gain=gain, verdict=verdict))
    return tuple(found)


def _is_no_better(
    winner: Arm, measured: Mapping[str, Arm], objectives: Sequence[Objective], looks: Looks
) -> bool:
    """Whether some baseline has held out against it through a whole look, in every objective."""
    for arm in measured.values():
        verdicts = {_compare(winner, arm, objective, looks)[1] for objective in objectives}
        full = min(len(winner.records), len(arm.records)) >= looks.rounds()[0]
        if full and "better" not in verdicts and not arm.disqualified:
            return True
    return False


def _numbers(arm: Arm) -> dict[str, Interval]:
    """Every metric over the arm's repeats; the repeat, a process of its own, is the unit."""
    names = {name for record in arm.records for name in _metrics(record)}
    found = {}
    for name in sorted(names):
        values = [v for v in arm.values(name) if math.isfinite(v)]
        if values:
            found[name] = median_interval(values)
    return found


def _metrics(record: TrialRecord) -> Iterable[str]:
    return record.measurement.metrics if record.measurement is not None else ()


def _changed(
    space: SearchSpace, configuration: Configuration, baseline: Configuration
) -> Configuration:
    """What differs; a knob that the baseline has no use for differs only from its default."""
    before = {knob.name: baseline.get(knob.name, knob.default) for knob in space.knobs}
    return {
        name: value
        for name, value in configuration.items()
        if (value, type(value)) != (before[name], type(before[name]))
    }


def _nothing(race: Race, limits: Sequence[Limit]) -> str:
    """Why there is no winner, with the nearest miss."""
    reasons = [f"{arm.name}: {arm.retired}" for arm in race.arms if arm.retired]
    bound = " and ".join(str(limit) for limit in limits)
    start = f"nothing kept {bound} in the final" if bound else "nothing ran through the final"
    return "; ".join([start, *reasons[:3]])


def _sentence(
    winner: Arm | None,
    chosen: Arm,
    comparisons: Sequence[Comparison],
    objective: Objective,
    neighbours: Sequence[Contribution],
) -> str:
    if winner is None:
        return f"no candidate ran through the final; {chosen.name} stands"
    if not comparisons:
        return f"{objective.metric} measured {len(chosen.records)} times, without a baseline"
    headline = comparisons[0]
    gain = headline.gain
    spread = f"{gain.low:.3f} to {gain.high:.3f} over {gain.n} rounds"
    if headline.verdict != "better":
        kept = "" if chosen is winner else f"; {chosen.name} stands"
        words = _WORDS.get(headline.verdict, "not distinguishable from")
        return f"{words} {headline.baseline} ({gain.median:.3f} x, {spread}){kept}"
    sentence = f"{gain.median:.3f} x {headline.baseline} in {objective.metric} ({spread})"
    if chosen is not winner:
        return f"{sentence}, but no better than {chosen.name}, which stands"
    return sentence + _surroundings(neighbours)


def _surroundings(neighbours: Sequence[Contribution]) -> str:
    """Whether the winner stands on a plateau, on a peak, or below a neighbour."""
    if not neighbours:
        return ""
    steepest = max(neighbours, key=lambda n: n.gain.low)
    better = min(neighbours, key=lambda n: n.gain.high)
    if better.gain.high < 1.0:
        return f"; {better.knob}={better.baseline_value} looks better still: worth a longer search"
    if steepest.gain.low > 1.1:
        lost = 1 - 1 / steepest.gain.median
        return f"; a sharp peak: {steepest.knob}={steepest.baseline_value} loses {lost:.0%}"
    middle = statistics.median(n.gain.median for n in neighbours)
    return f"; a plateau: one step to the side changes it by {abs(1 - 1 / middle):.1%}"
