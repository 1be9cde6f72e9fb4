"""One whole study: search, then the final stage, then the conclusion. What tune and resume run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune import breaker, deliver as delivering, estimate, sampler
from autotune.cluster import NoResources, RayCluster
from autotune.final import FinalStage
from autotune.launch import Cluster
from autotune.plan import Plan
from autotune.session import Event, Session
from autotune.store import Store
from autotune.study import Outcome, Study
from autotune.summary import best_record
from autotune.trial import TrialRecord
from autotune.tune import Progress, clock, drive, spent_seconds, typical_seconds

__all__ = ["NoResources", "conduct", "deliver", "register"]

_SEARCH_STAGES = ("final", "ablation")  # everything else belongs to the search
_FINAL_SHARE = 0.45  # of the budget, at most
_ARMS, _REPEATS = 3, 5


def register(plan: Plan, store: Store) -> None:
    """Create the study, or join one of that name which asks for exactly the same."""
    store.create_study(plan.spec)


def conduct(
    plan: Plan,
    store: Store,
    out: Path,
    emit: Callable[[Event], None],
    interrupted: Callable[[], bool],
) -> Study:
    """Run a registered study from wherever it stands to its end; the study with its outcome."""
    name = plan.spec.name
    session = Session(
        plan=plan,
        folder=(out / name).absolute(),
        owner=f"{socket.gethostname()}:{os.getpid()}",
        emit=emit,
        deadline=None,
    )
    for text in plan.notices:
        emit(Event(kind="notice", text=text))
    for number in store.abandon_dead(name):
        emit(Event(kind="notice", text=f"trial {number} was abandoned and will run again"))
    records = list(store.load(name).records)
    with RayCluster.for_plan(plan, session.folder) as cluster:
        state, outcome = _stages(session, store, cluster, records, interrupted)
    store.finish(name, outcome, state)
    return store.load(name)
