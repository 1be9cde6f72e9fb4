"""Store files that are damaged, foreign, old, from the future, or in a bad place."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.store import Store, StoreError, inspect, salvage, sqlite
from autotune.store.place import place_of
from tests.studies import a_record, a_spec, a_study, applied

_CHECKOUT = Path(__file__).parents[1]
_TRIALS = 50


def filled(path: Path, trials: int = _TRIALS) -> Path:
    """A store with one study, its records as large as real ones."""
    knobs = tuple(applied({f"group.knob_{i}": i * 0.5 for i in range(40)}))
    store = Store(str(path))
    store.create_study(a_spec())
    for number in range(trials):
        store.add(a_record(number, knobs=knobs))
    store.close()
    return path


def refusal(path: Path) -> str:
    """What is said when a store is opened and its study loaded; the file must stay as it is."""
    before, changed_at = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(StoreError) as raised, contextlib.closing(Store(str(path))) as opened:
        opened.load("s1")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, changed_at)
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(path.name)] == [path.name]
    text = str(raised.value)
    assert "\n" not in text
    return text


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "random": lambda path: overwrite(path, random.Random(3).randbytes(4096)),
    "zeros": lambda path: overwrite(path, bytes(4096)),
    "blanks": lambda path: overwrite(path, b" " * 4096),
    "cut": cut,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_store_is_left_alone_and_its_trials_are_offered(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = filled(tmp_path / "autotune.db")
    damage(path)
    text = refusal(path)
    copy, count = salvage(path)
    assert f"{path} is damaged" in text
    assert f"{count} of its trials can be read: `autotune salvage {path}`" in text
    assert _TRIALS / 3 < count < _TRIALS
    saved = Store(str(copy))
    assert len(saved.load("s1").records) == count
    assert saved.load("s1").spec == a_spec()
    assert saved.claim("s1", "me", below=_TRIALS + 1) is not None
    saved.close()


def test_any_page_may_be_lost(tmp_path: Path) -> None:
    """Wherever the damage lies: one line, an untouched original, and most trials saved."""
    whole = filled(tmp_path / "whole.db", trials=12).read_bytes()
    noise, saved = random.Random(5).randbytes(4096), []
    for page in range(1, len(whole) // 4096):
        path = tmp_path / f"{page}.db"
        path.write_bytes(whole[: page * 4096] + noise + whole[(page + 1) * 4096 :])
        assert "is damaged" in refusal(path)
        with contextlib.suppress(StoreError):
            saved.append(salvage(path)[1])
    assert len(saved) >= len(whole) // 4096 - 3  # the root of the trials holds them all
    assert min(saved) >= 9


def test_a_changed_digit_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "autotune.db")
    data = path.read_bytes()
    spot = data.index(b'"tokens_per_second":10.0')
    path.write_bytes(data[:spot] + b'"tokens_per_second":90.0' + data[spot + 24 :])
    assert "does not match its checksum" in refusal(path)
    assert salvage(path)[1] == _TRIALS - 1


def test_a_study_whose_own_row_is_lost_keeps_its_trials(tmp_path: Path) -> None:
    path = filled(tmp_path / "autotune.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE autotune_document SET document = 'x' || document")
        connection.commit()
    assert "damaged" in refusal(path)
    copy, count = salvage(path)
    assert count == _TRIALS
    saved = Store(str(copy))
    study = saved.load("s1")
    saved.close()
    assert study.records[0] == a_record(0, knobs=study.records[0].spec.applied)
    assert study.spec.objectives[0].metric == "tokens_per_second"


def test_trials_in_the_journal_of_a_killed_driver_are_saved_too(tmp_path: Path) -> None:
    path = filled(tmp_path / "autotune.db", trials=5)
    code = f"""
import os
from autotune.store import Store
from tests.studies import a_record
store = Store({str(path)!r})
store.add(a_record(5))
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], cwd=_CHECKOUT, check=False)
    assert path.with_name("autotune.db-wal").stat().st_size > 0
    assert salvage(path)[1] == 6


def test_salvaging_twice_makes_two_copies(tmp_path: Path) -> None:
    path = filled(tmp_path / "autotune.db", trials=2)
    assert [salvage(path)[0].name for _ in range(2)] == [
        "autotune.salvaged.db",
        "autotune.salvaged.db-2",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a text file\n" * 500, "is not a database"), (b"x", "is not a database")],
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "autotune.db"
    path.write_bytes(content)
    assert words in refusal(path)
    with pytest.raises(StoreError, match=words):
        salvage(path)


def test_nothing_can_be_saved_of_a_lost_first_page(tmp_path: Path) -> None:
    path = filled(tmp_path / "autotune.db", trials=2)
    data = path.read_bytes()
    path.write_bytes(data[:16] + bytes(4080) + data[4096:])
    assert "is not a database" in refusal(path)
    with pytest.raises(StoreError, match="is not a database"):
        salvage(path)


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    path.touch()
    with pytest.raises(StoreError, match="empty"):
        salvage(path)
    Store(str(path)).close()
    assert path.stat().st_size > 0


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store(str(tmp_path))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+pysqlite:///x"])
def test_a_store_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="give --store a file"):
        Store(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense://host/name", "unknown kind of database"),
        ("mysql+pymysql://host/name", "needs the package pymysql"),
        ("://", "should be a file or a URL"),
        ("postgresql://autotune:secret@127.0.0.1:1/none", "127.0.0.1"),
    ],
)
def test_a_bad_url_is_refused_in_one_line(url: str, words: str) -> None:
    with pytest.raises(StoreError) as raised:
        Store(url)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere, so be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_read_only_folder_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, there: bool
) -> None:
    folder = tmp_path_factory.mktemp("closed")
    for parent in (folder, *folder.parents):
        if "pytest" in str(parent):
            parent.chmod(0o755)  # pytest's folders are for their owner only
    path = folder / "autotune.db"
    if there:
        filled(path, trials=1)
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with without_privileges(), pytest.raises(StoreError) as raised:
            Store(str(path)).close()
        with without_privileges():
            (check,) = inspect(str(path))
    finally:
        folder.chmod(0o755)
    assert "cannot write to the store" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert check[1] == "fail"


def test_a_store_that_another_process_keeps_locked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "autotune.db", trials=1)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)  # a minute otherwise
    store = Store(str(path))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="has been locked by another process"):
            store.add(a_record(1))
    assert store.add(a_record(1))
    store.close()


def test_without_shared_memory_a_rollback_journal_is_used_with_one_notice(
    tmp_path: Path,
) -> None:
    """unix-dotfile is SQLite's own way to work where a file system has no locks and no mmap."""
    path = tmp_path / "autotune.db"
    url = f"sqlite:///{path}?vfs=unix-dotfile"
    store = Store(url)
    assert store.journal == "delete"
    assert len(store.notices) == 1
    assert "rollback journal" in store.notices[0]
    study = a_study()
    store.create_study(study.spec)
    for record in study.records:
        store.add(record)
    store.finish("s1", study.outcome, study.state)
    assert store.load("s1") == study
    store.close()
    names = [(name, state) for name, state, _, _ in inspect(url)]
    assert names == [("store", "ok"), ("store", "note")]
    assert "journal delete" in inspect(url)[0][2]


@pytest.mark.slow
def test_two_drivers_share_a_store_with_a_rollback_journal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'autotune.db'}?vfs=unix-dotfile"
    words = [sys.executable, "-m", "tests.store_driver", url, "s1", "30", "0"]
    drivers = [
        subprocess.Popen(words, cwd=_CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [d.communicate(timeout=120)[1] for d in drivers] == [b"", b""]
    store = Store(url)
    assert [r.spec.number for r in store.load("s1").records] == list(range(30))
    store.close()


def test_doctor_shows_the_journal_and_makes_no_store(tmp_path: Path) -> None:
    path = tmp_path / "new" / "autotune.db"
    assert inspect(str(path))[0][1:3] == ("ok", f"{path} will be made (journal wal)")
    assert not path.parent.exists()
    filled(path, trials=1)
    assert inspect(str(path))[0][2] == f"{path}: 1 studies, journal wal"
    overwrite(path, random.Random(1).randbytes(8192))
    assert inspect(str(path))[0][1] == "fail"


def test_looking_at_a_store_drops_no_lock_on_it(tmp_path: Path) -> None:
    """POSIX drops a process's locks on a file when it closes any other handle of that file."""
    path = filled(tmp_path / "autotune.db", trials=1)
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    held.execute("UPDATE autotune_study SET state = 'held'")
    inspect(str(path))
    salvage(path)
    code = (
        f"from autotune.store import Store; Store({str(path)!r}).close()"  # as the last one would
    )
    subprocess.run([sys.executable, "-c", code], cwd=_CHECKOUT, check=True)
    held.execute("COMMIT")
    held.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT state FROM autotune_study").fetchone() == ("held",)


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "what? 100% #1 (v2) ü &vfs=x" / "a b.db"
    assert place_of(f"sqlite:///{odd}").path == odd
    assert place_of(str(odd)).path == odd
    filled(odd, trials=1)
    assert odd.exists()
    assert [p.name for p in tmp_path.iterdir()] == [odd.parent.name]
