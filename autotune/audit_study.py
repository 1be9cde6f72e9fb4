"""A knob audit as a study: resumable by its name, kept in the store, written out as audit.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import audit, conduct, plan
from autotune.atomic_file import write_atomically
from autotune.request import Request, check_study_name, parse_seconds
from autotune.session import Event
from autotune.store import Store
from autotune.trial import Configuration

_NO_BOUND_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found, and the file that holds it."""

    study: str
    findings: tuple[audit.Finding, ...]
    skipped: dict[str, str]
    path: Path

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"study": self.study, **audit.as_json(self.findings, self.skipped)}

    def text(self) -> str:
        """For people."""
        return "\n".join([*audit.lines(self.findings, self.skipped), f"wrote {self.path}"])


def run(
    model: str,
    *,
    task: str,
    only: Sequence[str],
    out: Path,
    repeats: int,
    budget: str | None,
    say: Callable[[str], None],
) -> Audit:
    """Audit every knob that can act here; called again, it goes on where it stopped.

    Raises SpaceError or StudyError for bad input.
    """
    name = check_study_name(f"audit-{Path(model).name}-{task}")
    seconds = parse_seconds(budget, "--budget") if budget else _NO_BOUND_SECONDS
    request = Request(model=model, task=task, study=name, budget=f"{seconds}s", only=tuple(only))
    made = plan.make(request, ["autotune", *sys.argv[1:]])
    source = audit.AuditSource(made.space, _start(made), repeats)
    out.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{out.absolute() / 'autotune.db'}")
    try:
        if name in [row.name for row in store.studies()]:
            made = plan.again(store.load(name).spec)
            source = audit.AuditSource(made.space, _start(made), repeats)
            source.replay(store.load(name).records)
        else:
            conduct.register(made, store)
        study = conduct.conduct(made, store, out, _teller(say), lambda: False, source=source)
    finally:
        store.close()
    findings = tuple(audit.findings(source.cases, study.records))
    path = out / name / "audit.json"
    result = Audit(study=name, findings=findings, skipped=source.skipped, path=path)
    write_atomically(path, json.dumps(result.as_json(), indent=1, allow_nan=False))
    return result


def _start(made: plan.Plan) -> Configuration:
    """Knobs are judged beside common practice, where there is such a preset."""
    return conduct.baselines(made).get(conduct.COMMON, made.space.default())


def _teller(say: Callable[[str], None]) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        record = event.record
        if record is not None:
            reason = record.failure.reason[:100] if record.failure else ""
            head = f"trial {record.spec.number:>4} {record.spec.label:<44}"
            say(f"{head} {record.status} {record.wall_seconds:.1f}s {reason}")
        elif event.kind == "notice":
            say(event.text)

    return tell
