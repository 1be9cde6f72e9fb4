"""Field cases of stores and exports, end to end through the command line (runner toy)."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.store import Store
from tests.test_store_files import cut, overwrite

pytestmark = pytest.mark.slow
_CHECKOUT = Path(__file__).parents[1]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *words]


def autotune(folder: Path, *words: str, expect: int = 0) -> str:
    """Run a command in a folder; its stdout, or its stderr when it is meant to fail."""
    done = subprocess.run(
        command(*words), cwd=folder, env=_environ(), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stderr if expect else done.stdout


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_CHECKOUT), "OMP_NUM_THREADS": "1"}


def tune_words(*more: str, trials: int, study: str = "s1") -> list[str]:
    words = ["tune", "tiny", "--runner", "toy", "--strategy", "random", "--workers", "1"]
    return [*words, "--trials", str(trials), "--study", study, *more]


def records(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(autotune(folder, "trials", "s1", "--json")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an awkward name, and in it a finished study of fifty trials."""
    folder = tmp_path_factory.mktemp("field") / "my models (v2) ü"
    folder.mkdir()
    autotune(folder, *tune_words(trials=50))
    return folder


def test_opt_01_drivers_that_start_at_once_share_a_study(tmp_path: Path) -> None:
    """Sixteen do too, in two minutes; sixteen bare drivers are in test_store_race."""
    pipe, words = subprocess.PIPE, command(*tune_words(trials=16))
    drivers = [
        subprocess.Popen(words, cwd=tmp_path, env=_environ(), stdout=pipe, stderr=pipe, text=True)
        for _ in range(3)
    ]
    ends = [driver.communicate(timeout=250) for driver in drivers]
    assert [d.returncode for d in drivers] == [0] * len(drivers), ends
    assert [r["spec"]["number"] for r in records(tmp_path)] == list(range(16))
    assert not any("lock" in out + err for out, err in ends)


def test_opt_03_and_ma_06_a_killed_study_is_shown_reported_and_finished(tmp_path: Path) -> None:
    words = command(*tune_words("--option", "sleep=1", trials=8))
    driver = subprocess.Popen(words, cwd=tmp_path, env=_environ(), stdout=subprocess.DEVNULL)
    _wait_for_trials(tmp_path, 3)
    driver.kill()
    driver.wait()
    shown = autotune(tmp_path, "show", "s1")
    done = len(records(tmp_path))
    assert f"{done} of 8 trials" in shown
    assert f"abandoned: process {driver.pid} on {socket.gethostname()} was last seen at" in shown
    autotune(tmp_path, "report", "s1", "-o", "report.html")
    assert f"{done} of 8" in (tmp_path / "report.html").read_text()
    autotune(tmp_path, "resume", "s1")
    assert [r["spec"]["number"] for r in records(tmp_path)] == list(range(8))
    assert "abandoned" not in autotune(tmp_path, "show", "s1")


def _wait_for_trials(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if (folder / "runs" / "autotune.db").exists():
            store = Store(str(folder / "runs" / "autotune.db"))
            try:
                if any(row.trials >= count for row in store.studies()) and store.claims("s1"):
                    return
            finally:
                store.close()
        time.sleep(0.2)
    pytest.fail("the study did not get going")


def test_ma_06_an_unknown_study_gives_a_line_with_known_names(finished: Path) -> None:
    line = autotune(finished, "report", "no-such-name", "-o", "none.html", expect=2)
    assert line == "autotune: no study no-such-name (known: s1)\n"
    assert not (finished / "none.html").exists()


@pytest.mark.parametrize("damage", ["middle", "half", "text"])
@pytest.mark.parametrize("verb", ["show", "report", "resume"])
def test_sql_03_a_damaged_store_gives_one_line_and_stays_as_it_is(
    finished: Path, tmp_path: Path, damage: str, verb: str
) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes((finished / "runs" / "autotune.db").read_bytes())
    if damage == "middle":
        overwrite(path, random.Random(1).randbytes(4096))
    elif damage == "half":
        cut(path)
    else:
        path.write_text("this is a letter, not a database\n" * 100)
    before = path.read_bytes()
    line = autotune(tmp_path, verb, "s1", "--store", str(path), expect=2)
    assert line.count("\n") == 1
    assert path.read_bytes() == before
    if damage == "text":
        assert "is not a database" in line
        return
    assert "of its trials can be read: `autotune salvage" in line
    count = int(line.split(" of its trials")[0].split()[-1])
    assert autotune(tmp_path, "salvage", str(path)).startswith(f"{count} trials saved to ")
    copy = tmp_path / "damaged.salvaged.db"
    assert f"{count} of 50 trials" in autotune(tmp_path, "show", "s1", "--store", str(copy))


def test_sql_01_doctor_shows_the_journal(finished: Path) -> None:
    assert "journal wal" in autotune(finished, "doctor")


def test_an_export_by_the_command_line_is_read_back(finished: Path) -> None:
    autotune(finished, "export", "s1", "-o", "out (1).yaml")
    assert yaml.safe_load((finished / "out (1).yaml").read_text())["runner"] == "toy"
    assert yaml.safe_load(autotune(finished, "export", "s1"))["study"] == "s1"


def test_yaml_05_a_killed_export_leaves_the_old_or_the_new_file(finished: Path) -> None:
    """The moments within a write are in test_atomic_file; here the whole command is killed."""
    folder = finished / "killed"
    folder.mkdir()
    path = folder / "best.yaml"
    autotune(finished, "export", "s1", "-o", str(path))
    whole = path.read_bytes()
    luck = random.Random(2)
    for _ in range(8):
        words = command("export", "s1", "-o", str(path))
        export = subprocess.Popen(words, cwd=finished, env=_environ(), stderr=subprocess.DEVNULL)
        time.sleep(luck.random() * 1.5)
        export.send_signal(signal.SIGKILL)
        export.wait()
        assert path.read_bytes() == whole
    autotune(finished, "export", "s1", "-o", str(path))
    assert os.listdir(folder) == ["best.yaml"]


def test_yaml_05_a_failed_write_is_no_success(finished: Path) -> None:
    for target in ("/dev/full", "none/best.yaml"):
        line = autotune(finished, "export", "s1", "-o", target, expect=2)
        assert line.startswith(f"autotune: cannot write {target}: ")


def test_cli_01_values_with_spaces_and_semicolons_reach_the_trial_whole(finished: Path) -> None:
    words = tune_words("--env", "NASTY=a b; echo hi > pwned", trials=1, study="s2")
    autotune(finished, *words)
    (record,) = json.loads(autotune(finished, "trials", "s2", "--json"))
    assert record["spec"]["environ"] == {"NASTY": "a b; echo hi > pwned"}
    assert not list(finished.rglob("pwned"))


def test_opt_06_an_infinite_objective_is_a_failure_everywhere_alike(tmp_path: Path) -> None:
    fault = "tokens_per_second=inf if batch==16"  # the default, which is tried first
    autotune(tmp_path, *tune_words("--fault", fault, trials=6))
    stored = records(tmp_path)
    dumped = json.loads((tmp_path / "runs" / "s1" / "study.json").read_text())
    assert [r["status"] for r in stored][:1] == ["NON_FINITE"]
    assert dumped["records"] == stored
    rates = {
        r["spec"]["number"]: r["measurement"]["metrics"]["tokens_per_second"]
        for r in stored
        if r["status"] == "COMPLETE"
    }
    assert dumped["outcome"]["best"] == max(rates, key=lambda number: rates[number])
    assert "NON_FINITE" in (tmp_path / "runs" / "s1" / "report.html").read_text()


def _bare_user() -> dict[str, Any]:
    """A user id without an account, where root may become one and it may still run Python."""
    folders = Path(sys.executable).resolve().parents
    if os.geteuid() != 0 or not all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders):
        return {}
    return {"user": 54321, "group": 54321, "extra_groups": []}


@pytest.mark.parametrize("home", [None, "/nonexistent/home"], ids=["unset", "missing"])
def test_cli_03_only_the_output_folder_need_be_writable(
    tmp_path_factory: pytest.TempPathFactory, home: str | None
) -> None:
    folder = tmp_path_factory.mktemp("bare")
    for part in (folder, *folder.parents):
        if "pytest" in str(part):
            part.chmod(0o755)  # pytest's folders are for their owner only
    out = folder / "out"
    out.mkdir()
    out.chmod(0o777)
    environ = {k: v for k, v in _environ().items() if k in ("PATH", "PYTHONPATH")}
    environ |= {"HOME": home} if home else {}
    words = command(*tune_words("--out", str(out / "runs"), trials=2))
    done = subprocess.run(
        words, cwd="/", env=environ, capture_output=True, text=True, timeout=250, **_bare_user()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "runs" / "s1" / "best.yaml").exists()
    assert (out / "runs" / "cache" / "home").is_dir()
