"""``driver-PID.json``: which process drives a study, so that others can find or interrupt it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PATTERN = "driver-*.json"  # one each, since several drivers may share a study


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A process and its start time in clock ticks, which tells it from a later one of that id."""

    pid: int
    started: int


def start_ticks(pid: int) -> int | None:
    """Start time of a live process from /proc, or None when there is none (or only a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def read_driver(folder: Path) -> Driver | None:
    """A living driver of the study in that folder; files of dead ones are removed."""
    for path in sorted(folder.glob(_PATTERN)):
        try:
            data = json.loads(path.read_text())
            driver = Driver(pid=int(data["pid"]), started=int(data["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if start_ticks(driver.pid) == driver.started:
            return driver
        path.unlink(missing_ok=True)
    return None


@contextmanager
def driving(folder: Path) -> Iterator[None]:
    """Say that this process drives the study, for as long as it does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"driver-{os.getpid()}.json"
    path.write_text(json.dumps({"pid": os.getpid(), "started": start_ticks(os.getpid()) or 0}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def leading(folder: Path) -> Iterator[bool]:
    """Whether this driver alone runs the final stage of the study on this host.

    A lock of the kernel's, so that it goes with its holder however that dies.
    """
    with (folder / "final.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
