"""One trial in a process of its own: started, watched, ended, and turned into a record."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from autotune import answer, environment, failure
from autotune.compile_cache import CompileCache
from autotune.process_tree import MARK, Tree, mark_of
from autotune.trial import (
    BadRecord,
    Failure,
    Measurement,
    Status,
    TrialRecord,
    TrialSpec,
    to_json,
)
from autotune.zygote import Zygote, ZygoteDied

_POLL_SECONDS = 0.2
_LARGEST_LOG_BYTES = 64 << 20
_KEPT_LOG_BYTES = 4 << 20
_MOST_PROCESSES = 2000  # of one trial
_FAREWELL_SECONDS = 20.0  # from the answer to the end of the process
_live: dict[int, Tree] = {}  # root process -> tree, of trials that run now


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

    def start(self, tree: Tree) -> None:
        """Begin to sample."""

    def finish(self, measurement: Measurement | None) -> Measurement | None:
        """Stop; the measurement with what was seen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a process ended: its exit code, or why it had to be ended."""

    code: int | None
    why: str = ""  # deadline, or a sentence


def run(
    spec: TrialSpec,
    folder: Path,
    *,
    zygote: Zygote | None = None,
    watch: Watch | None = None,
    cache: CompileCache | None = None,
    cwd: Path | None = None,
) -> TrialRecord:
    """Run a trial to its end, whatever that is; always a record, never an exception of its own.

    Without a ``zygote`` it gets one for itself, which then only guards a fresh interpreter.
    """
    begun = time.monotonic()
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    folder = folder.absolute()
    try:
        _prepare(spec, folder)
        with _cache(cache, folder) as caches, _guardian(zygote) as guardian:
            fresh = zygote is None or environment.needs_fresh_interpreter(spec)
            environ = environment.of_trial(spec, caches.variables())
            trial = _Trial(spec, folder, guardian, environ)
            found = trial.outcome(watch, cwd=cwd or Path.cwd(), fresh=fresh, warm=caches.is_warm())
    except ZygoteDied as error:
        found = _crashed(f"the process that trials are forked from died: {error}")
    except OSError as error:
        found = _crashed(f"could not be started: {error}", "see `autotune doctor`")
    status, measurement, failed = found
    return TrialRecord(
        spec=shown(spec),
        status=status,
        measurement=measurement,
        failure=failed,
        wall_seconds=time.monotonic() - begun,
        started_at=started_at,
        host=socket.gethostname(),
        folder=str(folder),
    )


def shown(spec: TrialSpec) -> TrialSpec:
    """The spec without secrets, as files and records hold it."""
    return dataclasses.replace(spec, environ=environment.mask(spec.environ))


def _crashed(
    reason: str, hint: str = "", detail: str = ""
) -> tuple[Status, Measurement | None, Failure | None]:
    return Status.CRASHED, None, Failure(reason=reason, hint=hint, detail=detail)


def _prepare(spec: TrialSpec, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in (answer.NAME, f"{answer.NAME}.tmp", "log.txt"):
        (folder / left_over).unlink(missing_ok=True)
    (folder / "log.txt").touch()
    (folder / "spec.json").write_text(json.dumps(to_json(shown(spec)), allow_nan=False))


@contextmanager
def _cache(given: CompileCache | None, folder: Path) -> Iterator[CompileCache]:
    cache = given or CompileCache(folder.parent / "cache")
    try:
        yield cache
    finally:
        if given is None:
            cache.close()


@contextmanager
def _guardian(given: Zygote | None) -> Iterator[Zygote]:
    guardian = given or Zygote(())
    try:
        yield guardian
    finally:
        if given is None:
            guardian.close()


class _Trial:
    """A trial on its way: its process, its files, its deadline."""

    def __init__(
        self, spec: TrialSpec, folder: Path, guardian: Zygote, environ: Mapping[str, str]
    ) -> None:
        self._spec, self._folder, self._guardian = spec, folder, guardian
        self._mark = mark_of(spec.study, spec.number)
        self._environ = {**environ, MARK: self._mark}
        self._log = folder / "log.txt"

    def outcome(
        self, watch: Watch | None, *, cwd: Path, fresh: bool, warm: bool
    ) -> tuple[Status, Measurement | None, Failure | None]:
        """Run it; how it ended. Raises ZygoteDied when it could not be started."""
        kept = environment.kept(self._environ, self._spec)
        (self._folder / "environ.json").write_text(json.dumps(kept, indent=1))
        pid = self._guardian.fork(self._folder, self._environ, cwd=cwd, fresh=fresh)
        tree = Tree(root=pid, keeper=self._guardian.pid, mark=f"{MARK}={self._mark}")
        _live[pid] = tree
        try:
            if watch is not None:
                watch.start(tree)
            end = self._wait(pid, tree)
        finally:
            stuck = tree.end()
            _live.pop(pid, None)
        status, measurement, failed = self._judged(end)
        if watch is not None:
            measurement = watch.finish(measurement)
        _shorten(self._log)
        if measurement is not None:
            measurement = _noted(measurement, end, stuck, warm)
        return status, measurement, failed and self._without_secrets(failed)

    def _wait(self, pid: int, tree: Tree) -> _End:
        limit = time.monotonic() + self._spec.timeout_seconds
        count_at = time.monotonic() + 1
        answered = False
        while (left := limit - time.monotonic()) > 0:
            try:
                code = self._guardian.wait(pid, min(left, _POLL_SECONDS))
            except ZygoteDied as error:
                return _End(code=None, why=f"the process that trials are forked from {error}")
            if code is not None:
                return _End(code=code)
            if not answered and (self._folder / answer.NAME).exists():
                answered, limit = True, min(limit, time.monotonic() + _FAREWELL_SECONDS)
            if (why := self._excess(tree, count_at)) is not None:
                return _End(code=None, why=why)
            if time.monotonic() > count_at:
                count_at = time.monotonic() + 1
        return _End(code=None, why="ended by us" if answered else "deadline")

    def _excess(self, tree: Tree, count_at: float) -> str | None:
        """Why a trial that takes too much of the host must be ended, or None."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > _LARGEST_LOG_BYTES:
                return f"its log grew beyond {_LARGEST_LOG_BYTES >> 20} MiB"
        crowded = time.monotonic() > count_at and len(os.listdir("/proc")) > _MOST_PROCESSES
        if crowded and (count := len(tree.members())) > _MOST_PROCESSES:
            return f"it had started {count} processes"
        return None

    def _judged(self, end: _End) -> tuple[Status, Measurement | None, Failure | None]:
        """What the trial itself says goes first, then its exit, then its log."""
        try:
            said = answer.read(self._folder)
        except BadRecord as error:
            hint = "metrics are plain numbers or null"
            return _crashed(failure.plain(str(error)), hint, failure.tail(self._log))
        if said is not None:
            if said.failure is None:
                return said.status, said.measurement, None
            status, failed = failure.of_answer(said.status, said.failure, self._log, self._environ)
            return status, said.measurement, failed
        if end.why == "deadline":
            status, failed = failure.timed_out(self._spec.timeout_seconds, self._log)
            return status, None, failed
        if end.code is None:
            return _crashed(end.why, detail=failure.tail(self._log))
        if end.code == 0:
            return _crashed("ended without a measurement", detail=failure.tail(self._log))
        status, failed = failure.of_exit(end.code, self._log, self._environ)
        return status, None, failed

    def _without_secrets(self, failed: Failure) -> Failure:
        """Programs print what they were given; records and reports are shown to others."""
        reason, hint, detail = (
            environment.hide(text, self._environ)
            for text in (failed.reason, failed.hint, failed.detail)
        )
        return dataclasses.replace(failed, reason=reason, hint=hint, detail=detail)


def _noted(measurement: Measurement, end: _End, stuck: set[int], warm: bool) -> Measurement:
    """With what only an onlooker saw: an unclean end, and the state of the compile cache."""
    notices = list(measurement.notices)
    if end.code is None:
        notices.append(f"had answered, but did not end by itself ({end.why})")
    elif end.code < 0:
        notices.append(f"had answered, then was ended by signal {-end.code}")
    if stuck:
        notices.append(f"processes {sorted(stuck)} of the trial could not be ended")
    telemetry = {**measurement.telemetry, "compile_cache": "warm" if warm else "cold"}
    return dataclasses.replace(measurement, notices=tuple(notices), telemetry=telemetry)


def _shorten(log: Path) -> None:
    """Keep the end of a huge log: that is where programs say why they failed."""
    with contextlib.suppress(OSError):
        size = log.stat().st_size
        if size <= _KEPT_LOG_BYTES:
            return
        with log.open("rb") as file:
            file.seek(size - _KEPT_LOG_BYTES)
            end = file.read()
        log.write_bytes(f"[the first {size - len(end)} bytes were dropped]\n".encode() + end)


def kill_everything() -> None:
    """End every running trial of this process at once; for a user who will not wait."""
    for tree in list(_live.values()):
        tree.end(gently=False)
