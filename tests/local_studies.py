"""Whole studies in this process, with slots in threads: the start of Ray is dear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune import conduct, plan
from autotune.local_cluster import threads_for_plan
from autotune.plan import Plan
from autotune.request import Request
from autotune.session import Event
from autotune.store import Store
from autotune.study import Study


def planned(**words: Any) -> Plan:
    """The plan of a study of the toy, one trial at a time."""
    wanted = {"model": "toy", "runner": "toy", "strategy": "random", "workers": 1, **words}
    return plan.make(Request(**{"study": "s", **wanted}), [])


def run(folder: Path, **words: Any) -> tuple[Study, list[Event]]:
    """A study of the toy from its words to its end."""
    return _conduct(folder, planned(**words), is_new=True)


def again(folder: Path, study: Study, **more: Any) -> tuple[Study, list[Event]]:
    """The same study resumed."""
    return _conduct(folder, plan.again(study.spec, **more), is_new=False)


def _conduct(folder: Path, made: Plan, *, is_new: bool) -> tuple[Study, list[Event]]:
    store, events = Store(str(folder / "store.db")), list[Event]()
    try:
        if is_new:
            conduct.register(made, store)
        return conduct.conduct(
            made, store, folder, events.append, lambda: False, slots=threads_for_plan
        ), events
    finally:
        store.close()
