"""A small process that outlives a driver that is killed, and ends what that left behind.

``python -m autotune.guard NAME=VALUE`` waits until stdin closes, then ends every process that was
started with that variable.
"""

from __future__ import annotations

import contextlib
import os
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
    """Wait, then end them."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    Tree(root=-1, mark=sys.argv[1]).end(gently=False)


if __name__ == "__main__":
    main()
