"""A small process that outlives a driver that is killed, and ends what that left behind.

``python -m autotune.guard NAME=VALUE`` waits until stdin closes, then ends every process that was
started with that variable.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from autotune.process_tree import Tree, start_ticks
from autotune.rooms import child_environ

_VARIABLE = "AUTOTUNE_DRIVER"
_SECONDS = 10.0


class Guard:
    """Ends the marked processes of this one when it is closed, or when this one is gone."""

    def __init__(self) -> None:
        self._value = f"{os.getpid()}:{start_ticks(os.getpid())}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune.guard", f"{_VARIABLE}={self._value}"],
            env=child_environ({}),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @contextmanager
    def marking(self, more: Mapping[str, str]) -> Iterator[None]:
        """Processes started meanwhile are marked, and get some more variables."""
        wanted = {_VARIABLE: self._value, **more}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def look(self) -> None:
        """Remember who is there now: some rename themselves over their own environment, and are
        known by their parent alone, which may end first."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def close(self) -> None:
        """End the marked processes now."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Remember them whenever told to; end them when stdin closes."""
    tree = Tree(root=-1, mark=sys.argv[1])
    known: dict[int, int | None] = {}
    while os.read(sys.stdin.fileno(), 1024):
        known |= {pid: start_ticks(pid) for pid in tree.members()}
    tree.end(gently=False)
    for pid, started in known.items():
        if started is not None and start_ticks(pid) == started:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
