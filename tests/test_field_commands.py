"""Field cases that speak of commands: interrupts, logs, arguments, failures by class."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.store import Store
from tests import local_cli
from tests.test_cli import autotune, environ, toy
from tests.toy_trials import left_over, until

pytestmark = pytest.mark.slow


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A study of one slot, with its output in a file."""
    words = [sys.executable, "-m", "autotune", *toy("--strategy", "random", "--workers", "1")]
    with (folder / "output").open("w") as output:
        return subprocess.Popen(
            [*words, *more],
            cwd=folder,
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def said(folder: Path, words: str) -> bool:
    return words in (folder / "output").read_text()


def stored(folder: Path) -> tuple[str, list[str]]:
    """The state of the study and how each of its trials ended."""
    store = Store(str(folder / "runs" / "autotune.db"))
    try:
        study = store.load("s")
        return study.state, [str(r.status) for r in study.records]
    finally:
        store.close()


def test_ray_06_the_first_press_says_how_to_force_and_the_second_ends_it(tmp_path: Path) -> None:
    """The first while slots still start."""
    driver = start(tmp_path, "--trials", "9", "--fault", "hang ignoring sigterm")
    assert until(lambda: said(tmp_path, "1 trial at a time"), 100)
    driver.send_signal(signal.SIGINT)
    assert until(lambda: said(tmp_path, "press Ctrl-C again to force"), 20)
    if driver.poll() is None:
        driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 130
    assert until(lambda: left_over(tmp_path) == set(), 30)


def test_ray_06_finished_trials_stay_finished_and_the_study_goes_on(tmp_path: Path) -> None:
    driver = start(tmp_path, "--trials", "4", "--fault", "hang if number==2")
    assert until(lambda: said(tmp_path, "trial    1 "), 100)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == 130
    assert (tmp_path / "output").read_text().splitlines()[-1] == (
        "stopped because: interrupted by the user"
    )
    assert stored(tmp_path) == ("interrupted", ["COMPLETE", "COMPLETE"])
    assert until(lambda: left_over(tmp_path) == set(), 30)
    (tmp_path / "output").write_text("")
    done = autotune("show", "s", cwd=tmp_path)
    assert "interrupted, 2 of 4 trials" in done.stdout


def test_ray_06_a_press_after_the_last_trial_takes_nothing_back(tmp_path: Path) -> None:
    driver = start(tmp_path, "--trials", "2")
    assert until(lambda: said(tmp_path, "trial    1 "), 100)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(100) in (0, 130)
    state, ends = stored(tmp_path)
    assert ends == ["COMPLETE", "COMPLETE"]
    assert (tmp_path / "runs" / "s" / "report.html").exists()
    assert (driver.returncode == 0) == (state == "finished")


def test_cli_04_a_log_has_a_line_per_trial_and_no_control_codes(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as output:
        done = subprocess.run(
            local_cli.words_of(*toy("--trials", "100", "--strategy", "random")),
            cwd=tmp_path,
            env={**environ(), "TERM": "dumb"},
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: __import__("os").close(0),  # stdin closed, not merely empty
            timeout=240,
        )
    text = (tmp_path / "output").read_text()
    assert done.returncode == 0, text[-2000:]
    assert not set(map(chr, [*range(9), *range(11, 32), 127])) & set(text)
    assert 100 <= len(text.splitlines()) <= 140


def test_ray_12_and_nemo_01_failures_have_class_hint_log_and_last_lines(tmp_path: Path) -> None:
    """Three of them by signals in a row of else good trials; the exit code is that of a success,
    and the line before the last says how many failed."""
    faults = [
        "kill -9 self if number==2",
        "segfault if number==3",
        "abort if number==4",
        "oom if number==5",
        "stderr: the last words if number==6",
        "unsupported if number==7",
        "hang if number==8",
        "tok_s=nan if number==9",
    ]
    more = [word for fault in faults for word in ("--fault", fault)]
    done = autotune(
        *toy("--strategy", "random", "--trials", "12", "--trial-timeout", "3s", *more), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    counts, reason = done.stdout.splitlines()[-2:]
    assert counts.startswith("12 trials: 4 COMPLETE, 4 CRASHED")
    assert reason == "stopped because: all trials done"
    rows = list(csv.DictReader(io.StringIO(autotune("trials", "s", "--csv", cwd=tmp_path).stdout)))
    assert len(rows) == 12
    failed = {int(r["number"]): r for r in rows if r["status"] != "COMPLETE"}
    assert {n: r["signal"] for n, r in failed.items() if r["signal"]} == {
        2: "SIGKILL",
        3: "SIGSEGV",
        4: "SIGABRT",
    }
    assert [failed[n]["status"] for n in range(5, 10)] == [
        "OUT_OF_MEMORY",
        "CRASHED",
        "UNSUPPORTED",
        "TIMED_OUT",
        "NON_FINITE",
    ]
    assert failed[6]["last_lines"] == "the last words"
    assert all(
        r["reason"] and r["batch"] and Path(r["folder"], "log.txt").exists()
        for r in failed.values()
    )
    assert "maybe the kernel was out of host memory" in done.stderr
    page = (tmp_path / "runs" / "s" / "report.html").read_text()
    assert all(status in page for status in ("OUT_OF_MEMORY", "TIMED_OUT", "UNSUPPORTED"))


_SERVER = """\
import json, socket, sys
port, out, word, fixed = sys.argv[1:]
with socket.create_server(("127.0.0.1", int(fixed) or int(port))):
    json.dump({"tokens_per_second": 5.0, "port": int(port), "words": len(word)}, open(out, "w"))
"""


def test_at_03_and_cli_01_every_server_gets_its_port_and_every_value_is_one_argument(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my models (v2) ü"
    folder.mkdir()
    (folder / "a server.py").write_text(_SERVER)
    (folder / "mine.yaml").write_text(
        "name: mine\nknobs:\n"
        '  word: {choices: ["a b; echo hi > pwned", "$(touch pwned)", "x"], default: "x",'
        " scope: [command], apply: {argument: word}}\n"
    )
    (folder / "study.yaml").write_text(
        "model: mine\nrunner: command\nspace: [mine.yaml]\nstrategy: random\ntrials: 8\nstudy: s\n"
        f"command: \"'{sys.executable}' 'a server.py' {{port}} {{out}} {{word}} 0\"\n"
    )
    done = local_cli.run(folder, "tune", "study.yaml")
    assert done.returncode == 0, done.stderr
    assert "at a time" in done.stderr
    records = json.loads(autotune("trials", "s", "--json", cwd=folder).stdout)
    assert [r["status"] for r in records] == ["COMPLETE"] * 3
    assert {
        (r["spec"]["configuration"]["word"], r["measurement"]["metrics"]["words"]) for r in records
    } == {("a b; echo hi > pwned", 20), ("$(touch pwned)", 14), ("x", 1)}
    assert len({r["measurement"]["metrics"]["port"] for r in records}) == 3
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("what", ["--gpus-per-trial", "--cpus-per-trial"])
def test_ray_16_what_this_host_lacks_is_refused_with_asked_and_there(tmp_path: Path, what) -> None:
    done = autotune(*toy(what, "999"), cwd=tmp_path)
    assert done.returncode == 2
    assert f"{what} 999 asks for more than the " in done.stderr
