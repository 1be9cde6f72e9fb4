"""What the service does with a study, whether a program or a page asked for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import conduct, deliver, export, plan, space_file
from autotune.request import Request
from autotune.service.runner import Runner, last_words
from autotune.service.schema import StudyRequest
from autotune.space import SpaceError, nearest
from autotune.store import Store, StoreError
from autotune.study import Study, StudyError
from autotune.summary import summary
from autotune.trial import TrialRecord

_ENDING_SECONDS = 30.0  # that a driver may take after its study has ended


class NotThere(LookupError):
    """No study of that name."""


class Refused(ValueError):
    """The request makes no sense now; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The store and the runner, and the few things one can ask of them."""

    store: Store
    runner: Runner

    def rows(self) -> list[Any]:
        """Every study, newest first."""
        return sorted(self.store.studies(), key=lambda row: row.created_at, reverse=True)

    def load(self, name: str) -> Study:
        """The study; NotThere with the nearest name otherwise."""
        known = [row.name for row in self.store.studies()]
        if name not in known:
            raise NotThere(f"no study {name}{nearest(name, known)}")
        study = self.store.load(name)
        assert isinstance(study, Study)
        return study

    def create(self, asked: StudyRequest) -> tuple[str, tuple[str, ...]]:
        """Check and queue a study; its name and notices. Raises Refused."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in asked.model_dump().items()
        }
        if asked.runner != "toy" and asked.model not in space_file.model_names():
            known = nearest(asked.model, space_file.model_names())
            raise Refused(f"unknown model {asked.model}{known}")
        try:
            made = plan.make(Request(**fields), ["autotune", "serve"])
            if made.spec.name in [row.name for row in self.store.studies()]:
                raise Refused(f"a study {made.spec.name} exists; choose another name")
            conduct.register(made, self.store)
            self.store.set_state(made.spec.name, "queued")
        except (StudyError, SpaceError, StoreError) as error:
            raise Refused(str(error)) from None
        return made.spec.name, made.notices

    def stop(self, name: str) -> str:
        """Stop a running study or take a queued one off the queue; its state."""
        state = self.load(name).state
        if state == "queued":
            self.store.set_state(name, "interrupted")
            return "interrupted"
        if not self.runner.interrupt(name):
            raise Refused(f"{name} is {state}: nothing to stop")
        return "stopping"

    def resume(self, name: str) -> str:
        """Put a study back on the queue; its state."""
        study = self.load(name)
        if study.state in ("running", "queued", "finished"):
            raise Refused(f"{name} is {study.state}")
        # Its last driver may still be writing the report: the queue waits for that one to end.
        self.store.set_state(name, "queued")
        return "queued"

    def delete(self, name: str) -> None:
        """Forget a study that is not running."""
        ended = self.load(name).state in ("interrupted", "failed", "finished")
        limit = time.monotonic() + (_ENDING_SECONDS if ended else 0.0)
        while self.runner.driver(name) is not None:  # it may be writing its report
            if time.monotonic() >= limit:
                now = "still ending: try again in a moment" if ended else "running: stop it first"
                raise Refused(f"{name} is {now}")
            time.sleep(0.2)
        self.store.delete(name)

    def report(self, name: str) -> Path:
        """The report as the study stands; rebuilt while it grows."""
        study = self.load(name)
        path = self.folder(name) / "report.html"
        if study.state != "finished" or not path.is_file():
            try:
                deliver.report(study, path)
            except deliver.ReportFailed as error:
                raise Refused(str(error)) from None
        return path

    def comparison(self, first: str, second: str) -> str:
        """The page of two studies."""
        studies = [self.load(first), self.load(second)]
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "compare.html"
            try:
                deliver.compare_page(studies, page)
            except deliver.ReportFailed as error:
                raise Refused(str(error)) from None
            return page.read_text(encoding="utf-8")

    def export(self, name: str, form: str, trial: int | None) -> str:
        """The configuration in a format; Refused when there is none."""
        try:
            return export.text(self.load(name), form, trial=trial)
        except export.ExportError as error:
            raise Refused(str(error)) from None

    def page(self, name: str) -> dict[str, Any]:
        """Where a study stands, in plain data."""
        found = summary(self.load(name))
        if found["state"] == "failed":
            found["last_words"] = last_words(self.folder(name))
        return found

    def folder(self, name: str) -> Path:
        """runs/STUDY; the name was checked when the study was made."""
        return self.runner.out / name

    def news(self, name: str, seen: set[int]) -> Iterator[TrialRecord]:
        """Records that a watcher has not seen; adds them to ``seen``."""
        for record in self.store.records_since(name, seen):
            seen.add(record.spec.number)
            yield record
