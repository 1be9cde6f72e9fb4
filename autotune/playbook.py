"""What each optimisation buys here: every claim as a small study with arms in turn."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import claims, conduct, hardware, plan, space_file
from autotune.claims import Claim
from autotune.playbook_verdict import Entry, direction_of, entry_of, judge
from autotune.request import Request, check_study_name
from autotune.rooms import rooms_root
from autotune.sampler.protocol import Key, Proposal, key
from autotune.session import PLAYBOOK, Event
from autotune.space import SpaceError
from autotune.store import Store
from autotune.study import StudyError
from autotune.trial import Configuration, Status, TrialRecord

_NO_BOUND = f"{7 * 24 * 3600}s"  # the playbook's own budget ends it


class Rounds:
    """Arms in turn, round by round; goes on where an earlier session stopped."""

    def __init__(self, arms: Mapping[str, Configuration], repeats: int, *, profile: bool) -> None:
        self._arms = dict(arms)
        self._planned = [
            Proposal(
                configuration=configuration,
                stage=PLAYBOOK,
                label=label,
                profile=profile and number == 0,
            )
            for number in range(repeats)
            for label, configuration in arms.items()
        ]
        self._done: dict[tuple[Key, str], int] = {}

    def ask(self) -> Proposal | None:
        """The next trial that no earlier session has run."""
        while self._planned:
            proposal = self._planned.pop(0)
            identity = (key(proposal.configuration), proposal.label)
            if not self._done.get(identity, 0):
                return proposal
            self._done[identity] -= 1
        return None

    def tell(self, record: TrialRecord) -> None:
        """An arm that cannot run here is not tried again."""
        if record.status in (Status.UNSUPPORTED, Status.OUT_OF_MEMORY, Status.BAD_OUTPUT):
            label = record.spec.label
            self._planned = [p for p in self._planned if p.label != label]

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Skip what an earlier session has run."""
        for record in records:
            identity = (key(record.spec.configuration), record.spec.label)
            self._done[identity] = self._done.get(identity, 0) + 1

    def notices(self) -> tuple[str, ...]:
        """Nothing beyond the records."""
        return ()


def run(
    chosen: Sequence[Claim],
    model: str,
    *,
    out: Path,
    repeats: int,
    seconds: float | None,
    say: Callable[[str], None],
) -> list[Entry]:
    """Measure claims one after the other; called again, it goes on where it stopped.

    ``seconds`` bounds the whole; claims that it leaves no time for say so.
    """
    out.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{out.absolute() / 'autotune.db'}")
    limit = None if seconds is None else time.monotonic() + seconds
    found = []
    try:
        for claim in chosen:
            say(f"{claim.id} {claim.technique}")
            found.append(_measure(claim, model, store, out, repeats, limit, say))
            say(f"{claim.id} {found[-1].verdict} {found[-1].reason}".rstrip())
    finally:
        store.close()
    return found


def _measure(
    claim: Claim,
    model: str,
    store: Store,
    out: Path,
    repeats: int,
    limit: float | None,
    say: Callable[[str], None],
) -> Entry:
    if claim.missing:
        return entry_of(claim, verdict="not measured", reason=claim.missing)
    name = check_study_name(f"playbook-{Path(claim.model or model).name}-{claim.id}")
    try:
        made = _freed(plan.make(_request(claim, model, name), ["autotune", *sys.argv[1:]]), claim)
        if claim.needs is not None and not claim.needs.holds(made.space.context):
            return entry_of(claim, verdict="not measured", reason=f"needs {claim.needs.text}")
        arms, left_out = _arms(claim, made)
    except (SpaceError, StudyError) as error:
        return entry_of(claim, verdict="not measured", reason=str(error))
    if len(arms) < 2 or claim.judged not in arms or next(iter(claim.arms)) not in arms:
        return entry_of(claim, verdict="not measured", reason="; ".join(left_out))
    stored = [row.name for row in store.studies()]
    source = Rounds(arms, repeats, profile=not claim.micro)
    if name in stored:
        made = plan.again(store.load(name).spec)
        source.replay(store.load(name).records)
    else:
        conduct.register(made, store)
    study = conduct.conduct(
        made,
        store,
        out,
        _teller(say),
        lambda: limit is not None and time.monotonic() > limit,
        source=source,
    )
    return judge(claim, arms, study.records, study=name, left_out=left_out)


def _request(claim: Claim, model: str, name: str) -> Request:
    direction = direction_of(claim.metric)
    fields: dict[str, Any] = {
        "model": claim.model or model,
        "task": claim.task,
        "study": name,
        "budget": _NO_BOUND,
        "objectives": (f"{claim.metric}:{direction}",),
        "settings": claim.settings,
        "workload": claim.workload,
    }
    if claim.micro:
        program = rooms_root() / "trials" / "micro" / "program.py"
        operation, *options = claim.micro.split()
        words = [sys.executable, str(program), operation, *options, "--out", "{out}"]
        fields |= {
            "runner": "command",
            "command": shlex.join(words).replace("'{out}'", "{out}"),
            "only": tuple(sorted({name for arm in claim.arms.values() for name in arm})),
            "space_files": (str(rooms_root() / claims.FOLDER / "micro.yaml"),),
        }
    request = Request(**fields)
    if claim.cpu_settings and hardware.detect().device == "cpu":
        fields["settings"] = claim.cpu_settings
        request = Request(**fields)
    return request


def _freed(made: plan.Plan, claim: Claim) -> plan.Plan:
    """Facts of the job are fixed in a study; those in which the arms differ are not."""
    differ = {name for changes in claim.arms.values() for name in changes}
    fixed = {n: v for n, v in made.space.fixed.items() if n not in differ}
    space = dataclasses.replace(made.space, fixed=fixed)
    spec = dataclasses.replace(made.spec, space=space_file.dump(space))
    return dataclasses.replace(made, space=space, spec=spec)


def _arms(claim: Claim, made: plan.Plan) -> tuple[dict[str, Configuration], list[str]]:
    """The arms that are legal here, whole, and why the others are not."""
    base: Configuration = {}
    if not claim.micro and claim.task == "train":
        common = conduct.baselines(made).get(conduct.COMMON)
        base = {n: v for n, v in (common or {}).items() if n not in made.space.fixed}
    known = {k.name for k in made.space.knobs}
    arms: dict[str, Configuration] = {}
    left_out = []
    for label, changes in claim.arms.items():
        if unknown := sorted(set(changes) - known):
            left_out.append(f"{label}: {unknown[0]} has no effect on this host or task")
            continue
        wanted = {n: v for n, v in {**base, **changes}.items() if n in known}
        configuration = made.space.complete(wanted)
        idle = [n for n, v in changes.items() if configuration.get(n) != v]
        rule = made.space.broken_rule(configuration)
        if idle:
            left_out.append(f"{label}: {idle[0]} means nothing beside the rest here")
        elif rule is not None:
            left_out.append(f"{label}: {rule.requirement.text} is required: {rule.reason}")
        else:
            arms[label] = configuration
    return arms, left_out


def _teller(say: Callable[[str], None]) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        record = event.record
        if record is not None:
            reason = record.failure.reason[:100] if record.failure else ""
            say(f"  {record.spec.label:<40} {record.status} {record.wall_seconds:.1f}s {reason}")

    return tell
