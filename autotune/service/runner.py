"""The durable queue's other half: starts queued studies in processes of their own.

A study's driver is a separate session, so the service can die without hurting it; its process id
and start time lie in a file in the study's folder, so a new service finds it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from autotune.driver_file import Driver, read_driver
from autotune.store import Store, StoreError

_POLL_SECONDS = 0.5


class Runner:
    """Starts the oldest queued study when no other study runs on this host's devices."""

    def __init__(self, *, store: str, out: Path) -> None:
        self.store_url = store
        self.out = out
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="study-runner", daemon=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Begin to look at the queue."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; running studies go on."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def driver(self, study: str) -> Driver | None:
        """The living driver of a study, whoever started it."""
        return read_driver(self.out / study)

    def interrupt(self, study: str) -> bool:
        """Ask a running study to stop; False when it has no driver."""
        driver = self.driver(study)
        if driver is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver.pid, signal.SIGINT)
        return True

    def _loop(self) -> None:
        store = Store(self.store_url)
        try:
            while not self._stopping.wait(_POLL_SECONDS):
                with contextlib.suppress(StoreError):
                    self._step(store)
        finally:
            store.close()

    def _step(self, store: Store) -> None:
        for child in self._children.values():
            child.poll()  # reaps it, so that its driver counts as dead
        rows = store.studies()
        busy = False
        for row in rows:
            # A study that was stopped holds the devices until its driver is gone.
            if self.driver(row.name) is not None or self._is_starting(row.name):
                busy = True
            elif row.state == "running":
                # Its driver died (a reboot, kill -9): finish what was started.
                store.set_state(row.name, "queued")
        waiting = sorted((r for r in rows if r.state == "queued"), key=lambda r: r.created_at)
        if waiting and not busy:
            self._launch(store, waiting[0].name)

    def _is_starting(self, study: str) -> bool:
        child = self._children.get(study)
        return child is not None and child.returncode is None

    def _launch(self, store: Store, study: str) -> None:
        folder = self.out / study
        folder.mkdir(parents=True, exist_ok=True)
        store.set_state(study, "running")
        command = [sys.executable, "-m", "autotune", "resume", study]
        command += ["--store", self.store_url, "--out", str(self.out)]
        with (folder / "driver.log").open("ab") as log:
            self._children[study] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def last_words(folder: Path, lines: int = 20) -> str:
    """The end of a driver's log, for a study that failed to start."""
    path = folder / "driver.log"
    if not path.is_file():
        return ""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 20_000))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
