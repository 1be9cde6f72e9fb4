"""What can still be read from a damaged store. The original is copied, never opened."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.metric import METRICS
from autotune.store.documents import outcome_of, record_of, spec_of
from autotune.store.fault import DamagedError
from autotune.study import Budget, Objective, Outcome, StudySpec
from autotune.trial import TrialRecord

_SMALLEST_ROW_BYTES = 512  # records and studies are larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """A study as far as it can be read."""

    spec: StudySpec
    outcome: Outcome | None
    records: tuple[TrialRecord, ...]
    state: str


def readable(path: Path) -> int:
    """How many trials could be saved."""
    try:
        return sum(len(study.records) for study in remains(path))
    except (sqlite3.Error, OSError):
        return 0


@contextmanager
def _copied(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a throw-away copy, cut files padded to the length that they claim."""
    with tempfile.TemporaryDirectory(prefix="autotune-salvage-") as folder:
        copy = Path(folder) / "copy.db"
        for suffix in ("", "-wal", "-journal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                _copy_file(source, copy.with_name(copy.name + suffix))
        _pad(copy)
        connection = sqlite3.connect(copy, isolation_level=None)
        with contextlib.closing(connection):
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            connection.execute("PRAGMA writable_schema=ON")  # reads on where it would give up
            connection.execute("PRAGMA schema_version")  # raises for what is no database
            yield connection


def _copy_file(source: Path, target: Path) -> None:
    """In a child, since reading a database here could drop locks that we hold: see read_only."""
    code = "import shutil, sys; shutil.copyfile(*sys.argv[1:])"
    command = [sys.executable, "-I", "-c", code, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip().rpartition("\n")[2])


def _pad(copy: Path) -> None:
    with copy.open("r+b") as file:
        head = file.read(100)
        page = int.from_bytes(head[16:18], "big") or 4096
        pages = int.from_bytes(head[28:32], "big")
        wanted = (65536 if page == 1 else page) * pages
        if copy.stat().st_size < wanted <= 64 * copy.stat().st_size:
            file.truncate(wanted)


def remains(path: Path) -> list[Rescued]:
    """Read everything that can be reached, of any schema so far."""
    with _copied(path) as connection:
        records = _records(connection)
        rows = {int(row["id"]): row for row in _rows(connection, "autotune_study")}
        specs = _papers(rows.values(), "id", "document", spec_of)
        outcomes = _papers(rows.values(), "id", "outcome", lambda text, _: outcome_of(text, None))
        documents = list(_rows(connection, "autotune_document"))
        for kind, found, rebuild in (("spec", specs, spec_of), ("outcome", outcomes, outcome_of)):
            these = (row for row in documents if row["kind"] == kind)
            found |= _papers(these, "study_id", "document", rebuild)
    return [
        Rescued(
            spec=specs.get(study_id) or _guessed(records[study_id]),
            outcome=outcomes.get(study_id),
            records=tuple(records.get(study_id, ())),
            state=str(rows.get(study_id, {}).get("state", "interrupted")),
        )
        for study_id in sorted(specs.keys() | records.keys())
    ]


def _records(connection: sqlite3.Connection) -> dict[int, list[TrialRecord]]:
    found: dict[int, list[TrialRecord]] = {}
    for row in _rows(connection, "autotune_trial"):
        with contextlib.suppress(DamagedError):
            record = record_of(row["document"], row.get("checksum"))
            found.setdefault(int(row["study_id"]), []).append(record)
    return found


def _papers(
    rows: Iterable[dict[str, Any]],
    key: str,
    column: str,
    rebuild: Callable[[str, int | None], Any],
) -> dict[int, Any]:
    """What can be rebuilt of a column of documents, by study."""
    found = {}
    for row in rows:
        with contextlib.suppress(DamagedError):
            if row.get(column):
                found[int(row[key])] = rebuild(row[column], row.get("checksum"))
    return found


def _guessed(records: list[TrialRecord]) -> StudySpec:
    """The spec of a study that has lost its own, from what its trials say of it.

    The measurements are what was paid for. What was asked for is lost: the objective is a guess,
    and without its search space the study can be shown but not resumed.
    """
    trial = records[0].spec
    measured = {m for r in records if r.measurement is not None for m in r.measurement.metrics}
    metric = next((name for name in METRICS if name in measured), "tokens_per_second")
    return StudySpec(
        name=trial.study,
        model_name=str(trial.model.get("name", "unknown")),
        model=trial.model,
        task=trial.task,
        runner=trial.runner,
        workload=trial.workload,
        objectives=(Objective(metric=metric, direction=METRICS[metric].direction),),
        limits=(),
        budget=Budget(seconds=None, trials=None),
        strategy="auto",
        seed=trial.seed,
        workers=1,
        gpus_per_trial=trial.gpus,
        price_usd_per_gpu_hour=None,
        space={},
        options=trial.options,
        environ=trial.environ,
        created_at=min(r.started_at for r in records),
    )


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Rows one by one by their internal number, skipping those that cannot be reached."""
    for rowid in range(1, _highest(connection, table) + 1):
        with contextlib.suppress(sqlite3.Error):
            cursor = connection.execute(f"SELECT * FROM {table} WHERE rowid = ?", (rowid,))
            row = cursor.fetchone()
            if row is not None:
                yield dict(zip((c[0] for c in cursor.description), row, strict=True))


def _highest(connection: sqlite3.Connection, table: str) -> int:
    """The last row number, or what fits into the file when even that is lost or absurd."""
    bound = 0
    with contextlib.suppress(sqlite3.Error):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        bound = int(pages * page_bytes // _SMALLEST_ROW_BYTES)
    with contextlib.suppress(sqlite3.Error):
        last = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
        return min(int(last or 0), bound)
    return bound
