"""Slots in threads of this process: for one host, where Ray could not start or is not wanted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from autotune import launch
from autotune.launch import Cluster
from autotune.plan import Plan
from autotune.slot import Slot
from autotune.trial import TrialRecord, TrialSpec


@contextmanager
def threads_for_plan(plan: Plan, _folder: Path) -> Iterator[Cluster]:
    """The slots of a study, closed at the end however that comes."""
    spec = plan.spec
    cluster = LocalCluster(runner=spec.runner, workers=spec.workers, environ=spec.environ)
    try:
        yield cluster
    finally:
        cluster.close()


class LocalCluster:
    """Runs up to ``workers`` trials at a time, each slot in a thread of its own."""

    def __init__(
        self,
        *,
        runner: str,
        workers: int,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._todo: queue.SimpleQueue[tuple[TrialSpec, Path] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[TrialRecord | BaseException] = queue.SimpleQueue()
        self._running, self._workers = 0, workers
        self._slots = [Slot(runner, environ, cwd) for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"slot {n}", daemon=True)
            for n, slot in enumerate(self._slots)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def free_slots(self) -> int:
        """How many more trials can be submitted now."""
        return self._workers - self._running

    def submit(self, spec: TrialSpec, folder: Path) -> None:
        """Start a trial in a free slot."""
        self._running += 1
        self._todo.put((spec, folder))

    def next_finished(self, timeout_seconds: float) -> TrialRecord | None:
        """A record that came back, or None after the time-out."""
        try:
            found = self._done.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        self._running -= 1
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """End whatever still runs."""
        for _ in self._threads:
            self._todo.put(None)
        while any(thread.is_alive() for thread in self._threads):
            launch.kill_everything()  # again: a slot may have taken up its next trial meanwhile
            for thread in self._threads:
                thread.join(0.1)
        for slot in self._slots:
            slot.close()

    def _serve(self, slot: Slot) -> None:
        while (work := self._todo.get()) is not None:
            try:
                self._done.put(slot.run(*work))
            except BaseException as error:  # of ours: the driver must not wait for ever
                self._done.put(error)
