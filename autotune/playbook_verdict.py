"""The verdict on a claim, from the records of its study."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune import interval, metric
from autotune.claims import Claim
from autotune.trial import Status, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm as measured; ratios are over the first arm, above 1 is better."""

    label: str
    changes: Mapping[str, Any]
    repeats: int
    median: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    over_previous: float | None = None  # of a ladder
    also: Mapping[str, float] = field(default_factory=dict)
    bound: str = ""  # what binds its step, by the profile
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A claim beside what was measured of it."""

    id: str
    technique: str
    says: str
    claimed: str
    metric: str
    verdict: str  # holds | partly | does not hold here | measured | not measured
    reason: str = ""
    arms: tuple[Arm, ...] = ()
    study: str = ""
    command: str = ""
    ladder: bool = False


def judge(
    claim: Claim,
    labels: Iterable[str],
    records: Sequence[TrialRecord],
    *,
    study: str,
    left_out: Sequence[str] = (),
) -> Entry:
    """The verdict from the records of a claim's study."""
    by_arm = {label: [r for r in records if r.spec.label == label] for label in labels}
    first = next(iter(by_arm))
    values = {label: _values(found, claim.metric) for label, found in by_arm.items()}
    measured = []
    previous: float | None = None
    for label, found in by_arm.items():
        arm = _arm(claim, label, found, values[label], values[first], previous)
        previous = arm.median if arm.median is not None else previous
        measured.append(arm)
    judged = next(a for a in measured if a.label == claim.judged)
    verdict, reason = _verdict(claim, judged)
    return entry_of(
        claim,
        verdict=verdict,
        reason="; ".join([*([reason] if reason else []), *left_out]),
        arms=tuple(measured),
        study=study,
    )


def _arm(
    claim: Claim,
    label: str,
    found: Sequence[TrialRecord],
    values: Sequence[float],
    baseline: Sequence[float],
    previous: float | None,
) -> Arm:
    failed = [r.failure.reason for r in found if r.failure is not None]
    if not values:
        reason = failed[-1] if failed else "not run"
        changes = claim.arms[label]
        return Arm(label=label, changes=changes, repeats=0, median=None, failure=reason)
    direction = direction_of(claim.metric)
    rounds = min(len(values), len(baseline))
    gain = None
    if rounds:
        gain = interval.ratio_interval(values[:rounds], baseline[:rounds], direction=direction)
    middle = statistics.median(values)
    step = None
    if claim.ladder and previous:
        step = middle / previous if direction == "max" else previous / middle
    also = {name: statistics.median(seen) for name in claim.also if (seen := _values(found, name))}
    profiles = [r.measurement.profile for r in found if r.measurement and r.measurement.profile]
    return Arm(
        label=label,
        changes=claim.arms[label],
        repeats=len(values),
        median=middle,
        ratio=gain.median if gain else None,
        low=gain.low if gain else None,
        high=gain.high if gain else None,
        over_previous=step,
        also=also,
        bound=str(profiles[0].get("label", "")) if profiles else "",
    )


def _verdict(claim: Claim, arm: Arm) -> tuple[str, str]:
    """holds, partly or not, by the whole interval; with the reason in words."""
    if arm.ratio is None or arm.low is None or arm.high is None:
        return "not measured", f"{arm.label}: {arm.failure or 'no value'}"
    if arm.repeats < 2:
        return "not measured", "one repeat has no interval"
    claimed = claim.claimed
    if claimed.equal_within is not None:
        worst = max(abs(arm.low - 1), abs(arm.high - 1))
        if worst <= claimed.equal_within:
            return "holds", f"within {worst:.2%}"
        if arm.low > 1:
            return "holds", f"better by {arm.ratio - 1:.2%}"
        inside = arm.low - 1 <= 0 <= arm.high - 1
        word = "partly" if inside else "does not hold here"
        return word, f"differs by {arm.ratio - 1:+.2%} ({arm.low - 1:+.2%} to {arm.high - 1:+.2%})"
    if claimed.low is None:
        return "measured", ""
    if arm.low >= claimed.low:
        return "holds", ""
    if arm.high >= claimed.low:
        return "partly", f"the interval reaches {claimed.low:g} but does not exclude less"
    if arm.low > 1:
        return "partly", f"a gain, below the {claimed.low:g} claimed"
    return "does not hold here", "no gain that stands out from noise" if arm.high > 1 else "a loss"


def _values(records: Sequence[TrialRecord], name: str) -> list[float]:
    good = [r for r in records if r.status is Status.COMPLETE]
    return [v for r in good if (v := r.metric(name)) is not None]


def direction_of(name: str) -> str:
    found = metric.find(name)
    return found.direction if found else "max"  # rates of trials/micro


def entry_of(claim: Claim, **fields: Any) -> Entry:
    return Entry(
        id=claim.id,
        technique=claim.technique,
        says=claim.says,
        claimed=claim.claimed.text,
        metric=claim.metric,
        ladder=claim.ladder,
        command=f"autotune playbook {claim.model or 'MODEL'} --only {claim.id}",
        **fields,
    )


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Plain data, as playbook.json holds it."""
    return [asdict(entry) for entry in entries]
