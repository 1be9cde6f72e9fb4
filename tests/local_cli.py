"""The real command line with slots in threads: ``python -m tests.local_cli tune ...``.

For tests of what a whole command does about a fault that has nothing to do with Ray, whose start
takes ten seconds on a busy machine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from autotune import conduct
from autotune.local_cluster import threads_for_plan
from tests.test_cli import environ


def words_of(*words: str) -> list[str]:
    """The command line that runs this file."""
    return [sys.executable, "-m", "tests.local_cli", *words]


def run(
    folder: Path, *words: str, before: Callable[[], None] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """A command in a folder, to its end. ``before`` runs in the child, such as to set a limit."""
    return subprocess.run(
        words_of(*words),
        cwd=folder,
        env=environ(OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        preexec_fn=before,
    )


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The same in the background; it writes to FOLDER/output."""
    with (folder / "output").open("a") as output:
        return subprocess.Popen(
            words_of(*words),
            cwd=folder,
            env=environ(OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def main() -> None:
    """`autotune`, without Ray."""
    from autotune.cli import cli

    conduct.conduct = functools.partial(conduct.conduct, slots=threads_for_plan)
    cli(prog_name="autotune", args=sys.argv[1:])


if __name__ == "__main__":
    os.environ.setdefault("TERM", "dumb")
    main()
