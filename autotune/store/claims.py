"""Claims: which driver works on which trial number, and numbers whose driver died.

Every function runs in the caller's transaction, with the study's row locked by it.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from autotune.store.owner import Process, is_dead, this_process
from autotune.store.tables import ClaimTable, StudyTable

_RUNNING, _ABANDONED = "running", "abandoned"

# Built once, see store.py.
_OURS = ClaimTable.study_id == bindparam("id_")
_ABANDONED_NUMBERS = (
    select(ClaimTable.number)
    .where(_OURS, ClaimTable.state == _ABANDONED)
    .order_by(ClaimTable.number)
)
_DROP = delete(ClaimTable).where(_OURS, ClaimTable.number == bindparam("number_"))
_INSERT = insert(ClaimTable)
_NEXT = select(StudyTable.next_number).where(StudyTable.id == bindparam("id_"))
_SET_NEXT = (
    update(StudyTable)
    .where(StudyTable.id == bindparam("id_"))
    .values(next_number=bindparam("number_"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A trial number that is handed out and not finished."""

    number: int
    state: str  # running | abandoned
    owner: str
    host: str
    pid: int
    claimed_at: str  # ISO 8601, UTC
    seen_at: str  # last sign of life

    @property
    def text(self) -> str:
        """For people."""
        if self.state == _RUNNING:
            return f"running since {self.claimed_at} on {self.host} (process {self.pid})"
        return (
            f"abandoned: process {self.pid} on {self.host} was last seen at {self.seen_at}; "
            "`autotune resume` runs it again"
        )


def take(connection: Connection, study_id: int, owner: str, below: int | None) -> int | None:
    """Hand out an abandoned number, or the next new one; None when there is neither."""
    number = _abandoned(connection, study_id, below)
    if number is None:
        number = _new(connection, study_id, below)
    if number is None and mark_dead(connection, study_id):
        number = _abandoned(connection, study_id, below)
    if number is not None:
        connection.execute(_INSERT, _fresh(study_id, number, owner))
    return number


def _abandoned(connection: Connection, study_id: int, below: int | None) -> int | None:
    numbers = connection.execute(_ABANDONED_NUMBERS, {"id_": study_id}).scalars().all()
    number = next((n for n in numbers if below is None or n < below), None)
    if number is not None:
        drop(connection, study_id, number)
    return number


def _new(connection: Connection, study_id: int, below: int | None) -> int | None:
    number = connection.execute(_NEXT, {"id_": study_id}).scalar_one()
    if below is not None and number >= below:
        return None
    connection.execute(_SET_NEXT, {"id_": study_id, "number_": number + 1})
    return number


def _fresh(study_id: int, number: int, owner: str) -> dict[str, object]:
    me, now = this_process(), time.time()
    return {
        "study_id": study_id,
        "number": number,
        "state": _RUNNING,
        "owner": owner[:200],
        "host": me.host,
        "machine": me.machine,
        "pid": me.pid,
        "process_start": me.started,
        "claimed_at": now,
        "seen_at": now,
    }


def drop(connection: Connection, study_id: int, number: int) -> None:
    """The number is no longer claimed."""
    connection.execute(_DROP, {"id_": study_id, "number_": number})


def mark_dead(connection: Connection, study_id: int) -> list[int]:
    """Mark the claims of dead drivers as abandoned; the numbers that are new among them."""
    rows = _rows(connection, study_id)
    return _mark(connection, study_id, [r.number for r in rows if _is_newly_dead(r)])


def release(connection: Connection, study_id: int) -> None:
    """This process gives up whatever it still holds."""
    me = this_process()
    mine = [r.number for r in _rows(connection, study_id) if _process(r) == me]
    _mark(connection, study_id, mine)


def _mark(connection: Connection, study_id: int, numbers: list[int]) -> list[int]:
    if numbers:
        connection.execute(
            update(ClaimTable)
            .where(ClaimTable.study_id == study_id, ClaimTable.number.in_(numbers))
            .values(state=_ABANDONED)
        )
    return numbers


def renew(connection: Connection, study_id: int) -> None:
    """This process lives: say so in every claim that it holds."""
    me = this_process()
    connection.execute(
        update(ClaimTable)
        .where(
            ClaimTable.study_id == study_id,
            ClaimTable.machine == me.machine,
            ClaimTable.pid == me.pid,
            ClaimTable.process_start == me.started,
        )
        .values(seen_at=time.time())
    )


def listed(connection: Connection, study_id: int) -> tuple[Claim, ...]:
    """Every claim; one whose driver is dead counts as abandoned before anybody marked it."""
    return tuple(
        Claim(
            number=row.number,
            state=_ABANDONED if _is_newly_dead(row) else row.state,
            owner=row.owner,
            host=row.host,
            pid=row.pid,
            claimed_at=_iso(row.claimed_at),
            seen_at=_iso(row.seen_at),
        )
        for row in _rows(connection, study_id)
    )


def _rows(connection: Connection, study_id: int) -> Sequence[Row[tuple[ClaimTable]]]:
    table = ClaimTable.__table__
    found = connection.execute(
        select(table).where(table.c.study_id == study_id).order_by(table.c.number)
    )
    return found.all()


def _process(row: Row[tuple[ClaimTable]]) -> Process:
    return Process(host=row.host, machine=row.machine, pid=row.pid, started=row.process_start)


def _is_newly_dead(row: Row[tuple[ClaimTable]]) -> bool:
    return bool(row.state == _RUNNING and is_dead(_process(row), row.seen_at))


def _iso(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="seconds")
