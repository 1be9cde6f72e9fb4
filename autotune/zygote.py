"""The near end of a zygote: a process with torch imported, from which trials are forked."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.rooms import child_environ

_START_SECONDS = 120.0
_FORK_SECONDS = 10.0
_CLEAN_UP_SECONDS = 8.0  # a little more than it gives processes that are hard to end


class ZygoteDied(RuntimeError):
    """The process is gone; start another."""


class Zygote:
    """Forks trials on request, one at a time; what they leave behind becomes its child."""

    def __init__(self, imports: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trials.zygote", *imports],
            env=dict(child_environ({}) if environ is None else environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is the driver's to handle
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._pending = b""
        self._exits: dict[int, int] = {}
        self._pid: int | None = None  # of the process that forks; ours is its keeper

    @property
    def pid(self) -> int:
        """Of the process below which all trials are; once it is ready."""
        assert self._pid is not None
        return self._pid

    def has_died(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def wait_until_ready(self) -> None:
        """Until its imports are done; raises ZygoteDied."""
        if self._pid is not None:
            return
        if (message := self._next(_START_SECONDS)) is None:
            raise ZygoteDied(f"not ready within {_START_SECONDS:g} s")
        self._pid = message["ready"]

    def fork(
        self, folder: Path, environ: Mapping[str, str], *, cwd: Path, fresh: bool = False
    ) -> int:
        """Start a trial, ``fresh`` with an interpreter of its own; its process id.

        Raises ZygoteDied.
        """
        self.wait_until_ready()
        self._exits.clear()
        request = {
            "folder": str(folder),
            "environ": dict(environ),
            "cwd": str(cwd),
            "fresh": fresh,
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ZygoteDied(str(error)) from error
        while (message := self._next(_FORK_SECONDS)) is not None:
            if "exit" not in message:  # else an orphan of an earlier trial
                return message["pid"]
        raise ZygoteDied("no answer to a fork")

    def wait(self, pid: int, seconds: float) -> int | None:
        """The exit code of a trial (negative: its signal), or None when it still runs."""
        limit = time.monotonic() + seconds
        while pid not in self._exits:
            message = self._next(max(0.0, limit - time.monotonic()))
            if message is None:
                return None
            if "exit" in message:
                self._exits[message["pid"]] = message["exit"]
        return self._exits.pop(pid)

    def close(self) -> None:
        """End it and everything below it."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._pid is None:  # no trial is below it yet, and imports keep it busy
            self._process.kill()
        try:
            self._process.wait(_CLEAN_UP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _next(self, seconds: float) -> dict[str, int] | None:
        """The next message, or None after the time-out."""
        limit = time.monotonic() + seconds
        while b"\n" not in self._pending:
            with selectors.DefaultSelector() as selector:
                selector.register(self._output, selectors.EVENT_READ)
                if not selector.select(max(0.0, limit - time.monotonic())):
                    return None
            data = os.read(self._output, 1 << 16)
            if not data:
                raise ZygoteDied(self._last_words())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, int] = json.loads(line)
        return message

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1)
            return f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        return "closed its output"
