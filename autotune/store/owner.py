"""Who holds a claim, and whether that process still lives."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autotune.driver_file import start_ticks

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0  # a dozen missed heartbeats: longer than any pause of a living driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, told apart from a later one of the same number by when it started."""

    host: str
    machine: str
    pid: int
    started: int


def this_process() -> Process:
    """The calling process."""
    pid = os.getpid()  # not cached: a fork is another process
    return Process(
        host=socket.gethostname(), machine=_machine(), pid=pid, started=start_ticks(pid) or 0
    )


@cache
def _machine() -> str:
    """Where process numbers mean the same: one boot of one host, in one process namespace.

    The host's name will not do: containers on two hosts may share it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"host:{socket.gethostname()}"


def is_dead(process: Process, seen_at: float) -> bool:
    """Whether a claim's owner is gone: by its number and start time on this machine, else by
    a heartbeat that stopped.
    """
    if process.machine == _machine():
        if process.started:
            return start_ticks(process.pid) != process.started
        return not _exists(process.pid)  # no /proc here: the number has to do
    return time.time() - seen_at > STALE_SECONDS


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
