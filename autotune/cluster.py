"""Ray behind one door: actors that hold a slot each, and the records that come back from them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune import launch, ray_host
from autotune.guard import Guard
from autotune.launch import Cluster
from autotune.plan import Plan
from autotune.process_tree import end_orphans
from autotune.ray_host import Node, NoResources, first_line
from autotune.rooms import child_environ
from autotune.trial import Failure, Status, TrialRecord, TrialSpec
from autotune.turn import turn
from autotune.worker import Worker

_START_SECONDS = 90.0  # of Ray, or of a slot
_QUEUE_SECONDS = 900.0  # behind other drivers that start at the same time
_MOST_FAILED_STARTS = 5
_SHARE = 0.01  # of a core that an actor asks for: a slot is a promise of ours, not Ray's


@contextmanager
def for_plan(plan: Plan, folder: Path) -> Iterator[Cluster]:
    """The cluster of a study, closed at the end however that comes."""
    _ensure_home(folder)
    cluster = RayCluster(
        runner=plan.spec.runner,
        workers=plan.spec.workers,
        gpus=plan.spec.gpus_per_trial,
        cpus=plan.spec.cpus_per_trial,
        gpus_here=len(plan.hardware.gpus),
        environ=plan.spec.environ,
        address=plan.ray_address,
    )
    try:
        yield cluster
    finally:
        cluster.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """A trial on its way."""

    spec: TrialSpec
    folder: Path
    slot: int
    started_at: str
    begun: float
    lost_at: float


def _ensure_home(folder: Path) -> None:
    """Ray keeps a token in the home folder, which a bare user id in a container does not have."""
    home = os.environ.get("HOME", "")
    if not home or not os.access(home, os.W_OK):
        own = folder.parent / "cache" / "home"
        own.mkdir(parents=True, exist_ok=True)
        os.environ["HOME"] = str(own)


class RayCluster:
    """One actor per slot; Ray and the actors start in the background while the study prepares."""

    def __init__(
        self,
        *,
        runner: str,
        workers: int,
        gpus: int = 0,
        cpus: int = 0,
        gpus_here: int = 0,
        environ: Mapping[str, str] | None = None,
        address: str | None = None,
        late_seconds: float = 60.0,  # a slot that is silent so long after a deadline is lost
    ) -> None:
        self._runner, self._workers, self._address = runner, workers, address
        self._gpus, self._cpus, self._gpus_here = gpus, cpus, gpus_here
        self._environ, self._late_seconds = dict(environ or {}), late_seconds
        self._actors: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}  # promise of an actor to be ready -> its slot
        self._busy: dict[Any, _Busy] = {}  # promise of a record -> its trial
        self._trouble: BaseException | None = None
        self._failed_starts: list[str] = []
        self._guard: Guard | None = None
        self._turn, self._started = threading.Event(), threading.Event()
        self._leaving, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._start, name="ray", daemon=True)
        self._thread.start()

    @property
    def free_slots(self) -> int:
        """How many more trials can be submitted now.

        Never 0 while none runs: then ``submit`` waits for a slot, or says why there is none.
        """
        if self._started.is_set() and self._trouble is None:
            free = len(self._ready(0)) - len(self._busy)
        else:
            free = 0
        return free if self._busy else max(1, free)

    def submit(self, spec: TrialSpec, folder: Path) -> None:
        """Start a trial in a free slot; raises NoResources when there are none to be had."""
        self._wait_for_start()
        slot = self._free_slot()
        answer = self._actors[slot].run.remote(spec, folder)
        begun = time.monotonic()
        self._busy[answer] = _Busy(
            spec=spec,
            folder=folder,
            slot=slot,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            begun=begun,
            lost_at=begun + spec.timeout_seconds + self._late_seconds,
        )

    def next_finished(self, timeout_seconds: float) -> TrialRecord | None:
        """A record that came back, or None after the time-out."""
        import ray

        if not self._busy:
            time.sleep(timeout_seconds)
            return None
        ready, _ = ray.wait(list(self._busy), timeout=timeout_seconds)
        if ready:
            return self._received(ready[0])
        for answer, busy in list(self._busy.items()):
            if time.monotonic() > busy.lost_at:
                del self._busy[answer]
                self._replace(busy.slot)
                return _lost(busy, Status.TIMED_OUT, "its worker never answered")
        return None

    def close(self) -> None:
        """End running trials, the actors, and Ray itself unless it is somebody else's."""
        self._leaving.set()
        if not self._turn.is_set():
            return  # Ray has not been touched, and will not be
        self._started.wait(_START_SECONDS)
        import ray

        with contextlib.suppress(Exception):
            busy = {b.slot for b in self._busy.values()} | set(self._starting.values())
            ending = [a.close.remote() for n, a in self._actors.items() if n not in busy]
            for slot in busy:
                ray.kill(self._actors[slot])
            if ending:
                ray.wait(ending, num_returns=len(ending), timeout=5)
            for actor in self._actors.values():
                ray.kill(actor)
        with contextlib.suppress(Exception):
            ray.shutdown()
        self._closing.set()
        self._thread.join(5)
        if self._guard is not None:
            self._guard.close()

    def _received(self, answer: Any) -> TrialRecord:
        import ray

        busy = self._busy.pop(answer)
        try:
            record = ray.get(answer)
        except ray.exceptions.RayError as error:
            self._replace(busy.slot)
            return _lost(busy, *_why_lost(error))
        assert isinstance(record, TrialRecord)
        return record

    def _ready(self, timeout_seconds: float) -> set[int]:
        """Slots whose actor is up; those that died at the start are replaced."""
        import ray

        if self._starting:
            up, _ = ray.wait(list(self._starting), timeout=timeout_seconds)
            for promise in up:
                slot = self._starting.pop(promise)
                try:
                    ray.get(promise)
                except ray.exceptions.RayError as error:
                    self._failed_starts.append(first_line(error))
                    if len(self._failed_starts) < _MOST_FAILED_STARTS:
                        self._replace(slot)
                    else:
                        del self._actors[slot]
            if up and self._guard is not None:
                self._guard.look()
        return set(self._actors) - set(self._starting.values())

    def _free_slot(self) -> int:
        taken = {b.slot for b in self._busy.values()}
        limit = time.monotonic() + _START_SECONDS
        while not (free := self._ready(0.1) - taken):
            if not self._actors:
                raise NoResources(f"no slot could start: {self._failed_starts[-1]}")
            if time.monotonic() > limit:
                have = ", ".join(map(str, ray_host.nodes()))
                raise NoResources(f"no slot was free within {_START_SECONDS:g} s; {have}")
        return min(free)

    def _replace(self, slot: int) -> None:
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._actors[slot])
        self._add(slot)

    def _wait_for_start(self) -> None:
        self._turn.wait(_QUEUE_SECONDS)
        if not self._started.wait(_START_SECONDS):
            raise NoResources(f"Ray did not start within {_START_SECONDS:g} s")
        if self._trouble is not None:
            if isinstance(self._trouble, NoResources):
                raise self._trouble
            raise NoResources(f"Ray could not start: {first_line(self._trouble)}")

    def _start(self) -> None:
        try:
            end_orphans()
            with turn("ray"):  # sixteen that start at once on two cores would all time out
                self._turn.set()
                if self._leaving.is_set():
                    raise NoResources("the study ended before Ray started")
                self._have_ray()
            here = [ray_host.this_node(self._gpus_here)]
            for slot in range(self._room(ray_host.nodes() if self._address else here)):
                self._add(slot)
        except BaseException as error:
            self._trouble = error
        self._turn.set()
        self._started.set()
        # Ray's own processes end with the thread that started them: it must outlive the study.
        self._closing.wait()

    def _have_ray(self) -> None:
        if self._address is not None:
            ray_host.join(self._address)
            return
        self._room([ray_host.this_node(self._gpus_here)])  # before a start that would be in vain
        self._guard = Guard()
        with self._guard.marking({"PYTHONPATH": child_environ({})["PYTHONPATH"]}):
            ray_host.start(self._workers, self._gpus_here if self._gpus else 0)

    def _room(self, nodes: list[Node]) -> int:
        return ray_host.room(nodes, gpus=self._gpus, cpus=self._cpus, most=self._workers)

    def _add(self, slot: int) -> None:
        import ray

        options: dict[str, Any] = {"num_cpus": _SHARE, "num_gpus": self._gpus, "max_restarts": 0}
        if self._address is not None:
            # The class is resolved by name in the worker, which needs autotune on its path. Workers
            # of our own Ray inherit it, which starts them a second faster.
            variables = {"PYTHONPATH": child_environ({})["PYTHONPATH"]}
            options["runtime_env"] = {"env_vars": variables}
            options["num_cpus"] = self._cpus or _SHARE
        remote: Any = ray.remote(Worker)
        forwarded = ray_host.variables(elsewhere=self._address is not None)
        actor = remote.options(**options).remote(self._runner, self._environ, Path.cwd(), forwarded)
        self._actors[slot] = actor
        self._starting[actor.wait_until_ready.remote()] = slot


def _why_lost(error: Exception) -> tuple[Status, str]:
    """What a worker's death says: nothing about the trial, unless memory ran out."""
    import ray

    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return Status.HOST_OUT_OF_MEMORY, "Ray ended its worker: the host was out of memory"
    return Status.ABANDONED, f"its worker died: {type(error).__name__}: {first_line(error)}"


def _lost(busy: _Busy, status: Status, reason: str) -> TrialRecord:
    return TrialRecord(
        spec=launch.shown(busy.spec),
        status=status,
        measurement=None,
        failure=Failure(reason=reason, hint="the slot was replaced"),
        wall_seconds=time.monotonic() - busy.begun,
        started_at=busy.started_at,
        host=socket.gethostname(),
        folder=str(busy.folder),
    )
