"""Runner command: any program, its arguments and variables, and the file that it answers with."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune import argv_template
from autotune.slot import Slot
from autotune.trial import EXIT_CODES, Status, TrialRecord, TrialSpec
from tests.toy_trials import literal, program, variable

S = Status
# Answers with its arguments, as numbers and texts.
_ECHO = (
    "import json,os,sys;"
    "json.dump({'metrics':{'n':len(sys.argv)-2},'telemetry':{'argv':sys.argv[2:],"
    "'env':dict(os.environ),'cwd':os.getcwd()}},open(sys.argv[1],'w'))"
)
_WRITE = "import sys; open(sys.argv[1],'w').write(sys.argv[2])"


@pytest.fixture(scope="module")
def slot() -> Iterator[Slot]:
    made = Slot("command")
    yield made
    made.close()


@pytest.fixture
def run(slot: Slot, tmp_path: Path) -> Callable[[TrialSpec], TrialRecord]:
    return lambda spec: slot.run(spec, tmp_path / "my models (v2) ü" / "0000")


def test_cli01_each_value_is_one_argument_and_nothing_is_run_by_a_shell(
    run, tmp_path: Path
) -> None:
    evil = f"a b; echo hi > '{tmp_path}/hi' && $(touch {tmp_path}/hi) `x` \"q\" *"
    record = run(program(_ECHO, "{out}", "{name}", "--x={name}", knobs={"name": evil}))
    assert record.status is S.COMPLETE, record.failure
    assert record.measurement.telemetry["argv"] == [evil, f"--x={evil}"]
    assert not (tmp_path / "hi").exists()


def test_optional_words_vanish_when_their_knob_is_off_or_not_there(run) -> None:
    words = ("{out}", "{fast?--fast}", "{level?--level={}}", "{gone?--gone}", "{{braces}}", "")
    record = run(program(_ECHO, *words, knobs={"fast": False, "level": 3}))
    assert record.measurement.telemetry["argv"] == ["--level=3", "{braces}", ""]


def test_knobs_by_variable_and_built_in_names_reach_the_program(run) -> None:
    spec = program(
        _ECHO,
        "{out}",
        "{seed}",
        "{number}",
        "{model}",
        "{task}",
        "{requests}",
        "{on}",
        knobs={"on": True},
        number=7,
        seed=5,
        workload={"requests": 512},
        environ={"BAR": "2"},
    )
    spec = dataclasses.replace(
        spec, applied=(*spec.applied, variable("threads", "MINE_THREADS", 4))
    )
    told = run(spec).measurement.telemetry
    assert told["argv"] == ["5", "7", "mine", "train", "512", "true"]
    assert (told["env"]["BAR"], told["env"]["MINE_THREADS"]) == ("2", "4")


def test_the_program_has_the_users_environment_and_folder(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/their/own")
    told = run(program(_ECHO, "{out}")).measurement.telemetry
    assert told["env"]["PYTHONPATH"] == "/their/own"
    assert "PYTHONSAFEPATH" not in told["env"]
    assert told["cwd"] == str(Path.cwd())


def test_a_plain_object_of_numbers_is_an_answer(run) -> None:
    answer = {"tokens_per_second": 3.5, "my_metric": 2, "on": True, "unknown": None}
    record = run(program(_WRITE, "{out}", literal(json.dumps(answer))))
    assert record.status is S.COMPLETE, record.failure
    assert record.measurement.metrics == {**answer, "on": 1}
    assert record.measurement.phases["program"] > 0


def test_samples_window_and_notices_are_kept(run) -> None:
    answer = {
        "metrics": {"a": 1},
        "samples": {"a": [1, 2.5]},
        "telemetry": {"window": [1, 2], "window_tokens": 30},
        "notices": ["slow start"],
    }
    found = run(program(_WRITE, "{out}", literal(json.dumps(answer)))).measurement
    assert found.samples == {"a": (1, 2.5)}
    assert found.telemetry["window"] == [1, 2]
    assert found.notices == ("slow start",)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ('{"a": [1]}', S.CRASHED, "metric a is a list"),
        ('{"a": "fast"}', S.CRASHED, "metric a is a str"),
        ('{"a": {"b": 1}}', S.CRASHED, "metric a is a dict"),
        ('{"a": NaN}', S.NON_FINITE, "a is nan"),
        ('{"a": -Infinity}', S.NON_FINITE, "a is -inf"),
        ("[1]", S.CRASHED, "is a list"),
        ("{", S.CRASHED, "metrics.json"),
        ('{"metrics": {}, "sampels": {}}', S.CRASHED, "sampels"),
        ('{"metrics": {}, "samples": {"a": [null]}}', S.CRASHED, "sample of a"),
        ('{"metrics": {}, "samples": []}', S.CRASHED, "samples is a list"),
    ],
)
def test_a_wrong_answer_names_key_and_type(run, answer: str, status: Status, words: str) -> None:
    record = run(program(_WRITE, "{out}", literal(answer)))
    assert record.status is status
    assert words in record.failure.reason


def test_no_answer_says_where_it_was_expected(run) -> None:
    record = run(program("pass"))
    assert record.status is S.CRASHED
    assert "wrote no metrics" in record.failure.reason
    assert "{out}" in record.failure.hint


@pytest.mark.parametrize("status", [S.OUT_OF_MEMORY, S.UNSUPPORTED, S.BAD_OUTPUT, S.NON_FINITE])
def test_a_program_may_end_with_one_of_our_exit_codes(run, status: Status) -> None:
    assert run(program(f"import sys; sys.exit({EXIT_CODES[status]})")).status is status


def test_an_exit_code_and_a_signal_are_those_of_the_program(run) -> None:
    record = run(program("import sys; sys.exit('no such file: x')"))
    assert record.status is S.CRASHED
    assert "exit code 1" in record.failure.reason
    assert "no such file: x" in record.failure.detail
    record = run(program("import os; os.kill(os.getpid(), 11)"))
    assert (record.status, record.failure.signal) == (S.CRASHED, "SIGSEGV")
    record = run(program("import os; os.kill(os.getpid(), 9)"))
    assert record.failure.signal == "SIGKILL"


def test_what_a_program_writes_to_its_log_tells_the_kind(run) -> None:
    record = run(program("raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')"))
    assert record.status is S.OUT_OF_MEMORY


def test_a_program_that_is_not_there_is_named(run) -> None:
    spec = program("")
    record = run(dataclasses.replace(spec, options={"argv": ["/no/such/program"]}))
    assert record.status is S.CRASHED
    assert "/no/such/program" in record.failure.reason


def test_a_knob_that_nothing_reads_is_unsupported(run) -> None:
    record = run(program(_ECHO, "{out}", knobs={"batch": 3}))
    assert record.status is S.UNSUPPORTED
    assert "nothing read batch" in record.failure.reason


def test_a_placeholder_without_a_value_is_unsupported(run) -> None:
    record = run(program(_ECHO, "{out}", "{batch}"))
    assert record.status is S.UNSUPPORTED
    assert "{batch}" in record.failure.reason


def test_a_hanging_program_ends_with_its_trial(run) -> None:
    record = run(program("import time; time.sleep(600)", timeout_seconds=1.0))
    assert record.status is S.TIMED_OUT


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["no-such-program"], "no-such-program"),
        (["python3", "{btach}"], "{btach}"),
        (["python3", "{out}"], "nothing passes batch on"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(argv_template.BadTemplate, match=words):
        argv_template.check(argv, ["batch"], ["batch"])
    argv_template.check(["python3", "{batch?x{}}", "{out}"], ["batch"], ["batch"])


def test_the_example_is_tuned_by_its_study_file(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "autotune", "tune", "examples/command/study.yaml"]
    done = subprocess.run(
        [*command, "--trials", "4", "--strategy", "random", "--out", str(tmp_path), "--json"],
        cwd=root,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    study = json.loads(next(tmp_path.glob("*/study.json")).read_text())
    assert [r["status"] for r in study["records"]] == ["COMPLETE"] * 4
    assert study["records"][0]["measurement"]["samples"]["megabytes_per_second"]
