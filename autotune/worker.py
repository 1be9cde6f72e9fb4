"""What runs in the process of a Ray actor that holds a slot. Ray finds the class by the name of
this module, which therefore imports next to nothing: a worker starts fast."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.trial import TrialRecord, TrialSpec


class Worker:
    """What runs in a slot's process; imports stay in the methods, so that it starts fast."""

    def __init__(
        self, runner: str, environ: dict[str, str], cwd: Path, forwarded: dict[str, str | None]
    ) -> None:
        for name, value in forwarded.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        from autotune.slot import Slot

        self._slot = Slot(runner, environ, cwd)

    def wait_until_ready(self) -> None:
        """Return when a trial could be forked."""
        self._slot.wait_until_ready()

    def run(self, spec: TrialSpec, folder: Path) -> TrialRecord:
        """One trial."""
        return self._slot.run(spec, folder)

    def close(self) -> None:
        """End the zygotes."""
        self._slot.close()
