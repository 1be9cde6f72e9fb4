"""An opened database: journal chosen, schema up to date, transactions to read and to write."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import NoSuchModuleError

from autotune.store import schema, sqlite
from autotune.store.fault import DamagedError, StoreError, in_words
from autotune.store.place import holds_something, place_of
from autotune.store.remains import readable


class Database:
    """Connections to one store; every fault leaves as a StoreError of one line."""

    def __init__(self, url: str) -> None:
        self.place = place_of(url)
        self.journal = ""  # of SQLite: wal or delete
        self.notices: tuple[str, ...] = ()
        with self._faults():
            self._engine = self._open()
            self._writer = self._engine.execution_options(autotune_write=True)

    def _open(self) -> Engine:
        engine, notice = self._sqlite() if self.place.path is not None else (self._server(), "")
        try:
            upgraded = schema.bring_up_to_date(engine, self.place)
        except BaseException:
            engine.dispose()
            raise
        self.notices = tuple(text for text in (notice, upgraded) if text)
        return engine

    def _sqlite(self) -> tuple[Engine, str]:
        """Nothing is written to a file before it has been found sound and ours."""
        assert self.place.path is not None
        self.place.path.parent.mkdir(parents=True, exist_ok=True)
        if holds_something(self.place.path):
            sqlite.check_is_sound(self.place)
            schema.check_is_ours(self.place)
        self.journal, notice = sqlite.choose_journal(self.place)
        return sqlite.make_engine(self.place, self.journal), notice

    def _server(self) -> Engine:
        try:
            return create_engine(self.place.url, pool_pre_ping=True)
        except NoSuchModuleError:
            raise StoreError(f"unknown kind of database in --store {self.place.name}") from None
        except ModuleNotFoundError as error:
            raise StoreError(
                f"--store {self.place.name} needs the package {error.name}: "
                "pip install 'autotune-llm[postgres]'"
            ) from None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the store throughout."""
        with self._faults(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that happens as a whole or not at all."""
        with self._faults(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            with in_words(self.place.name):
                yield
        except DamagedError as error:
            raise DamagedError(
                f"{self.place.name} is damaged ({error}); {self._way_out()}"
            ) from error

    def _way_out(self) -> str:
        path = self.place.path
        if path is None:
            return "restore it from a backup"
        if (count := readable(path)) == 0:
            return "it was left as it is; none of its trials can be read: give another --store"
        return (
            f"it was left as it is; {count} of its trials can be read: "
            f"`autotune salvage {shlex.quote(str(path))}` copies them"
        )

    def close(self) -> None:
        """Give every connection back."""
        self._engine.dispose()
