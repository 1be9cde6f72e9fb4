"""SQLite for many drivers at once: write-ahead logging where it works, waiting where it must."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from autotune.store.fault import BUSY_SECONDS
from autotune.store.place import Place, network_file_system

_CHECKED_BYTES = 256 * 2**20  # larger files are not read whole just to open them


def make_engine(place: Place, journal: str) -> Engine:
    """An engine over a SQLite file; ``journal`` is what ``choose_journal`` said."""

    def opened() -> sqlite3.Connection:
        made = connect(place, "rwc")
        made.execute("PRAGMA foreign_keys=ON")
        # In WAL a killed process loses nothing at NORMAL; a power cut may lose the last records.
        made.execute(f"PRAGMA synchronous={'NORMAL' if journal == 'wal' else 'FULL'}")
        return made

    engine = create_engine("sqlite://", creator=opened, poolclass=QueuePool)
    event.listen(engine, "begin", _begin)
    return engine


def connect(place: Place, mode: str, timeout: float | None = None) -> sqlite3.Connection:
    """A bare connection; SQLAlchemy begins the transactions (see ``_begin``), not the module."""
    return sqlite3.connect(
        place.uri(mode),
        uri=True,
        timeout=BUSY_SECONDS if timeout is None else timeout,
        isolation_level=None,
        check_same_thread=False,
    )


def _begin(connection: Connection) -> None:
    """A writer takes the lock at once: one that has read first could not wait for another."""
    writes = connection.get_execution_options().get("autotune_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def choose_journal(place: Place) -> tuple[str, str]:
    """Choose and set the journal of a file, made where there is none: (mode, notice or "")."""
    assert place.path is not None
    if kind := network_file_system(place.path):
        return _set_journal(place, "delete"), _notice(place, f"it lies on {kind}")
    try:
        if (mode := _set_journal(place, "wal")) == "wal":
            return mode, ""
        why = "the file system has no shared memory"
    except sqlite3.OperationalError as error:
        if "unable to open" in str(error) or "readonly" in str(error):
            raise
        why = str(error)
    return _set_journal(place, "delete"), _notice(place, why)


def _notice(place: Place, why: str) -> str:
    return (
        f"{place.name} uses a rollback journal, since write-ahead logging does not work there "
        f"({why}); a --store on a local disk is faster"
    )


def _set_journal(place: Place, mode: str) -> str:
    """Ask for a mode until nobody is in the way: SQLite does not always wait by itself here."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        with contextlib.closing(connect(place, "rwc", timeout=1.0)) as connection:
            try:
                return str(connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0])
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
        time.sleep(0.02)


@contextmanager
def read_only(place: Place) -> Iterator[sqlite3.Connection]:
    """A connection that leaves the file as it is, and nothing beside it that was not there.

    Never read a database through ``open``: on POSIX, closing it would drop the locks of every
    connection that this process has to the file, and another driver could write in between.
    """
    with contextlib.closing(connect(place, read_mode(place))) as connection:
        connection.execute("PRAGMA query_only=ON")
        yield connection


def read_mode(place: Place) -> str:
    """A writer tidies up its helper files when it closes, a reader may not. But where they hold
    something, tidying would change the file itself.
    """
    assert place.path is not None
    for suffix in ("-wal", "-journal"):
        helper = place.path.with_name(place.path.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            if helper.stat().st_size > 0:
                return "ro"
    return "rw"


def check_is_sound(place: Place) -> None:
    """Raise before anything is written when the file's structure is broken."""
    assert place.path is not None
    if place.path.stat().st_size > _CHECKED_BYTES:
        return
    for patience in (0.05, 0.2, None):
        try:
            _quick_check(place)
            return
        except sqlite3.DatabaseError:
            if patience is None:
                raise
            time.sleep(patience)  # someone may have opened and changed it just now


def _quick_check(place: Place) -> None:
    with read_only(place) as connection:
        try:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "readonly" in str(error):
                return  # a killed writer's journal has to be rolled back first: no damage
            raise
    if found != "ok":
        raise sqlite3.DatabaseError(f"malformed: {' '.join(found.split())}")
