"""Finding and ending every process of a trial, also those that left its group or its session."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "AUTOTUNE_TRIAL"  # in the environment of everything that a trial starts
_TERM_SECONDS = 1.0
_KILL_SECONDS = 5.0


def members(root: int, mark: str) -> set[int]:
    """Live processes of a trial: its session, its descendants, and bearers of its mark."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z":
                continue
            parents[pid] = int(fields[1])
            if root in (pid, int(fields[2]), int(fields[3])) or wanted in (
                entry / "environ"
            ).read_bytes().split(b"\0"):  # itself, group, session
                found.add(pid)
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if parent in found and p not in found}
        grown = bool(more)
        found |= more
    return found - {os.getpid()}


def end(root: int, mark: str, *, gently: bool = True) -> set[int]:
    """End them all, SIGTERM first; the processes that even SIGKILL did not remove."""
    if gently:
        _send(members(root, mark), signal.SIGTERM)
        _until_gone(root, mark, _TERM_SECONDS)
    limit = time.monotonic() + _KILL_SECONDS
    while (alive := members(root, mark)) and time.monotonic() < limit:
        # Again and again: a process may fork between the look and the kill.
        _send(alive, signal.SIGKILL)
        time.sleep(0.02)
    return alive


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _until_gone(root: int, mark: str, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while members(root, mark) and time.monotonic() < limit:
        time.sleep(0.05)
