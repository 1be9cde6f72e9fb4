"""Which schema a database has, and bringing an older one up to date."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    NullPool,
    String,
    Table,
    create_engine,
    inspect,
    text,
)
from sqlalchemy.exc import OperationalError

from autotune import migrations
from autotune.store.fault import StoreError
from autotune.store.place import Place
from autotune.store.sqlite import connect, read_mode, read_only
from autotune.store.tables import Base

NEWEST = "0003"  # the last migration; a test holds it to what is in migrations/versions
_LOCK_KEY = 0x6175746F74756E65  # any number that only autotune uses
_ALEMBIC = threading.Lock()  # its context is one per process
_MAKERS = {
    "Optuna": {"studies", "trials", "version_info"},
    "MLflow": {"experiments", "runs", "metrics"},
}


def bring_up_to_date(engine: Engine, place: Place) -> str:
    """Make or migrate the tables; a notice when an older store was upgraded, else "".

    Raises StoreError for a database that is someone else's or comes from the future.
    """
    with engine.connect() as connection:
        if _version(connection, place) == NEWEST:
            return ""
    writer = engine.execution_options(autotune_write=True)
    with _ALEMBIC, writer.begin() as connection:
        lock_store(connection)
        before = _version(connection, place)  # another driver may have been quicker
        if before == NEWEST:
            return ""
        if not before:
            _make(connection)
            return ""
        backup = _back_up(place, before) if place.path is not None else None
        _upgrade(connection)
    kept = f"; the old one is kept as {backup}" if backup else ""
    return f"{place.name} was upgraded from schema {int(before)} to {int(NEWEST)}{kept}"


def check_is_ours(place: Place) -> None:
    """StoreError for a file that is someone else's or too new, before anything is written."""
    engine = create_engine(
        "sqlite://", creator=lambda: connect(place, read_mode(place)), poolclass=NullPool
    )
    with engine.connect() as connection:
        try:
            _version(connection, place)
        except OperationalError as error:
            if "readonly" not in str(error):  # see check_is_sound
                raise


def _version(connection: Connection, place: Place) -> str:
    """The schema's version, or "" for an empty database."""
    tables = set(inspect(connection).get_table_names())
    if migrations.VERSION_TABLE not in tables:
        if tables:
            raise StoreError(_foreign(tables, place))
        return ""
    found = connection.execute(text(f"SELECT version_num FROM {migrations.VERSION_TABLE}"))
    version = str(found.scalar_one())
    if not re.fullmatch(r"\d{4}", version) or version > NEWEST:
        raise StoreError(
            f"{place.name} has schema {version.lstrip('0')}, and this autotune knows "
            f"schemas 1 to {int(NEWEST)}: update autotune, or give another --store"
        )
    return version


def _foreign(tables: set[str], place: Place) -> str:
    maker = next((name for name, known in _MAKERS.items() if known <= tables), None)
    made = (
        f"was made by {maker}" if maker else f"holds other tables ({', '.join(sorted(tables)[:4])})"
    )
    return f"{place.name} is not a store of autotune: it {made}; give --store another place"


def lock_store(connection: Connection) -> None:
    """One migration, or one new study, at a time; on SQLite BEGIN IMMEDIATE has seen to that."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


def _back_up(place: Place, version: str) -> Path:
    """A copy of the file as it was, beside it; whole or not there."""
    assert place.path is not None
    target = unused(place.path.with_name(f"{place.path.name}.schema-{int(version)}"))
    half = target.with_name(f".{target.name}.{os.getpid()}")
    with read_only(place) as source, contextlib.closing(sqlite3.connect(half)) as copy:
        source.backup(copy)
    os.replace(half, target)
    return target


def unused(path: Path) -> Path:
    """The path itself, or the first of PATH-2, PATH-3 ... that nobody uses."""
    candidate, n = path, 1
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}-{n}")
    return candidate


def _make(connection: Connection) -> None:
    """A new store needs no history: a test holds the tables to what the migrations make."""
    Base.metadata.create_all(connection)
    version = Column("version_num", String(32), primary_key=True)
    table = Table(migrations.VERSION_TABLE, MetaData(), version)
    table.create(connection)
    connection.execute(table.insert().values(version_num=NEWEST))


def _upgrade(connection: Connection) -> None:
    """Run the missing migrations in the transaction at hand."""
    from alembic import command  # slow to import, and rarely needed
    from alembic.config import Config

    config = Config()
    folder = str(Path(migrations.__file__).parent)
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
