"""The truth about every study: what was asked, each record, who works on what."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from autotune.store import claims
from autotune.store.claims import Claim
from autotune.store.database import Database
from autotune.store.documents import (
    document_row,
    outcome_of,
    record_of,
    spec_of,
    text_of,
    trial_row,
)
from autotune.store.fault import DamagedError, NoStudyError, StoreError
from autotune.store.owner import HEARTBEAT_SECONDS
from autotune.store.schema import lock_store
from autotune.store.tables import ClaimTable, DocumentTable, StudyTable, TrialTable
from autotune.study import Outcome, Study, StudySpec
from autotune.trial import TrialRecord

# Two drivers of one study may differ in these: when, where and with how many slots each started.
_NOT_COMPARED = ("created_at", "fingerprint", "workers")

# Built once: making a statement costs more than running it. ``study_`` since an UPDATE reserves
# the names of its columns.
_NAMED = StudyTable.name == bindparam("study_")
_ID = select(StudyTable.id).where(_NAMED)
_LOCKED_ID = _ID.with_for_update()
_STUDY = select(StudyTable).where(_NAMED)
_OF_STUDY = (DocumentTable.study_id == bindparam("id_"), DocumentTable.kind == bindparam("kind_"))
_PAPER = select(DocumentTable.document, DocumentTable.checksum).where(*_OF_STUDY)
_OURS = TrialTable.study_id == bindparam("id_")
_THIS = (_OURS, TrialTable.number == bindparam("number_"))
_COUNT = select(func.count()).select_from(TrialTable).where(_OURS)
_NUMBERS = select(TrialTable.number).where(_OURS)
_NUMBER = select(TrialTable.number).where(*_THIS)
_DOCUMENT = select(TrialTable.document, TrialTable.checksum).where(*_THIS)
_DOCUMENTS = (
    select(TrialTable.document, TrialTable.checksum).where(_OURS).order_by(TrialTable.number)
)
_INSERT = insert(TrialTable)
_PASS_NUMBER = (
    update(StudyTable)
    .where(StudyTable.id == bindparam("id_"), StudyTable.next_number <= bindparam("number_"))
    .values(next_number=bindparam("number_") + 1)
)
_SET_STATE = (
    update(StudyTable).where(StudyTable.id == bindparam("id_")).values(state=bindparam("state_"))
)
_COUNTS = select(TrialTable.study_id, func.count().label("n")).group_by(TrialTable.study_id)


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
            found = connection.execute(_ID, {"study_": spec.name}).scalar_one_or_none()
            if found is not None:
                stored, _ = _paper(connection, found, "spec")
                _check_same(spec.name, stored, document)
                return False
            connection.execute(
                insert(StudyTable).values(
                    name=spec.name,
                    state="running",
                    next_number=0,
                    created_at=spec.created_at or _now(),
                )
            )
            study_id = self._id(connection, spec.name)
            connection.execute(insert(DocumentTable), document_row(study_id, "spec", document))
        return True

    def studies(self) -> tuple[StudyRow, ...]:
        """Every study, oldest first."""
        counts = _COUNTS.subquery()
        query = (
            select(StudyTable.name, StudyTable.state, StudyTable.created_at, counts.c.n)
            .outerjoin(counts, counts.c.study_id == StudyTable.id)
            .order_by(StudyTable.created_at, StudyTable.id)
        )
        with self._database.read() as connection:
            return tuple(
                StudyRow(name=name, state=state, trials=n or 0, created_at=created_at)
                for name, state, created_at, n in connection.execute(query)
            )

    def load(self, study: str) -> Study:
        """The whole study as it stands."""
        with self._database.read() as connection:
            row = connection.execute(_STUDY, {"study_": study}).first()
            if row is None:
                raise self._no_study(study)
            outcome = connection.execute(_PAPER, {"id_": row.id, "kind_": "outcome"}).first()
            # Closed even when a record is damaged: an open cursor would keep the file open.
            with closing(connection.execute(_DOCUMENTS, {"id_": row.id})) as documents:
                return Study(
                    spec=spec_of(*_paper(connection, row.id, "spec")),
                    records=tuple(record_of(text, checksum) for text, checksum in documents),
                    outcome=outcome_of(*outcome) if outcome is not None else None,
                    state=row.state,
                )

    def records_since(self, study: str, seen: Collection[int]) -> tuple[TrialRecord, ...]:
        """Records whose numbers are not in ``seen``; cheap when there is none."""
        with self._database.read() as connection:
            mine: dict[str, Any] = {"id_": self._id(connection, study)}
            if connection.execute(_COUNT, mine).scalar_one() == len(seen):
                return ()
            new = set(connection.execute(_NUMBERS, mine).scalars()) - set(seen)
            rows = [
                connection.execute(_DOCUMENT, {**mine, "number_": n}).one() for n in sorted(new)
            ]
            return tuple(record_of(text, checksum) for text, checksum in rows)

    def claim(self, study: str, owner: str, *, below: int | None = None) -> int | None:
        """The next trial number for this process, below a bound; None when none is left.

        A number that was abandoned is handed out before a new one.
        """
        with self._database.write() as connection:
            return claims.take(connection, self._locked(connection, study), owner, below)

    def add(self, record: TrialRecord) -> bool:
        """Keep a record in place of its claim.

        False when the number has a record already: its first owner, thought dead, was quicker.
        """
        row = trial_row(0, record)  # the slow part, before anything is locked
        with self._database.write() as connection:
            study_id = self._locked(connection, record.spec.study)
            this = {"id_": study_id, "number_": record.spec.number}
            if connection.execute(_NUMBER, this).first() is not None:
                return False
            connection.execute(_INSERT, {**row, "study_id": study_id})
            connection.execute(_PASS_NUMBER, this)
            claims.drop(connection, study_id, record.spec.number)
        return True

    def claims(self, study: str) -> tuple[Claim, ...]:
        """Trials that are handed out and not finished."""
        with self._database.read() as connection:
            return claims.listed(connection, self._id(connection, study))

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
            claims.renew(connection, self._id(connection, study))

    def finish(self, study: str, outcome: Outcome | None, state: str) -> None:
        """Keep what was concluded; what this process still holds will be run again."""
        document = text_of(outcome) if outcome is not None else None
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            claims.release(connection, study_id)
            old = (DocumentTable.study_id == study_id, DocumentTable.kind == "outcome")
            connection.execute(delete(DocumentTable).where(*old))
            if document is not None:
                row = document_row(study_id, "outcome", document)
                connection.execute(insert(DocumentTable), row)
            connection.execute(_SET_STATE, {"id_": study_id, "state_": state})

    def state(self, study: str) -> str:
        """running, queued, finished, interrupted or failed."""
        query = select(StudyTable.state).where(_NAMED)
        with self._database.read() as connection:
            found = connection.execute(query, {"study_": study}).scalar_one_or_none()
            if found is None:
                raise self._no_study(study)
            return found

    def set_state(self, study: str, state: str) -> None:
        """Change the state alone."""
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            connection.execute(_SET_STATE, {"id_": study_id, "state_": state})

    def delete(self, study: str) -> None:
        """Forget a study with all its records."""
        with self._database.write() as connection:
            study_id = self._locked(connection, study)
            for table in (TrialTable, ClaimTable, DocumentTable):
                connection.execute(delete(table).where(table.study_id == study_id))
            connection.execute(delete(StudyTable).where(StudyTable.id == study_id))

    def _id(self, connection: Connection, study: str) -> int:
        found = connection.execute(_ID, {"study_": study}).scalar_one_or_none()
        if found is None:
            raise self._no_study(study)
        return found

    def _locked(self, connection: Connection, study: str) -> int:
        """The study's id, with its row locked, so that claims are handed out one by one."""
        found = connection.execute(_LOCKED_ID, {"study_": study}).scalar_one_or_none()
        if found is None:
            raise self._no_study(study)
        return found

    def _no_study(self, study: str) -> NoStudyError:
        return NoStudyError(f"no study {study} in {self._database.place.name}")


def _paper(connection: Connection, study_id: int, kind: str) -> tuple[str, int]:
    """A document that every study has, with its checksum."""
    found = connection.execute(_PAPER, {"id_": study_id, "kind_": kind}).first()
    if found is None:
        raise DamagedError(f"the {kind} of a study is missing")
    return found.document, found.checksum


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
