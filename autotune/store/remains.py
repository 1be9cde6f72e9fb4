"""What can still be read from a damaged store. The original is copied, never opened."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.store.documents import outcome_of, record_of, spec_of
from autotune.store.fault import DamagedError
from autotune.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a damaged store still gives: rows of studies, and records by study id."""

    studies: dict[int, dict[str, Any]]
    records: dict[int, list[TrialRecord]]

    @property
    def count(self) -> int:
        """Trials that can be saved: those whose study can be read as well."""
        return sum(len(found) for key, found in self.records.items() if key in self.studies)


def readable(path: Path) -> int:
    """How many trials could be saved."""
    try:
        return remains(path).count
    except (sqlite3.Error, OSError):
        return 0


@contextmanager
def _copied(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a throw-away copy, cut files padded to the length that they claim."""
    with tempfile.TemporaryDirectory(prefix="autotune-salvage-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        journal = path.with_name(f"{path.name}-wal")
        if journal.exists():
            shutil.copyfile(journal, copy.with_name("copy.db-wal"))
        _pad(copy)
        connection = sqlite3.connect(copy, isolation_level=None)
        with contextlib.closing(connection):
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            connection.execute("PRAGMA writable_schema=ON")  # reads on where it would give up
            yield connection


def _pad(copy: Path) -> None:
    with copy.open("r+b") as file:
        head = file.read(100)
        page = int.from_bytes(head[16:18], "big") or 4096
        pages = int.from_bytes(head[28:32], "big")
        wanted = (65536 if page == 1 else page) * pages
        if copy.stat().st_size < wanted <= 64 * copy.stat().st_size:
            file.truncate(wanted)


def remains(path: Path) -> Remains:
    """Read everything that can be reached."""
    with _copied(path) as connection:
        studies = {
            int(row["id"]): row for row in _rows(connection, "autotune_study") if _is_whole(row)
        }
        records: dict[int, list[TrialRecord]] = {}
        for row in _rows(connection, "autotune_trial"):
            with contextlib.suppress(DamagedError):
                record = record_of(row["document"], row.get("checksum"))
                records.setdefault(int(row["study_id"]), []).append(record)
    return Remains(studies=studies, records=records)


def _is_whole(row: dict[str, Any]) -> bool:
    """Whether a study can be read; an outcome that cannot is dropped from it."""
    try:
        spec_of(row["document"], row.get("checksum"))
    except DamagedError:
        return False
    try:
        outcome_of(row["outcome"])
    except DamagedError:
        row["outcome"] = None
    return True


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Rows one by one by their internal number, skipping those that cannot be reached."""
    for rowid in range(1, _highest(connection, table) + 1):
        with contextlib.suppress(sqlite3.Error):
            cursor = connection.execute(f"SELECT * FROM {table} WHERE rowid = ?", (rowid,))
            row = cursor.fetchone()
            if row is not None:
                yield dict(zip((c[0] for c in cursor.description), row, strict=True))


def _highest(connection: sqlite3.Connection, table: str) -> int:
    """The last row number, or a bound when even that is lost."""
    with contextlib.suppress(sqlite3.Error):
        return int(connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0)
    return 100_000
