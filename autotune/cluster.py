"""Ray behind one door: actors that hold a slot each, and the records that come back from them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune import environment
from autotune.launch import Cluster
from autotune.plan import Plan
from autotune.rooms import child_environ
from autotune.trial import Failure, Status, TrialRecord, TrialSpec

_LATE_SECONDS = 30.0  # a slot that has not answered so long after the deadline is lost
_START_SECONDS = 90.0
_QUEUE_SECONDS = 900.0  # behind other drivers that start at the same time
# Variables of the driver that reach workers of another host's cluster; trials' own always do.
FORWARDED = (
    "HF_",
    "CUDA_VISIBLE_DEVICES",
    "OMP_",
    "MKL_",
    "TORCH",
    "PYTORCH",
    "NCCL_",
    "AUTOTUNE_",
)


class NoResources(RuntimeError):
    """The cluster does not have what a trial needs; says asked and available."""


@contextmanager
def for_plan(plan: Plan, folder: Path) -> Iterator[Cluster]:
    """The cluster of a study, closed at the end however that comes."""
    del folder
    cluster = RayCluster(
        runner=plan.spec.runner,
        workers=plan.spec.workers,
        gpus=plan.spec.gpus_per_trial,
        address=plan.ray_address,
    )
    try:
        yield cluster
    finally:
        cluster.close()


@dataclasses.dataclass(slots=True, kw_only=True)
class _Busy:
    """A trial on its way; only the cluster writes to it."""

    spec: TrialSpec
    folder: Path
    slot: int
    answer: Any
    lost_at: float


class RayCluster:
    """One actor per slot; Ray starts in the background while the study prepares."""

    def __init__(self, *, runner: str, workers: int, gpus: int, address: str | None = None) -> None:
        self._runner, self._workers, self._gpus, self._address = runner, workers, gpus, address
        self._actors: dict[int, Any] = {}
        self._busy: dict[int, _Busy] = {}
        self._trouble: BaseException | None = None
        self._turn, self._started = threading.Event(), threading.Event()
        self._closing, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._start, name="ray", daemon=True)
        self._thread.start()

    @property
    def free_slots(self) -> int:
        """How many more trials can be submitted now."""
        return self._workers - len(self._busy)

    def submit(self, spec: TrialSpec, folder: Path) -> None:
        """Start a trial in a free slot; raises NoResources when Ray could not give slots."""
        self._wait_for_start()
        slot = next(n for n in range(self._workers) if n not in self._busy)
        if slot not in self._actors:
            self._actors[slot] = self._actor(slot)
        answer = self._actors[slot].run.remote(spec, folder)
        lost_at = time.monotonic() + spec.timeout_seconds + _LATE_SECONDS
        self._busy[slot] = _Busy(
            spec=spec, folder=folder, slot=slot, answer=answer, lost_at=lost_at
        )

    def next_finished(self, timeout_seconds: float) -> TrialRecord | None:
        """A record that came back, or None after the time-out."""
        import ray

        if not self._busy:
            time.sleep(timeout_seconds)
            return None
        ready, _ = ray.wait([b.answer for b in self._busy.values()], timeout=timeout_seconds)
        for busy in list(self._busy.values()):
            if busy.answer in ready:
                del self._busy[busy.slot]
                return self._received(busy)
            if time.monotonic() > busy.lost_at:
                del self._busy[busy.slot]
                self._replace(busy.slot)
                return _lost(busy, Status.TIMED_OUT, "its worker never answered")
        return None

    def close(self) -> None:
        """End running trials, the actors, and Ray itself unless it is somebody else's."""
        self._closing.set()
        if not self._turn.is_set():
            return  # Ray has not been touched, and will not be
        self._started.wait(_START_SECONDS)
        import ray

        with contextlib.suppress(Exception):
            ending = [a.close.remote() for a in self._actors.values() if a is not None]
            busy = {b.slot for b in self._busy.values()}
            for slot in busy:
                ray.kill(self._actors[slot])
            idle = [e for e, slot in zip(ending, self._actors, strict=True) if slot not in busy]
            if idle:
                ray.wait(idle, num_returns=len(idle), timeout=5)
        with contextlib.suppress(Exception):
            ray.shutdown()
        self._closed.set()
        self._thread.join(5)

    def _received(self, busy: _Busy) -> TrialRecord:
        import ray

        try:
            record = ray.get(busy.answer)
        except ray.exceptions.RayError as error:
            self._replace(busy.slot)
            return _lost(busy, Status.CRASHED, f"its worker died: {type(error).__name__}")
        assert isinstance(record, TrialRecord)
        return record

    def _replace(self, slot: int) -> None:
        import ray

        actor = self._actors.pop(slot, None)
        with contextlib.suppress(Exception):
            ray.kill(actor)

    def _wait_for_start(self) -> None:
        self._turn.wait(_QUEUE_SECONDS)
        if not self._started.wait(_START_SECONDS):
            raise NoResources(f"Ray did not start within {_START_SECONDS:g} s")
        if self._trouble is not None:
            if isinstance(self._trouble, NoResources):
                raise self._trouble
            raise NoResources(f"Ray could not start: {self._trouble}")

    def _start(self) -> None:
        try:
            with _one_at_a_time():
                self._turn.set()
                if not self._closing.is_set():
                    _start_ray(self._address, self._workers, self._gpus)
                    self._check_resources()
        except BaseException as error:
            self._trouble = error
        self._turn.set()
        self._started.set()
        # Ray's own processes end with the thread that started them: it must outlive the study.
        self._closed.wait()

    def _check_resources(self) -> None:
        import ray

        have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        for name, per_trial in (("GPU", self._gpus), ("CPU", 1)):
            if per_trial and have.get(name, 0) < per_trial:
                nodes = ", ".join(
                    f"{n['NodeManagerHostname']}: {n['Resources'].get(name, 0):g}"
                    for n in ray.nodes()  # type: ignore[no-untyped-call]
                    if n["Alive"]
                )
                raise NoResources(f"a trial needs {per_trial} {name}; there are {nodes or 'none'}")

    def _actor(self, slot: int) -> Any:
        import ray

        # Resolved by name in the worker, which therefore needs autotune on its path.
        remote = ray.remote(_Worker)
        share = 1 if self._gpus else 0.01
        return remote.options(
            num_cpus=share,
            num_gpus=self._gpus,
            max_restarts=0,
            runtime_env={"env_vars": _forwarded(remote_cluster=self._address is not None)},
        ).remote(slot, self._runner)


class _Worker:
    """What runs in a slot's process; imports stay in the methods, so that it starts fast."""

    def __init__(self, number: int, runner: str) -> None:
        from autotune.slot import Slot

        self._slot = Slot(number, runner)

    def run(self, spec: TrialSpec, folder: Path) -> TrialRecord:
        """One trial."""
        return self._slot.run(spec, folder)

    def close(self) -> None:
        """End the zygote."""
        self._slot.close()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """One Ray of ours starts at a time on a host: sixteen at once on two cores all time out."""
    path = Path(tempfile.gettempdir()) / f"autotune-ray-{os.getuid()}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # nowhere to write: then without
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _start_ray(address: str | None, workers: int, gpus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A trial is measured: nothing on the host may outrank it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
        "namespace": "autotune",
    }
    if address is not None:
        ray.init(address=address, **options)
        return
    # Cores are not what limits trials here: a slot is a promise, and trials choose their threads.
    ray.init(
        num_cpus=max(1, workers),
        **({"num_gpus": None} if gpus else {"num_gpus": 0}),
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=80 << 20,
        **options,
    )


def _forwarded(*, remote_cluster: bool) -> dict[str, str]:
    """What workers get of the driver's environment: all of it on this host (they are its
    children), by the allow-list FORWARDED elsewhere; and the way to import autotune."""
    found = {"PYTHONPATH": child_environ({})["PYTHONPATH"]}
    if remote_cluster:
        found |= {k: v for k, v in os.environ.items() if k.startswith(FORWARDED)}
        found.pop("CUDA_VISIBLE_DEVICES", None)  # Ray's to set on the worker's host
    return found


def _lost(busy: _Busy, status: Status, reason: str) -> TrialRecord:
    return TrialRecord(
        spec=dataclasses.replace(busy.spec, environ=environment.mask(busy.spec.environ)),
        status=status,
        measurement=None,
        failure=Failure(reason=reason, hint="the slot was replaced"),
        wall_seconds=busy.spec.timeout_seconds if status is Status.TIMED_OUT else 0.0,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        host=socket.gethostname(),
        folder=str(busy.folder),
    )
