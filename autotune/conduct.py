"""One whole study: search, then the final stage, then the conclusion. What tune and resume run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from autotune import candidates, deliver, final
from autotune.cluster import for_plan
from autotune.driver_file import driving, leading
from autotune.final import FinalStage
from autotune.launch import Cluster
from autotune.plan import Plan
from autotune.sampler import factory
from autotune.session import UPSTREAM, Event, Session, slice_depths
from autotune.store import Store
from autotune.study import Outcome, Study
from autotune.trial import Configuration, TrialRecord
from autotune.tune import Progress, Source, clock, drive, spent_seconds, typical_seconds

COMMON = "common_practice"
_FINAL_SHARE = 0.5  # of the budget, at most
_ARMS, _REPEATS = 3, 5
_ABLATION_SHARE = 0.25  # of what the final stage gets
_TRIALS_KEPT_FOR_FINAL = 20  # where the budget counts trials: at most, and at most half


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reserve:
    """What the final stage gets of the budget."""

    seconds: float | None
    trials: int | None


def register(plan: Plan, store: Store) -> None:
    """Create the study, or join one of that name which asks for exactly the same."""
    store.create_study(plan.spec)


def conduct(
    plan: Plan,
    store: Store,
    out: Path,
    emit: Callable[[Event], None],
    interrupted: Callable[[], bool],
    *,
    source: Source | None = None,
    slots: Callable[[Plan, Path], AbstractContextManager[Cluster]] = for_plan,
) -> Study:
    """Run a registered study from wherever it stands to its end; the study with its outcome.

    ``source`` replaces the search and its final stage by another plan of trials (an audit);
    ``slots`` says where trials run (Ray's actors).
    """
    name = plan.spec.name
    folder = (out / name).absolute()
    for text in (*plan.notices, slots_text(plan)):
        emit(Event(kind="notice", text=text))
    for number in store.abandon_dead(name):
        emit(Event(kind="notice", text=f"trial {number} was abandoned and will run again"))
    records = list(store.load(name).records)
    with driving(folder), slots(plan, folder) as cluster:
        session = Session(
            plan=plan,
            folder=folder,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            emit=emit,
            deadline=_deadline(plan, records, time.monotonic()),
        )
        store.set_state(name, "running")
        progress = Progress(records=records, seen={r.spec.number for r in records})
        if source is None:
            _stages(session, store, cluster, progress, interrupted)
        else:
            reason = drive_all(source, session, store, cluster, progress, interrupted)
            store.finish(name, Outcome(best=None, stopped_because=reason), _state(reason))
    return store.load(name)


def slots_text(plan: Plan) -> str:
    """How many trials run at a time, and on what."""
    workers, gpus = plan.spec.workers, plan.spec.gpus_per_trial
    trials = f"{workers} trial{'s' if workers != 1 else ''} at a time"
    if plan.ray_address:
        return f"{trials} at most, on the Ray cluster at {plan.ray_address}"
    have = f"{len(plan.hardware.gpus)} GPUs and {plan.hardware.cores} cores here"
    return f"{trials}, {gpus} GPU{'s' if gpus != 1 else ''} each ({have})"


def drive_all(
    source: Source,
    session: Session,
    store: Store,
    cluster: Cluster,
    progress: Progress,
    interrupted: Callable[[], bool],
) -> str:
    """Run one source to its end within the study's whole budget; why it ended."""
    return drive(
        source,
        session,
        store,
        cluster,
        progress,
        total=session.plan.spec.budget.trials,
        stop=clock(session.deadline, interrupted),
    )


def _stages(
    session: Session,
    store: Store,
    cluster: Cluster,
    progress: Progress,
    interrupted: Callable[[], bool],
) -> None:
    plan = session.plan
    strategy = factory.make(
        plan.spec.strategy,
        plan.space,
        objectives=plan.spec.objectives,
        limits=plan.spec.limits,
        seed=plan.spec.seed,
        presets=plan.spec.presets,
        budget=plan.spec.budget,
        history=_history(plan, store),
    )
    strategy.replay([r for r in progress.records if r.spec.stage not in final.STAGES])
    session.emit(Event(kind="stage", text="search"))
    with_final = plan.spec.strategy == "auto"

    def stop() -> str | None:
        if interrupted():
            return "interrupted by the user"
        keep = _reserve(plan, progress.records) if with_final else _Reserve(seconds=0, trials=0)
        limit = session.deadline
        if limit is not None and time.monotonic() >= limit - (keep.seconds or 0):
            return "time budget used"
        return None

    reason = drive(
        strategy,
        session,
        store,
        cluster,
        progress,
        total=_search_total(plan, with_final),
        stop=stop,
    )
    for text in strategy.notices():
        session.emit(Event(kind="notice", text=text))
    with leading(session.folder) as first:
        if not first:
            session.emit(Event(kind="notice", text="another driver runs the final stage"))
            return
        if with_final:
            reason, outcome = _final(session, store, cluster, progress, interrupted, reason)
        else:
            outcome = _unconfirmed(plan, progress.records, reason)
        store.finish(plan.spec.name, outcome, _state(reason))


def _final(
    session: Session,
    store: Store,
    cluster: Cluster,
    progress: Progress,
    interrupted: Callable[[], bool],
    reason: str,
) -> tuple[str, Outcome]:
    stage = _final_stage(session.plan, progress.records, session)
    stage.replay(progress.records)
    if _state(reason) == "finished":
        session.emit(Event(kind="stage", text="final: best and baselines in turn"))
        ended = drive_all(stage, session, store, cluster, progress, interrupted)
        reason = reason if ended == "space exhausted" else f"{reason}; final stage: {ended}"
    return reason, stage.conclude(reason)


def _search_total(plan: Plan, with_final: bool) -> int | None:
    total = plan.spec.budget.trials
    if total is None or not with_final:
        return total
    return total - min(total // 2, _TRIALS_KEPT_FOR_FINAL)


def _reserve(plan: Plan, records: Sequence[TrialRecord]) -> _Reserve:
    """Seconds for the final stage: enough repeats of every arm, as dear as trials here are."""
    budget = plan.spec.budget.seconds
    if budget is None:
        return _Reserve(seconds=None, trials=plan.spec.budget.trials)
    typical = typical_seconds(records, full_depth=not slice_depths(plan)) or 0.0
    # A full-depth trial builds and steps a deeper model, but its graphs are compiled already.
    each = typical * (1.8 if slice_depths(plan) and plan.hardware.device == "cuda" else 1.0)
    wanted = each * _ARMS * _REPEATS / max(1, plan.spec.workers)
    return _Reserve(seconds=min(_FINAL_SHARE * budget, wanted), trials=None)


def _final_stage(plan: Plan, records: Sequence[TrialRecord], session: Session) -> FinalStage:
    found = candidates.pick(
        [r for r in records if r.spec.stage not in final.STAGES],
        plan.spec.objectives,
        plan.spec.limits,
    )
    left = None if session.deadline is None else max(0.0, session.deadline - time.monotonic())
    return FinalStage(
        plan.space,
        objectives=plan.spec.objectives,
        limits=plan.spec.limits,
        candidates=found,
        baselines=baselines(plan),
        ablation_trials=_ablation_trials(plan, records, left),
        neighbours=left is None or left > 600,
    )


def _ablation_trials(plan: Plan, records: Sequence[TrialRecord], left: float | None) -> int:
    """As many as fit into a share of what is left, so that the race always gets its rounds."""
    total = plan.spec.budget.trials
    by_count = 60 if total is None else max(0, (total - len(records)) - _ARMS * _REPEATS)
    typical = typical_seconds(records, full_depth=not slice_depths(plan))
    if left is None or not typical:
        return by_count
    by_time = int(_ABLATION_SHARE * left * max(1, plan.spec.workers) / typical)
    return min(by_count, by_time)


def baselines(plan: Plan) -> dict[str, Configuration]:
    """Common practice first (the headline is over it), where there is such a preset; upstream."""
    found: dict[str, Configuration] = {}
    for preset in plan.spec.presets:
        if preset["name"] == COMMON:
            found[COMMON] = plan.space.complete(preset["configuration"])
    found[UPSTREAM] = plan.space.default()
    return found


def _history(plan: Plan, store: Store) -> Sequence[TrialRecord]:
    """Records of the study named by --from; hints, never facts."""
    return store.load(plan.warm_start).records if plan.warm_start else ()


def _unconfirmed(plan: Plan, records: Sequence[TrialRecord], reason: str) -> Outcome:
    """The conclusion of a plain strategy: the best single trial, and no claim beyond it."""
    found = candidates.pick(records, plan.spec.objectives, plan.spec.limits, count=1)
    if not found:
        return Outcome(best=None, verdict="nothing feasible", stopped_because=reason)
    best = found[0]
    common: Mapping[str, object] = next(iter(baselines(plan).values()))
    return Outcome(
        best=best.number,
        configuration=dict(best.configuration),
        changed={
            name: value
            for name, value in best.configuration.items()
            if common.get(name, plan.space.knob(name).default) != value
        },
        changed_from_upstream=plan.space.changed(best.configuration),
        verdict=f"best of single trials (strategy {plan.spec.strategy}); not confirmed by repeats",
        stopped_because=reason,
    )


def _deadline(plan: Plan, records: Sequence[TrialRecord], started: float) -> float | None:
    budget = plan.spec.budget.seconds
    if budget is None:
        return None
    return started + max(0.0, budget - spent_seconds(records, plan.spec.workers))


def _state(reason: str) -> str:
    if "interrupted" in reason:
        return "interrupted"
    return "failed" if reason.startswith("the last") else "finished"


def deliver_files(study: Study, out: Path) -> dict[str, str]:
    """study.json, report.html and best.yaml in the study's folder."""
    return deliver.everything(study, out / study.spec.name)
