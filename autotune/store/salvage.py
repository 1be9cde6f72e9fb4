"""A new store from what can be read of a damaged one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import insert

from autotune.store.database import Database
from autotune.store.documents import trial_row
from autotune.store.fault import StoreError, in_words
from autotune.store.place import holds_something
from autotune.store.remains import Remains, remains
from autotune.store.schema import unused
from autotune.store.tables import StudyTable, TrialTable


def salvage(path: Path) -> tuple[Path, int]:
    """Copy every readable trial into a new store beside the old one: (copy, number of trials).

    The original is never touched. Raises StoreError when nothing can be saved.
    """
    with in_words(str(path)):
        if not holds_something(path):
            raise StoreError(f"{path} is empty: there is nothing to save")
        found = remains(path)
    if found.count == 0:
        raise StoreError(f"no trial of {path} can be read; what is left are the logs of its trials")
    copy = unused(path.absolute().with_name(f"{path.stem}.salvaged{path.suffix}"))
    _write(found, copy)
    return copy, found.count


def _write(found: Remains, copy: Path) -> None:
    database = Database(str(copy))
    try:
        with database.write() as connection:
            for study_id, row in found.studies.items():
                records = found.records.get(study_id, [])
                highest = max((r.spec.number for r in records), default=-1)
                known = {c.name for c in StudyTable.__table__.columns}
                values = {name: value for name, value in row.items() if name in known}
                values["id"] = study_id
                values["next_number"] = max(int(row["next_number"] or 0), highest + 1)
                connection.execute(insert(StudyTable).values(values))
                for record in records:
                    connection.execute(insert(TrialTable).values(trial_row(study_id, record)))
    finally:
        database.close()
