"""The loop: keep every slot busy, store each record as it lands, stop for a reason that is said.

It knows no library: strategies propose, a cluster runs, a store keeps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune import breaker, estimate
from autotune.launch import Cluster
from autotune.sampler.protocol import Proposal
from autotune.session import Event, Session, completed, prediction, rejected, spec_of
from autotune.store import Store
from autotune.trial import Status, TrialRecord

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0


class Source(Protocol):
    """Whatever proposes trials: a search strategy, or the final stage."""

    def ask(self) -> Proposal | None:
        """The next proposal; None when there is nothing to propose until something is told."""

    def tell(self, record: TrialRecord) -> None:
        """Learn from a record, this driver's or another's."""


@dataclass(kw_only=True)
class Progress:
    """What one driver has seen of a study so far; ``drive`` alone writes to it."""

    records: list[TrialRecord]
    launched: dict[int, dict[str, float]] = field(default_factory=dict)  # number -> prediction
    seen: set[int] = field(default_factory=set)
    calibration: estimate.Calibration | None = None
    canary: int | None = None  # a trial that tells a broken machine from a hard region; it runs


def drive(
    source: Source,
    session: Session,
    store: Store,
    cluster: Cluster,
    progress: Progress,
    *,
    total: int | None,
    stop: Callable[[], str | None],
) -> str:
    """Run a source until it has nothing left, the numbers are used up, or ``stop`` says why.

    Returns the reason in words. Running trials are waited for unless ``stop`` asks otherwise by
    its reason starting with "interrupted".
    """
    reason: str | None = None
    while True:
        store.heartbeat(session.plan.spec.name)
        _learn_from_others(source, session, store, progress)
        reason = reason or stop() or breaker.verdict(progress.records)
        while reason is None and cluster.free_slots > 0:
            reason = _launch_one(source, session, store, cluster, progress, total)
            if reason == "waiting":
                reason = None
                break
        if not progress.launched:
            if reason is None:
                reason = "space exhausted"
            return reason
        if reason is not None and reason.startswith("interrupted"):
            return reason
        record = cluster.next_finished(_POLL_SECONDS)
        if record is not None:
            _keep(source, session, store, progress, record)


def _launch_one(
    source: Source,
    session: Session,
    store: Store,
    cluster: Cluster,
    progress: Progress,
    total: int | None,
) -> str | None:
    """Launch the next proposal. Returns why none was: a final reason, or "waiting"."""
    wanted = progress.canary is None and breaker.wants_canary(progress.records)
    proposal = _canary(session) if wanted else source.ask()
    if proposal is None:
        return "waiting"
    name = session.plan.spec.name
    number = store.claim(name, session.owner, below=total)
    if number is None:
        return "all trials done"
    spec = spec_of(session, number, proposal, progress.records)
    predicted = prediction(session, spec, progress.calibration)
    metrics = predicted.metrics() if predicted is not None else {}
    progress.launched[number] = metrics
    progress.canary = number if wanted else progress.canary
    if predicted is not None and (why := estimate.check(predicted, session.plan.hardware)):
        _keep(source, session, store, progress, rejected(session, spec, why, metrics))
        return None
    session.emit(Event(kind="started", text=proposal.stage, running=len(progress.launched)))
    cluster.submit(spec, session.trial_folder(number))
    return None


def _canary(session: Session) -> Proposal:
    """The plainest configuration once more: if that fails too, the machine is at fault."""
    session.emit(Event(kind="notice", text="failures all alike: running the default once more"))
    return Proposal(configuration=session.plan.space.default(), stage="canary", label="canary")


def _keep(
    source: Source, session: Session, store: Store, progress: Progress, record: TrialRecord
) -> None:
    """Store first: what a strategy learns must never be more than what the store knows."""
    predicted = progress.launched.pop(record.spec.number, {})
    if record.spec.number == progress.canary:
        progress.canary = None
    record = completed(session, record, predicted)
    store.add(record)
    progress.seen.add(record.spec.number)
    progress.records.append(record)
    source.tell(record)
    progress.calibration = estimate.fit(progress.records)
    session.emit(Event(kind="finished", record=record, running=len(progress.launched)))


def _learn_from_others(source: Source, session: Session, store: Store, progress: Progress) -> None:
    """Several drivers may share a study: take in what the others have stored."""
    for record in store.records_since(session.plan.spec.name, progress.seen):
        progress.seen.add(record.spec.number)
        progress.records.append(record)
        source.tell(record)


def spent_seconds(records: Sequence[TrialRecord], workers: int) -> float:
    """Budget used by earlier sessions: the wall time of their trials, spread over the slots.

    An abandoned trial eats no budget: its owner died, not the user's patience.
    """
    used = sum(r.wall_seconds for r in records if r.status is not Status.ABANDONED)
    return used / max(1, workers)


def typical_seconds(records: Sequence[TrialRecord], *, full_depth: bool) -> float | None:
    """Median wall time of complete trials at that fidelity."""
    times = [
        r.wall_seconds
        for r in records
        if r.status is Status.COMPLETE and r.spec.fidelity.is_full_depth is full_depth
    ]
    return statistics.median(times) if times else None


def clock(deadline: float | None, interrupted: Callable[[], bool]) -> Callable[[], str | None]:
    """A ``stop`` for ``drive``: the user's interrupt first, then the time budget."""

    def stop() -> str | None:
        if interrupted():
            return "interrupted by the user"
        if deadline is not None and time.monotonic() >= deadline:
            return "time budget used"
        return None

    return stop
