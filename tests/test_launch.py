"""Trials in processes: started, watched, ended, turned into records. Nothing here is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import launch, process_tree
from autotune.slot import Slot
from autotune.trial import Fidelity, Status, TrialRecord, TrialSpec
from tests.toy_trials import left_over, literal, program, toy, until, variable

S = Status


@pytest.fixture(scope="module")
def slot() -> Iterator[Slot]:
    made = Slot("toy")
    yield made
    made.close()


def children_of(pid: int) -> set[int]:
    return process_tree.Tree(root=-1, keeper=pid).members()


@pytest.fixture
def run(slot: Slot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs a trial from a zygote, and afterwards demands that nothing of it is left."""
    folder = tmp_path / "my models (v2) ü" / "0000"

    def call(spec: TrialSpec) -> TrialRecord:
        record = slot.run(spec, folder)
        for zygote in slot._zygotes.values():
            assert children_of(zygote.pid) == set()
        assert left_over(folder) == set()
        return record

    return call


def test_a_trial_ends_with_a_record_and_its_files(run) -> None:
    record = run(toy())
    assert record.status is S.COMPLETE
    assert record.failure is None
    folder = Path(record.folder)
    assert {"spec.json", "measurement.json", "log.txt", "environ.json"} <= {
        p.name for p in folder.iterdir()
    }
    assert json.loads((folder / "spec.json").read_text())["configuration"] == {"batch": 16}
    assert record.wall_seconds > 0
    assert record.metric("tokens_per_second") == pytest.approx(606.53, abs=0.01)


def test_a_trial_without_a_zygote_runs_in_an_interpreter_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "0001"
    record = launch.run(toy("grandchild"), folder)
    assert record.status is S.COMPLETE
    assert left_over(folder) == set()


@pytest.mark.parametrize(
    ("fault", "status", "words", "sent"),
    [
        ("oom", S.OUT_OF_MEMORY, "out of memory", ""),
        ("host oom", S.HOST_OUT_OF_MEMORY, "memory", ""),
        ("memoryerror", S.HOST_OUT_OF_MEMORY, "MemoryError", ""),
        ("crash of the shape 3x4", S.CRASHED, "of the shape 3x4", ""),
        ("exit 7", S.CRASHED, "exit code 7", ""),
        ("kill -9 self", S.CRASHED, "SIGKILL", "SIGKILL"),
        ("kill -15", S.CRASHED, "SIGTERM", "SIGTERM"),
        ("segfault", S.CRASHED, "SIGSEGV", "SIGSEGV"),
        ("abort", S.CRASHED, "SIGABRT", "SIGABRT"),
        ("bus error", S.CRASHED, "SIGBUS", "SIGBUS"),
        ("nonfinite", S.NON_FINITE, "nan", ""),
        ("tok_s=inf", S.NON_FINITE, "tokens_per_second is inf", ""),
        ("mem_mb=nan", S.NON_FINITE, "peak_memory_bytes is nan", ""),
        ("p99_ms=-inf", S.NON_FINITE, "request_latency_ms_p99 is -inf", ""),
        ("bad output", S.BAD_OUTPUT, "differs", ""),
        ("unsupported", S.UNSUPPORTED, "not on this device", ""),
        ("stop early", S.STOPPED_EARLY, "behind", ""),
        ("no answer", S.CRASHED, "without a measurement", ""),
        ("half an answer", S.CRASHED, "measurement.json", ""),
        ("disk full", S.CRASHED, "No space left", ""),
        ("stderr: illegal access", S.GPU_FAULT, "illegal memory access", ""),
    ],
)
def test_every_end_has_its_status_and_its_words(
    run, fault: str, status: Status, words: str, sent: str
) -> None:
    record = run(toy(fault))
    assert record.status is status
    assert record.measurement is None
    assert words in record.failure.reason
    assert record.failure.signal == sent
    if sent == "SIGKILL":
        assert "host memory" in record.failure.hint


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("cublas alloc", S.OUT_OF_MEMORY),
        ("cudnn alloc", S.OUT_OF_MEMORY),
        ("nccl oom", S.OUT_OF_MEMORY),
        ("torch oom", S.OUT_OF_MEMORY),
        ("no kv cache", S.OUT_OF_MEMORY),
        ("memoryerror", S.HOST_OUT_OF_MEMORY),
    ],
)
def test_pt13_out_of_memory_is_known_by_whatever_name_and_its_text_is_kept(
    run, text: str, status: Status
) -> None:
    record = run(toy(f"stderr: {text}"))
    assert record.status is status
    assert record.failure.detail
    assert record.failure.detail == (Path(record.folder) / "log.txt").read_text().strip()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("float32", 606.53), ("int64", 606), ("bool_", 1), ("tensor", 606.53), ("decimal", 606.53)],
)
def test_ray07_scalars_of_any_library_are_stored_as_plain_numbers(
    run, kind: str, value: float
) -> None:
    record = run(toy(f"type {kind}"))
    assert record.status is S.COMPLETE, record.failure
    found = record.measurement.metrics["tokens_per_second"]
    assert type(found) in (int, float)
    assert found == pytest.approx(value, abs=0.01)


@pytest.mark.parametrize("kind", ["list", "string", "dict", "object", "array"])
def test_ray07_what_is_no_number_fails_that_trial_naming_key_and_type(run, kind: str) -> None:
    record = run(toy(f"bad type {kind} of p99_ms"))
    assert record.status is S.CRASHED
    assert "request_latency_ms_p99" in record.failure.reason
    type_name = {"string": "str", "array": "ndarray"}.get(kind, kind)
    assert f"a {type_name}, not a number" in record.failure.reason
    assert run(toy()).status is S.COMPLETE


@pytest.mark.parametrize("fault", ["sleep 600", "hang", "hang ignoring sigterm"])
def test_opt17_a_trial_is_ended_at_its_deadline_whatever_it_does(run, fault: str) -> None:
    begun = time.monotonic()
    record = run(toy(fault, timeout_seconds=1.0))
    assert record.status is S.TIMED_OUT
    assert "1 s" in record.failure.reason
    assert time.monotonic() - begun < 15  # far from the 600 s that it wanted


@pytest.mark.parametrize("fault", ["grandchild", "grandchild orphan"])
@pytest.mark.parametrize("end", ["segfault", "sleep 600", ""])
def test_processes_in_sessions_of_their_own_end_with_their_trial(run, fault: str, end: str) -> None:
    faults = [fault, end] if end else [fault]
    record = run(toy(faults, timeout_seconds=1.5))
    assert record.status is {"segfault": S.CRASHED, "": S.COMPLETE}.get(end, S.TIMED_OUT)


def test_a_fork_bomb_is_ended_whole(run) -> None:
    record = run(toy("fork bomb 150", timeout_seconds=2.0))
    assert record.status is S.TIMED_OUT
    assert run(toy()).status is S.COMPLETE


def test_of_a_huge_log_the_end_is_kept(run) -> None:
    record = run(toy(["huge log 30", "stderr: the last words"]))
    assert record.failure.reason == "exit code 1: the last words"
    log = Path(record.folder) / "log.txt"
    assert log.stat().st_size < 5 << 20
    assert log.read_text().endswith("the last words\n")
    assert len(record.failure.detail) < 100_000


def test_a_log_without_end_ends_its_trial(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_LARGEST_LOG_BYTES", 8 << 20)
    record = run(toy(["huge log 20", "sleep 600"]))
    assert record.status is S.CRASHED
    assert "log grew beyond 8 MiB" in record.failure.reason


def test_a_trial_that_answers_but_does_not_end_keeps_its_measurement(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_FAREWELL_SECONDS", 0.5)
    record = run(toy("hang at exit"))
    assert record.status is S.COMPLETE
    assert record.metric("tokens_per_second") is not None
    assert any("did not end by itself" in text for text in record.measurement.notices)


def test_a_trial_that_dies_after_its_answer_keeps_its_measurement(run) -> None:
    record = run(toy("segfault at exit"))
    assert record.status is S.COMPLETE
    assert any("signal 11" in text for text in record.measurement.notices)


def test_nothing_of_an_earlier_run_in_the_folder_is_taken_for_an_answer(run) -> None:
    assert run(toy()).status is S.COMPLETE
    assert run(toy("kill -9")).status is S.CRASHED
    assert run(toy("no answer")).status is S.CRASHED


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": "COMPLETE"}, "without a measurement"),
        ({"status": "SPLENDID"}, "SPLENDID"),
        ({"status": "INFEASIBLE"}, "not for a trial to say"),
        ([], "measurement.json"),
        ({"status": "COMPLETE", "measurement": {"metrics": []}}, "metrics is a list"),
        ({"status": "COMPLETE", "measurement": {"metrics": {"a": [1]}}}, "a is a list"),
        ({"status": "COMPLETE", "measurement": {"metrics": {"a": 10**400}}}, "measurement.json"),
        ({"status": "COMPLETE", "measurement": {"metrics": {}, "sampels": {}}}, "sampels"),
        (
            {"status": "COMPLETE", "measurement": {"metrics": {}, "samples": {"a": 1}}},
            "a is a int, not a list",
        ),
    ],
)
def test_a_wrong_answer_fails_the_trial_and_says_where(
    slot: Slot, tmp_path: Path, answer: object, words: str
) -> None:
    target = tmp_path / "0000" / "measurement.json"
    code = (
        "import os,sys; open(sys.argv[1],'w').write(sys.argv[2]); os.kill(os.getppid(), 9);"
        "import time; time.sleep(30)"
    )
    record = slot.run(program(code, str(target), literal(json.dumps(answer))), tmp_path / "0000")
    assert record.status is S.CRASHED
    assert words in record.failure.reason


def test_the_signal_that_ends_a_trial_from_outside_is_named(slot: Slot, tmp_path: Path) -> None:
    folder = tmp_path / "0000"

    def end() -> None:
        assert until(lambda: bool(launch._live))
        os.kill(next(iter(launch._live)), signal.SIGKILL)

    threading.Thread(target=end).start()
    record = slot.run(toy("sleep 60"), folder)
    assert (record.status, record.failure.signal) == (S.CRASHED, "SIGKILL")


def test_a_dead_zygote_fails_its_trial_only_and_is_replaced(tmp_path: Path) -> None:
    slot = Slot("toy")
    folder = tmp_path / "0000"
    try:
        slot.wait_until_ready()
        (zygote,) = slot._zygotes.values()

        def end() -> None:
            assert until(lambda: bool(launch._live))
            os.kill(zygote.pid, signal.SIGKILL)

        threading.Thread(target=end).start()
        record = slot.run(toy(["grandchild", "sleep 60"]), folder)
        assert record.status is S.CRASHED
        assert "signal 9" in record.failure.reason
        assert left_over(folder) == set()
        assert slot.run(toy(), folder).status is S.COMPLETE
    finally:
        slot.close()


def test_a_zygote_whose_owner_is_killed_ends_everything_below_it(tmp_path: Path) -> None:
    folder = tmp_path / "0000"
    code = (
        "import sys; from pathlib import Path; from autotune.slot import Slot;"
        "from tests.toy_trials import toy;"
        "faults = ['grandchild orphan', 'hang ignoring sigterm'];"
        f"Slot('toy').run(toy(faults), Path({str(folder)!r}))"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1])
    assert until(lambda: len(left_over(folder)) >= 1 and (folder / "spec.json").exists())
    time.sleep(0.5)
    below = process_tree.Tree(root=-1, keeper=owner.pid).members()
    assert len(below) >= 3  # zygote, trial, orphan
    owner.kill()
    owner.wait()
    assert until(lambda: all(process_tree.start_ticks(pid) is None for pid in below))


def test_orphans_of_a_dead_launcher_are_found_by_their_mark_and_ended() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    mark = f"a: study:7:{dead.pid}:123"
    orphan = subprocess.Popen(["sleep", "600"], env={process_tree.MARK: mark, **os.environ})
    ours = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, process_tree.MARK: process_tree.mark_of("a: study", 8)}
    )
    try:
        assert process_tree.end_orphans() == {orphan.pid}
        assert orphan.wait(5) == -signal.SIGKILL
        assert ours.poll() is None
    finally:
        orphan.kill()
        ours.kill()
        orphan.wait()
        ours.wait()


@pytest.mark.parametrize("fresh", [False, True])
def test_variables_reach_the_trial_whether_forked_or_fresh(slot: Slot, tmp_path, fresh) -> None:
    spec = toy(
        ["print OMP_NUM_THREADS", "print PYTORCH_ALLOC_CONF", "print BAR", "print HOME"],
        environ={"BAR": "2"},
        fidelity=Fidelity(fresh_process=fresh),
        applied=(
            variable("cpu.threads", "OMP_NUM_THREADS", 3),
            variable("a", "PYTORCH_ALLOC_CONF[expandable_segments]", True),
            variable("b", "PYTORCH_ALLOC_CONF[max_split_size_mb]", 64),
        ),
        knobs={},
    )
    record = slot.run(spec, tmp_path / "0000")
    assert record.status is S.COMPLETE, record.failure
    assert (tmp_path / "0000" / "log.txt").read_text().split() == [
        "OMP_NUM_THREADS=3",
        "PYTORCH_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64",
        "BAR=2",
        f"HOME={os.environ['HOME']}",
    ]


def test_a_variable_that_acts_at_the_start_comes_from_an_interpreter_started_with_it(
    slot: Slot, tmp_path: Path
) -> None:
    spec = toy(applied=(variable("hash", "PYTHONHASHSEED", 5),), knobs={})
    before = set(slot._zygotes)
    slot.run(spec, tmp_path / "0000")
    (started,) = set(slot._zygotes) - before
    assert ("PYTHONHASHSEED", "5") in started
    slot.run(spec, tmp_path / "0001")
    assert set(slot._zygotes) - before == {started}  # and the next one forks from it


def test_a_variable_that_a_knob_wants_absent_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    spec = toy("print OMP_NUM_THREADS", applied=(variable("t", "OMP_NUM_THREADS", "unset"),))
    launch.run(spec, tmp_path / "0000")
    assert (tmp_path / "0000" / "log.txt").read_text().strip() == "OMP_NUM_THREADS=None"


def test_ray10_secrets_reach_the_trial_but_no_file_or_record(run) -> None:
    environ = {"HF_TOKEN": "hf_abcdefghijklmnop", "BAR": "2", "DB": "pg://me:hunter22@host/x"}
    record = run(toy(["print HF_TOKEN", "print BAR", "print DB", "exit 3"], environ=environ))
    log = (Path(record.folder) / "log.txt").read_text()
    assert log.split() == [f"{k}={v}" for k, v in environ.items()]  # it got the real ones
    assert record.spec.environ == {"HF_TOKEN": "***", "BAR": "2", "DB": "pg://me:***@host/x"}
    for name in ("spec.json", "environ.json"):
        text = (Path(record.folder) / name).read_text()
        assert "abcdef" not in text
        assert "hunter22" not in text
    assert "abcdef" not in record.failure.detail
    assert "BAR=2" in record.failure.detail


def test_a_masked_variable_of_an_old_record_is_taken_from_the_present_environment(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "the real one")
    record = run(toy("print MY_TOKEN", environ={"MY_TOKEN": "***"}))
    assert (Path(record.folder) / "log.txt").read_text() == "MY_TOKEN=the real one\n"


def test_used_variables_are_kept_per_trial(run) -> None:
    record = run(toy(environ={"BAR": "2"}))
    kept = json.loads((Path(record.folder) / "environ.json").read_text())
    assert kept["BAR"] == "2"
    assert kept["NCCL_NVLS_ENABLE"] == "0"  # held off on every host


def test_a_folder_that_cannot_be_written_gives_a_record_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = launch.run(toy(), tmp_path / "file" / "0000")
    assert record.status is S.CRASHED
    assert "could not be started" in record.failure.reason


def test_the_compile_cache_is_the_slots_own_and_its_state_is_recorded(tmp_path: Path) -> None:
    first, second = Slot("toy"), Slot("toy")
    try:
        ask = toy("print TORCHINDUCTOR_CACHE_DIR")
        cold = first.run(ask, tmp_path / "0000")
        second.run(ask, tmp_path / "0001")
        caches = [(tmp_path / n / "log.txt").read_text().strip() for n in ("0000", "0001")]
        assert caches[0] != caches[1]
        assert cold.measurement.telemetry["compile_cache"] == "cold"
        Path(caches[0].partition("=")[2]).mkdir(parents=True)
        (Path(caches[0].partition("=")[2]) / "kernel.so").touch()
        assert first.run(ask, tmp_path / "0002").measurement.telemetry["compile_cache"] == "warm"
    finally:
        first.close()
        second.close()


def test_the_clock_of_the_host_may_jump(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert run(toy(timeout_seconds=30.0)).status is S.COMPLETE
