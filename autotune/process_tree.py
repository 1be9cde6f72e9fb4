"""Finding and ending every process of a trial, also those that left its group or its session."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "AUTOTUNE_TRIAL"  # in the environment of everything that a trial starts
_TERM_SECONDS = 1.0
_KILL_SECONDS = 5.0
_MOST_ASKED = 100  # more processes than that are not asked to end: they may be breeding


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What tells a trial's processes from others.

    Those in the session of ``root``, those below ``keeper`` (which forks trials and, as their
    subreaper, inherits orphans), those started with the variable ``mark`` (NAME=VALUE), and all
    that descend from one of these.
    """

    root: int
    keeper: int | None = None
    mark: str = ""

    def members(self) -> set[int]:
        """The live ones."""
        wanted = self.mark.encode() if self.mark else None
        parents: dict[int, int] = {}
        found: set[int] = set()
        for pid, parent, group, session in processes():
            parents[pid] = parent
            if self.root in (group, session) or (wanted and wanted in _variables(pid)):
                found.add(pid)
        roots = found | ({self.keeper} if self.keeper is not None else set())
        return _with_descendants(roots, parents) - {os.getpid(), self.keeper}

    def end(self, *, gently: bool = True) -> set[int]:
        """End them all; the processes that even SIGKILL did not remove."""
        alive = self.members()
        if gently and alive and len(alive) <= _MOST_ASKED:
            _send(alive, signal.SIGTERM)
            alive = self._left_after(_TERM_SECONDS)
        limit = time.monotonic() + _KILL_SECONDS
        while alive and time.monotonic() < limit:
            # Stopped first: what does not run cannot fork between the look and the kill.
            self._freeze(limit)
            _send(self.members(), signal.SIGKILL)
            time.sleep(0.01)
            alive = self.members()
        return alive

    def _freeze(self, limit: float) -> None:
        stopped: set[int] = set()
        while (new := self.members() - stopped) and time.monotonic() < limit:
            _send(new, signal.SIGSTOP)
            stopped |= new

    def _left_after(self, seconds: float) -> set[int]:
        limit = time.monotonic() + seconds
        while (alive := self.members()) and time.monotonic() < limit:
            time.sleep(0.02)
        return alive


def end_below(pid: int) -> set[int]:
    """End every descendant of a process at once, but not the process itself."""
    return Tree(root=-1, keeper=pid).end(gently=False)


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks, which tells it from a later one of that id."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    return None


def end_orphans() -> set[int]:
    """End processes of trials whose launcher is dead; the ids of those ended.

    Their marks end in LAUNCHER:START; see ``mark_of``.
    """
    marks: dict[str, int] = {}
    for pid, *_ in processes():
        for variable in _variables(pid):
            if variable.startswith(f"{MARK}=".encode()):
                marks[variable.decode(errors="replace")] = pid
    ended: set[int] = set()
    for mark in marks:
        *_, launcher, started = mark.rsplit(":", 2)
        if launcher.isdigit() and str(start_ticks(int(launcher))) != started:
            tree = Tree(root=-1, mark=mark)
            ended |= tree.members()
            tree.end(gently=False)
    return ended


def mark_of(study: str, number: int) -> str:
    """The mark of a trial that this process launches."""
    return f"{study}:{number}:{os.getpid()}:{start_ticks(os.getpid())}"


def processes() -> Iterable[tuple[int, int, int, int]]:
    """Id, parent, group and session of every process that is not a zombie."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] != b"Z":
                yield int(name), int(fields[1]), int(fields[2]), int(fields[3])


def _variables(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty for somebody else's."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _with_descendants(roots: set[int], parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
