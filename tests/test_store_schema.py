"""Databases of other makers and other times."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text

from autotune import migrations
from autotune.store import Store, StoreError, salvage, schema
from autotune.store.place import place_of
from autotune.store.tables import Base
from autotune.trial import to_json
from tests.studies import a_record, a_spec, a_study

_CHECKOUT = Path(__file__).parents[1]


def engine_of(url: str) -> Engine:
    """A plain engine, not one of the store's."""
    place = place_of(url)
    if place.path is not None:
        place.path.parent.mkdir(exist_ok=True)
    return create_engine(place.url)


def config_for(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def made_by_version_1(url: str) -> None:
    """A store as the first version left it: made by its migration, filled by hand."""
    study = a_study()
    engine = engine_of(url)
    with engine.begin() as connection:
        command.upgrade(config_for(connection), "0001")
        connection.execute(
            text(
                "INSERT INTO autotune_study VALUES (1, 's1', 'finished', 2, :at, :spec, :outcome)"
            ),
            {
                "at": study.spec.created_at,
                "spec": json.dumps(to_json(study.spec)),
                "outcome": json.dumps(to_json(study.outcome)),
            },
        )
        for record in study.records:
            connection.execute(
                text("INSERT INTO autotune_trial VALUES (1, :number, :status, :stage, :document)"),
                {
                    "number": record.spec.number,
                    "status": str(record.status),
                    "stage": record.spec.stage,
                    "document": json.dumps(to_json(record)),
                },
            )
    engine.dispose()


def test_an_older_store_is_upgraded_with_its_trials_equal(store_url: str) -> None:
    made_by_version_1(store_url)
    store = Store(store_url)
    assert store.load("s1") == a_study()
    assert store.claim("s1", "me") == 2
    assert len(store.notices) == 1
    assert f"upgraded from schema 1 to {int(schema.NEWEST)}" in store.notices[0]
    store.close()
    again = Store(store_url)
    assert again.notices == ()
    again.close()


def test_what_was_stored_before_has_a_checksum_after(store_url: str) -> None:
    made_by_version_1(store_url)
    Store(store_url).close()
    engine = engine_of(store_url)
    with engine.begin() as connection:
        for table in ("autotune_document", "autotune_trial"):
            found = connection.execute(text(f"SELECT count(*), count(checksum) FROM {table}")).one()
            assert found[0] == found[1] > 0
        connection.execute(text("UPDATE autotune_trial SET checksum = checksum + 1"))
    engine.dispose()
    store = Store(store_url)
    with pytest.raises(StoreError, match="does not match its checksum"):
        store.load("s1")
    store.close()


def test_the_old_file_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    made_by_version_1(str(path))
    store = Store(str(path))
    backup = tmp_path / "autotune.db.schema-1"
    assert str(backup) in store.notices[0]
    store.close()
    with contextlib.closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("SELECT version_num FROM autotune_version").fetchone() == (
            "0001",
        )
        assert connection.execute("SELECT count(*) FROM autotune_trial").fetchone() == (2,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, backup.name]


def test_drivers_that_start_at_once_upgrade_an_old_store_once(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    made_by_version_1(str(path))
    code = "import sys; from autotune.store import Store; print(len(Store(sys.argv[1]).notices))"
    words = [sys.executable, "-W", "error", "-c", code, str(path)]
    pipe = subprocess.PIPE
    drivers = [subprocess.Popen(words, cwd=_CHECKOUT, stdout=pipe, stderr=pipe) for _ in range(4)]
    ends = [driver.communicate(timeout=100) for driver in drivers]
    assert sorted(ends) == [(b"0\n", b"")] * 3 + [(b"1\n", b"")]
    assert [p.name for p in tmp_path.glob("*.schema*")] == ["autotune.db.schema-1"]


def test_an_old_store_can_be_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    made_by_version_1(str(path))
    copy, count = salvage(path)
    assert count == 2
    store = Store(str(copy))
    assert store.load("s1") == a_study()
    store.close()


def test_a_store_from_the_future_is_refused_with_both_versions(store_url: str) -> None:
    store = Store(store_url)
    store.create_study(a_spec())
    store.close()
    engine = engine_of(store_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE autotune_version SET version_num = '0012'"))
    engine.dispose()
    path = place_of(store_url).path
    before = path.read_bytes() if path else b""
    with pytest.raises(StoreError) as raised:
        Store(store_url)
    newest = int(schema.NEWEST)
    assert f"has schema 12, and this autotune knows schemas 1 to {newest}" in str(raised.value)
    assert "update autotune" in str(raised.value)
    assert before == (path.read_bytes() if path else b"")


def test_a_database_of_optuna_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    optuna.create_study(storage=storage, study_name="theirs")
    storage.remove_session()
    storage.engine.dispose()
    before = path.read_bytes()
    with pytest.raises(StoreError) as raised:
        Store(str(path))
    assert str(raised.value).startswith(f"{path} is not a store of autotune: it was made by Optuna")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["optuna.db"]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (["experiments", "runs", "metrics"], "was made by MLflow"),
        (["a", "b"], r"holds other tables \(a, b\)"),
    ],
)
def test_another_makers_database_is_refused(store_url: str, tables: list[str], words: str) -> None:
    engine = engine_of(store_url)
    with engine.begin() as connection:
        for table in tables:
            connection.execute(text(f"CREATE TABLE {table} (x INTEGER)"))
    engine.dispose()
    with pytest.raises(StoreError, match=words):
        Store(store_url)


def test_the_spec_stays_where_it_is_while_the_study_goes_on(tmp_path: Path) -> None:
    """So that a file cut short keeps it."""
    path = tmp_path / "autotune.db"
    store = Store(str(path))
    study = a_study()
    store.create_study(study.spec)
    for number in range(300):  # the next number grows from no byte to two
        store.add(a_record(number))
    store.finish("s1", study.outcome, "finished")
    store.close()
    data = path.read_bytes()
    assert data.index(b'"model_name":"tiny"') < data.index(b'"number":0')
    path.write_bytes(data[: len(data) // 2])
    copy, count = salvage(path)
    assert count > 100
    saved = Store(str(copy))
    assert saved.load("s1").spec == study.spec
    saved.close()


def test_the_newest_schema_is_the_last_migration() -> None:
    assert ScriptDirectory.from_config(config_for(None)).get_current_head() == schema.NEWEST


@pytest.mark.parametrize("old", [False, True], ids=["new", "upgraded"])
def test_a_store_has_the_tables_that_its_code_uses(store_url: str, old: bool) -> None:
    if old:
        made_by_version_1(store_url)
    Store(store_url).close()
    engine = engine_of(store_url)
    options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_store_in_a_database_with_autotunes_own_tables_and_others_is_fine(store_url: str) -> None:
    """A team may keep more than one thing in one database, as long as ours was there first."""
    Store(store_url).close()
    engine = engine_of(store_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (x INTEGER)"))
    engine.dispose()
    store = Store(store_url)
    store.create_study(a_spec())
    assert store.add(a_record(0))
    store.close()
