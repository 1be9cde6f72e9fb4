"""Taking turns on a host: one process at a time does what many at once would all fail at."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def turn(what: str) -> Iterator[None]:
    """Wait until no other process of this user is at it. A holder that dies gives its turn back.

    Where no lock can be had (no temporary folder, a file system without locks) nobody waits.
    """
    path = Path(tempfile.gettempdir()) / f"autotune-{what}-{os.getuid()}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
