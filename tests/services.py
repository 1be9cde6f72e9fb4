"""A real service in a process of its own, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).parents[1]


@dataclass
class Service:
    """Where it listens, where it keeps studies, and its process."""

    address: str
    out: Path
    process: subprocess.Popen[str]


def start(out: Path, *arguments: str) -> Service:
    """A service on a free port; ready when this returns."""
    command = [sys.executable, "-m", "autotune", "serve", "--port", "0", "--out", str(out)]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=out.parent,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(_CHECKOUT),
            "AUTOTUNE_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert process.stdout is not None
    return Service(process.stdout.readline().split()[-1], out, process)


@contextmanager
def running(out: Path, *arguments: str) -> Iterator[Service]:
    """The same, ended at the end."""
    service = start(out, *arguments)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.process.send_signal(signal.SIGINT)
        service.process.communicate(timeout=90)


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait, or fail."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.2)
