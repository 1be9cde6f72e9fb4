"""The knob audit: each knob at another value in a live trial, read back, its effect measured.

A study like any other (same loop, store and resume); only its source of proposals differs.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.sampler.protocol import Key, Proposal, key
from autotune.space import Knob, SearchSpace, SpaceError, members
from autotune.trial import Configuration, KnobValue, Status, TrialRecord

_VALUES_TRIED = 6  # of a parent, when looking for a way to switch a knob on
_PARENTS_AT_ONCE = 3
_BETWEEN_BASELINES = 4
BASELINE = "baseline"
_NOISE_FLOOR = 0.01  # an effect below one per cent is called inert whatever the spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One knob to audit: the value, and the base that makes the knob mean something."""

    knob: str
    value: KnobValue
    base: Configuration
    configuration: Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the audit saw of one knob."""

    knob: str
    tried: KnobValue
    read_back: KnobValue | None
    label: str  # live | inert | unsupported | harmful | failed
    effects: Mapping[str, tuple[float, float, float]]  # metric -> ratio, low, high
    note: str = ""


def cases(space: SearchSpace, start: Configuration) -> tuple[list[Case], dict[str, str]]:
    """A case for every knob that can be audited, and the reason for each that cannot.

    Cases are ordered by base, so that trials beside each other share a baseline and its caches.
    """
    found: list[Case] = []
    skipped: dict[str, str] = {}
    for knob in space.knobs:
        if knob.workload or "export" in knob.apply:
            skipped[knob.name] = "a fact of the job" if knob.workload else "written for export only"
            continue
        case = _case(space, knob, start)
        if case is None:
            skipped[knob.name] = "no legal configuration on this host switches it on"
        else:
            found.append(case)
    bases = list(dict.fromkeys(key(c.base) for c in found))
    return sorted(found, key=lambda c: bases.index(key(c.base))), skipped


def _case(space: SearchSpace, knob: Knob, start: Configuration) -> Case | None:
    for changes in _switches(space, knob, start):
        base = space.complete({**start, **changes})
        if knob.name not in base or space.broken_rule(base):
            continue
        for value in _others(knob, base[knob.name]):
            changed = space.complete({**start, **changes, knob.name: value})
            if changed.get(knob.name) == value and not space.broken_rule(changed):
                return Case(knob=knob.name, value=value, base=base, configuration=changed)
    return None


def _others(knob: Knob, now: KnobValue) -> Iterator[KnobValue]:
    """Other values, what experts would try first; a continuous knob offers its ends and middle."""
    values = members(knob.domain)
    listed: Sequence[KnobValue]
    if values is None:
        low, high = knob.domain.low, knob.domain.high  # type: ignore[union-attr]
        listed = (round((low + high) / 2, 6), high, low)
    else:
        listed = tuple(itertools.islice(values, 64))
    for value in (*knob.prior, *listed):
        if value != now or type(value) is not type(now):
            yield value


def _switches(
    space: SearchSpace, knob: Knob, start: Configuration
) -> Iterator[dict[str, KnobValue]]:
    """Changes that may make a knob active: none first, then ever more of its parents."""
    yield {}
    parents = _ancestors(space, knob)
    options = [
        [
            (p.name, v)
            for v in itertools.islice(_others(p, start.get(p.name, p.default)), _VALUES_TRIED)
        ]
        for p in parents
    ]
    for count in range(1, min(_PARENTS_AT_ONCE, len(parents)) + 1):
        for group in itertools.combinations(options, count):
            for pick in itertools.product(*group):
                yield dict(pick)


def _ancestors(space: SearchSpace, knob: Knob) -> list[Knob]:
    """The knobs that its condition names, and theirs; nearest first."""
    known = {k.name: k for k in space.knobs}
    found: dict[str, Knob] = {}
    queue = [knob]
    while queue:
        current = queue.pop(0)
        for name in sorted(current.when.names if current.when else ()):
            if name in known and name not in found and name not in space.fixed:
                found[name] = known[name]
                queue.append(known[name])
    return list(found.values())


class AuditSource:
    """Proposes every case ``repeats`` times with baselines of the same base in between."""

    def __init__(self, space: SearchSpace, start: Configuration, repeats: int) -> None:
        self.cases, self.skipped = cases(space, start)
        if not self.cases:
            raise SpaceError("no knob is left to audit; loosen --only")
        self._planned = list(self._plan(repeats))
        self._done: dict[tuple[Key, str], int] = {}

    def _plan(self, repeats: int) -> Iterator[Proposal]:
        for _round in range(repeats):
            for _base, group in itertools.groupby(self.cases, key=lambda c: key(c.base)):
                members_of = list(group)
                for start in range(0, len(members_of), _BETWEEN_BASELINES):
                    yield _proposal(members_of[start].base, BASELINE)
                    for case in members_of[start : start + _BETWEEN_BASELINES]:
                        yield _proposal(case.configuration, case.knob)
                yield _proposal(members_of[-1].base, BASELINE)

    def ask(self) -> Proposal | None:
        """The next planned trial that no earlier session has run."""
        while self._planned:
            proposal = self._planned.pop(0)
            identity = (key(proposal.configuration), proposal.label)
            if self._done.get(identity, 0):
                self._done[identity] -= 1
                continue
            return proposal
        return None

    def tell(self, record: TrialRecord) -> None:
        """Nothing to learn: an audit is planned in full."""

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Skip what an earlier session has run."""
        for record in records:
            identity = (key(record.spec.configuration), record.spec.label)
            self._done[identity] = self._done.get(identity, 0) + 1


def _proposal(configuration: Configuration, label: str) -> Proposal:
    return Proposal(configuration=configuration, stage="audit", label=label)


def findings(cases: Sequence[Case], records: Sequence[TrialRecord]) -> list[Finding]:
    """Judge every case from the records of its trials and of its baselines."""
    by_key: dict[Key, list[TrialRecord]] = {}
    for record in records:
        by_key.setdefault(key(record.spec.configuration), []).append(record)
    return [
        _finding(case, by_key.get(key(case.configuration), []), by_key.get(key(case.base), []))
        for case in cases
    ]


def _finding(case: Case, tried: list[TrialRecord], bases: list[TrialRecord]) -> Finding:
    good = [r for r in tried if r.status is Status.COMPLETE]
    if not good:
        last = tried[-1] if tried else None
        note = last.failure.reason if last and last.failure else "not run"
        unsupported = last is not None and last.status is Status.UNSUPPORTED
        label = "unsupported" if unsupported else ("failed" if last else "not run")
        return Finding(
            knob=case.knob, tried=case.value, read_back=None, label=label, effects={}, note=note
        )
    measurement = good[-1].measurement
    assert measurement is not None
    effects = {}
    for metric in sorted(
        {m for r in good for m in (r.measurement.metrics if r.measurement else {})}
    ):
        effect = _ratio(
            [v for r in good if (v := r.metric(metric)) is not None],
            [v for r in bases if (v := r.metric(metric)) is not None],
        )
        if effect is not None:
            effects[metric] = effect
    return Finding(
        knob=case.knob,
        tried=case.value,
        read_back=measurement.effective.get(case.knob),
        label=_label(effects, read_back=case.knob in measurement.effective),
        effects=effects,
    )


def _ratio(values: list[float], bases: list[float]) -> tuple[float, float, float] | None:
    """Ratio of medians with the widest ratio that the samples themselves allow."""
    if not values or not bases or min(bases) <= 0:
        return None
    middle = statistics.median(values) / statistics.median(bases)
    return middle, min(values) / max(bases), max(values) / min(bases)


def _label(effects: Mapping[str, tuple[float, float, float]], *, read_back: bool) -> str:
    def clear(metric: str) -> float:
        """The certain part of an effect, as a signed fraction; 0 when within the noise."""
        ratio, low, high = effects.get(metric, (1.0, 1.0, 1.0))
        if low > 1 + _NOISE_FLOOR or high < 1 - _NOISE_FLOOR:
            return ratio - 1
        return 0.0

    if not read_back:
        return "failed"
    rates = [m for m in ("tokens_per_second", "output_tokens_per_second") if m in effects]
    if any(clear(metric) < -0.05 for metric in rates):
        return "harmful"
    watched = [*rates, "peak_memory_bytes", "reserved_memory_bytes", "compile_seconds"]
    return "live" if any(clear(metric) for metric in watched) else "inert"


def as_json(found: Sequence[Finding], skipped: Mapping[str, str]) -> dict[str, Any]:
    """The audit in plain data: what the report and the screening stage read."""
    return {
        "findings": [
            {
                "knob": f.knob,
                "tried": f.tried,
                "read_back": f.read_back,
                "label": f.label,
                "note": f.note,
                "effects": {
                    m: {"ratio": r, "low": low, "high": high}
                    for m, (r, low, high) in f.effects.items()
                },
            }
            for f in found
        ],
        "skipped": dict(skipped),
    }


def read_findings(path: Path) -> list[dict[str, Any]]:
    """The findings of an ``audit.json``; raises SpaceError when it is none."""
    try:
        findings = json.loads(path.read_text())["findings"]
        return [{**f, "knob": str(f["knob"]), "label": str(f["label"])} for f in findings]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpaceError(f"{path}: not the audit.json of a knob audit: {error!r}") from error


def lines(found: Sequence[Finding], skipped: Mapping[str, str]) -> list[str]:
    """The audit for a person."""
    text = []
    for f in found:
        rate = f.effects.get("tokens_per_second") or f.effects.get("output_tokens_per_second")
        effect = f"{rate[0]:.3f} [{rate[1]:.3f}, {rate[2]:.3f}]" if rate else f.note[:70]
        text.append(f"{f.knob:<44} {f.tried!s:<20} read {f.read_back!s:<14} {f.label:<11} {effect}")
    counted = {label: sum(f.label == label for f in found) for label in {f.label for f in found}}
    summary = ", ".join(f"{n} {label}" for label, n in sorted(counted.items()))
    return [*text, f"{len(found)} knobs audited: {summary}; {len(skipped)} not auditable here"]
