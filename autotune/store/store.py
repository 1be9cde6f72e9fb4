"""The truth about every study: what was asked, each record, who works on what."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from autotune.store import claims
from autotune.store.claims import Claim
from autotune.store.database import Database
from autotune.store.documents import record_of, text_of, trial_row
from autotune.store.fault import StoreError
from autotune.store.owner import HEARTBEAT_SECONDS
from autotune.store.schema import lock_store
from autotune.store.tables import ClaimTable, StudyTable, TrialTable
from autotune.study import Outcome, Study, StudySpec
from autotune.study_file import outcome_from_json, study_spec_from_json
from autotune.trial import TrialRecord

# Two drivers of one study may differ in these: when, where and with how many slots each started.
_NOT_COMPARED = ("created_at", "fingerprint", "workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A line in the list of studies."""

    name: str
    state: str
    trials: int
    created_at: str


class Store:
    """Studies in a database. Safe for many processes and threads at once.

    ``url`` is a file or a SQLAlchemy URL. Every method raises StoreError, one line each.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._beaten: dict[str, float] = {}  # study -> when its claims were last renewed

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about how the store was opened."""
        return self._database.notices

    @property
    def journal(self) -> str:
        """The journal of a SQLite store, ``wal`` or ``delete``; empty for a server."""
        return self._database.journal

    def close(self) -> None:
        """Give every connection back."""
        self._database.close()

    def create_study(self, spec: StudySpec) -> bool:
        """Add a study, or join one of that name which asks for the same; whether it is new."""
        document = text_of(spec)
        with self._database.write() as connection:
            lock_store(connection)
            found = _find(connection, spec.name)
            if found is not None:
                _check_same(spec.name, found.document, document)
                return False
            connection.execute(
                insert(StudyTable).values(
                    name=spec.name,
                    state="running",
                    next_number=0,
                    created_at=spec.created_at or _now(),
                    document=document,
                )
            )
        return True

    def studies(self) -> tuple[StudyRow, ...]:
        """Every study, oldest first."""
        counts = (
            select(TrialTable.study_id, func.count().label("n"))
            .group_by(TrialTable.study_id)
            .subquery()
        )
        with self._database.read() as connection:
            rows = connection.execute(
                select(
                    StudyTable.name,
                    StudyTable.state,
                    StudyTable.created_at,
                    func.coalesce(counts.c.n, 0).label("n"),
                )
                .outerjoin(counts, counts.c.study_id == StudyTable.id)
                .order_by(StudyTable.created_at, StudyTable.id)
            ).all()
        return tuple(
            StudyRow(name=r.name, state=r.state, trials=r.n, created_at=r.created_at) for r in rows
        )

    def load(self, study: str) -> Study:
        """The whole study as it stands."""
        with self._database.read() as connection:
            row = self._study(connection, study)
            documents = connection.execute(
                select(TrialTable.document)
                .where(TrialTable.study_id == row.id)
                .order_by(TrialTable.number)
            ).scalars()
            return Study(
                spec=study_spec_from_json(json.loads(row.document)),
                records=tuple(record_of(text) for text in documents),
                outcome=outcome_from_json(json.loads(row.outcome)) if row.outcome else None,
                state=row.state,
            )

    def records_since(self, study: str, seen: Collection[int]) -> tuple[TrialRecord, ...]:
        """Records whose numbers are not in ``seen``; cheap when there is none."""
        with self._database.read() as connection:
            study_id = self._study(connection, study).id
            mine = TrialTable.study_id == study_id
            count = connection.execute(select(func.count()).where(mine)).scalar_one()
            if count == len(seen):
                return ()
            numbers = connection.execute(select(TrialTable.number).where(mine)).scalars().all()
            return tuple(
                record_of(_document(connection, study_id, number))
                for number in sorted(set(numbers) - set(seen))
            )

    def claim(self, study: str, owner: str, *, below: int | None = None) -> int | None:
        """The next trial number for this process, below a bound; None when none is left.

        A number that was abandoned is handed out before a new one.
        """
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            return claims.take(connection, study_id, owner, below)

    def add(self, record: TrialRecord) -> bool:
        """Keep a record in place of its claim.

        False when the number has a record already: its first owner, thought dead, was quicker.
        """
        row, number = trial_row(0, record), record.spec.number  # before the lock is taken
        with self._database.write() as connection:
            study_id = self._locked(connection, record.spec.study)
            mine = (TrialTable.study_id == study_id, TrialTable.number == number)
            if connection.execute(select(TrialTable.number).where(*mine)).first() is not None:
                return False
            connection.execute(insert(TrialTable).values({**row, "study_id": study_id}))
            claims.drop(connection, study_id, number)
            connection.execute(
                update(StudyTable)
                .where(StudyTable.id == study_id, StudyTable.next_number <= number)
                .values(next_number=number + 1)
            )
        return True

    def claims(self, study: str) -> tuple[Claim, ...]:
        """Trials that are handed out and not finished."""
        with self._database.read() as connection:
            return claims.listed(connection, self._study(connection, study).id)

    def abandon_dead(self, study: str) -> list[int]:
        """Requeue the trials whose drivers died; their numbers."""
        with self._database.write() as connection:
            return claims.mark_dead(connection, self._locked(connection, study))

    def heartbeat(self, study: str) -> None:
        """Tell drivers on other hosts that this one lives; cheap enough to call in every turn."""
        if time.monotonic() - self._beaten.get(study, -HEARTBEAT_SECONDS) < HEARTBEAT_SECONDS:
            return
        self._beaten[study] = time.monotonic()
        with self._database.write() as connection:
            claims.renew(connection, self._study(connection, study).id)

    def finish(self, study: str, outcome: Outcome | None, state: str) -> None:
        """Keep what was concluded; what this process still holds will be run again."""
        document = text_of(outcome) if outcome is not None else None
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            claims.release(connection, study_id)
            connection.execute(
                update(StudyTable)
                .where(StudyTable.id == study_id)
                .values(outcome=document, state=state)
            )

    def state(self, study: str) -> str:
        """running, queued, finished, interrupted or failed."""
        with self._database.read() as connection:
            return str(self._study(connection, study).state)

    def set_state(self, study: str, state: str) -> None:
        """Change the state alone."""
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            connection.execute(
                update(StudyTable).where(StudyTable.id == study_id).values(state=state)
            )

    def delete(self, study: str) -> None:
        """Forget a study with all its records."""
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            for table in (TrialTable, ClaimTable):
                connection.execute(delete(table).where(table.study_id == study_id))
            connection.execute(delete(StudyTable).where(StudyTable.id == study_id))

    def _study(self, connection: Connection, study: str) -> Row[int, str, str, str | None]:
        row = _find(connection, study)
        if row is None:
            raise StoreError(f"no study {study} in {self._database.place.name}")
        return row

    def _locked(self, connection: Connection, study: str) -> int:
        """The study's id, with its row locked, so that claims are handed out one by one."""
        query = select(StudyTable.id).where(StudyTable.name == study).with_for_update()
        found = connection.execute(query).scalar_one_or_none()
        if found is None:
            raise StoreError(f"no study {study} in {self._database.place.name}")
        return int(found)


def _find(connection: Connection, study: str) -> Row[int, str, str, str | None] | None:
    return connection.execute(
        select(StudyTable.id, StudyTable.state, StudyTable.document, StudyTable.outcome).where(
            StudyTable.name == study
        )
    ).first()


def _document(connection: Connection, study_id: int, number: int) -> str:
    return connection.execute(
        select(TrialTable.document).where(
            TrialTable.study_id == study_id, TrialTable.number == number
        )
    ).scalar_one()


def _check_same(name: str, stored: str, asked: str) -> None:
    """Joining a study must not change what it means."""
    before, now = (_comparable(json.loads(text)) for text in (stored, asked))
    if different := sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k)):
        raise StoreError(
            f"a study {name} exists and asks for something else ({', '.join(different[:4])}); "
            f"choose another --study, or go on with `autotune resume {name}`"
        )


def _comparable(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in _NOT_COMPARED}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
