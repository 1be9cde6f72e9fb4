"""One trial in a process of its own: started, watched, ended, and turned into a record."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from autotune import environment, failure, process_tree
from autotune.trial import (
    BadRecord,
    Failure,
    Measurement,
    Status,
    TrialRecord,
    TrialSpec,
    measurement_from_json,
    to_json,
)
from autotune.zygote import Zygote, ZygoteDied

_POLL_SECONDS = 0.2
_LARGEST_LOG_BYTES = 256 << 20
_LARGEST_ANSWER_BYTES = 64 << 20
_live: dict[int, str] = {}  # root process -> mark, of trials that run now


class Cluster(Protocol):
    """Where trials run: slots that take specs and give records back."""

    @property
    def free_slots(self) -> int:
        """How many more trials can be submitted now."""

    def submit(self, spec: TrialSpec, folder: Path) -> None:
        """Start a trial in a free slot."""

    def next_finished(self, timeout_seconds: float) -> TrialRecord | None:
        """A record that came back, or None after the time-out."""

    def close(self) -> None:
        """End whatever still runs."""


class Watch(Protocol):
    """Telemetry around one trial, seen from outside."""

    def start(self, pid: int) -> None:
        """Begin to sample."""

    def finish(self, measurement: Measurement | None) -> Measurement | None:
        """Stop; the measurement with what was seen."""


def run(
    spec: TrialSpec,
    folder: Path,
    *,
    zygote: Zygote | None = None,
    watch: Watch | None = None,
) -> TrialRecord:
    """Run a trial to its end, whatever that is; always a record, never an exception of its own."""
    begun = time.monotonic()
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    try:
        _prepare(spec, folder)
        status, measurement, failed = _ended(spec, folder, zygote, watch)
    except OSError as error:
        status, measurement = Status.CRASHED, None
        failed = Failure(reason=f"could not be started: {error}", hint="see `autotune doctor`")
    return TrialRecord(
        spec=dataclasses.replace(spec, environ=environment.mask(spec.environ)),
        status=status,
        measurement=measurement,
        failure=failed,
        wall_seconds=time.monotonic() - begun,
        started_at=started_at,
        host=socket.gethostname(),
        folder=str(folder),
    )


def _prepare(spec: TrialSpec, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in ("measurement.json", "log.txt"):
        (folder / left_over).unlink(missing_ok=True)
    shown = dataclasses.replace(spec, environ=environment.mask(spec.environ))
    (folder / "spec.json").write_text(json.dumps(to_json(shown), allow_nan=False))


def _ended(
    spec: TrialSpec, folder: Path, zygote: Zygote | None, watch: Watch | None
) -> tuple[Status, Measurement | None, Failure | None]:
    mark = f"{spec.study}:{spec.number}:{os.getpid()}:{time.monotonic_ns()}"
    environ = environment.of_trial(spec, {process_tree.MARK: mark, **_caches(folder)})
    forked = zygote is not None and not environment.needs_fresh_interpreter(spec)
    child = _Forked(zygote, folder, environ) if forked and zygote else _Fresh(folder, environ)
    _live[child.pid] = mark
    if watch is not None:
        watch.start(child.pid)
    try:
        code, why = _wait(child, spec.timeout_seconds, folder / "log.txt")
    finally:
        stuck = process_tree.end(child.pid, mark, gently=True)
        child.reap()
        _live.pop(child.pid, None)
    status, measurement, failed = _judge(code, why, spec, folder)
    if watch is not None:
        measurement = watch.finish(measurement)
    if stuck and measurement is not None:
        text = f"processes {sorted(stuck)} of the trial could not be ended"
        measurement = dataclasses.replace(measurement, notices=(*measurement.notices, text))
    return status, measurement, failed


def _caches(folder: Path) -> dict[str, str]:
    """Compile caches live with the study, one set per slot, so that they are warm, writable and
    never shared by two writers."""
    home = folder.parent / "cache" / os.environ.get("AUTOTUNE_SLOT", "0")
    found = {
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "TRITON_CACHE_DIR": str(home / "triton"),
    }
    if not os.access(os.path.expanduser("~"), os.W_OK):
        home.mkdir(parents=True, exist_ok=True)
        found |= {"HOME": str(home), "USER": "autotune"}
    return {
        name: value for name, value in found.items() if name not in os.environ or name == "HOME"
    }


class _Fresh:
    """A trial in a new interpreter."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        with (folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trials", str(folder)],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self, seconds: float) -> int | None:
        """The exit code, once there is one."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def reap(self) -> None:
        """Take the exit code, so that no zombie stays."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


class _Forked:
    """A trial forked from a zygote."""

    def __init__(self, zygote: Zygote, folder: Path, environ: Mapping[str, str]) -> None:
        self._zygote = zygote
        self.pid = zygote.fork(folder, environ)
        self._code: int | None = None

    def poll(self, seconds: float) -> int | None:
        """The exit code, once there is one."""
        if self._code is None:
            self._code = self._zygote.wait(self.pid, seconds)
        return self._code

    def reap(self) -> None:
        """The zygote reaps its children; take its word, so that none is left unread."""
        with contextlib.suppress(ZygoteDied):
            self.poll(5)


def _wait(child: _Fresh | _Forked, timeout: float, log: Path) -> tuple[int | None, str]:
    """The exit code, or None and why the trial must be ended."""
    limit = time.monotonic() + timeout
    while (left := limit - time.monotonic()) > 0:
        try:
            code = child.poll(min(left, _POLL_SECONDS))
        except ZygoteDied:
            return None, "the process that trials are forked from died"
        if code is not None:
            return code, ""
        with contextlib.suppress(OSError):
            if log.stat().st_size > _LARGEST_LOG_BYTES:
                return None, f"its log grew beyond {_LARGEST_LOG_BYTES >> 20} MiB"
    return None, "deadline"


def _judge(
    code: int | None, why: str, spec: TrialSpec, folder: Path
) -> tuple[Status, Measurement | None, Failure | None]:
    log = folder / "log.txt"
    if code is None:
        if why == "deadline":
            return _without(failure.timed_out(spec.timeout_seconds, log))
        return Status.CRASHED, None, Failure(reason=why, detail=failure.tail(log))
    try:
        answer = _read(folder / "measurement.json")
    except BadRecord as error:
        hint = "metrics are plain numbers or null"
        return Status.CRASHED, None, Failure(reason=str(error), hint=hint, detail=failure.tail(log))
    if answer is None:
        if code == 0:
            reason = "ended without a measurement"
            return Status.CRASHED, None, Failure(reason=reason, detail=failure.tail(log))
        return _without(failure.of_exit(code, log))
    status, measurement, failed = answer
    if failed is not None:
        status, failed = failure.completed(status, failed, log)
    return status, measurement, failed


def _without(
    found: tuple[Status, Failure],
) -> tuple[Status, Measurement | None, Failure | None]:
    return found[0], None, found[1]


def _read(path: Path) -> tuple[Status, Measurement | None, Failure | None] | None:
    """The trial's answer; None when it gave none. Raises BadRecord for one that is not legal."""
    try:
        if path.stat().st_size > _LARGEST_ANSWER_BYTES:
            raise BadRecord(f"measurement.json is larger than {_LARGEST_ANSWER_BYTES >> 20} MiB")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"measurement.json is not JSON: {error}") from None
    try:
        status = Status(data["status"])
        measurement = data["measurement"] and measurement_from_json(data["measurement"])
        failed = Failure(**data["failure"]) if data["failure"] else None
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"measurement.json: {error}") from None
    if measurement is not None:
        _check_metrics(measurement)
        if bad := [
            n for n, v in measurement.metrics.items() if v is not None and not math.isfinite(v)
        ]:
            return Status.NON_FINITE, None, Failure(reason=f"{bad[0]} is not finite")
    return status, measurement or None, failed


def _check_metrics(measurement: Measurement) -> None:
    for name, value in dict[str, Any](measurement.metrics).items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise BadRecord(f"metric {name} is a {type(value).__name__}, not a number")


def kill_everything() -> None:
    """End every running trial of this process at once; for a user who will not wait."""
    for root, mark in list(_live.items()):
        process_tree.end(root, mark, gently=False)
