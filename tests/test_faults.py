"""Faults on purpose, through whole studies: after each the store is whole, no process is left, the
study can be resumed, and the exit code and the last line say what happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.store import Store
from autotune.study import Study
from autotune.trial import Status
from tests import local_cli
from tests.local_studies import again, planned, run
from tests.test_cli import ROOT, environ
from tests.toy_trials import left_over, until

pytestmark = pytest.mark.slow
S = Status

ENDS: dict[str, Status] = {
    "crash": S.CRASHED,
    "exit 1": S.CRASHED,
    "exit 255": S.CRASHED,
    "abort": S.CRASHED,
    "segfault": S.CRASHED,
    "bus error": S.CRASHED,
    "kill -9 self": S.CRASHED,
    "kill -15 self": S.CRASHED,
    "hang": S.TIMED_OUT,
    "hang ignoring sigterm": S.TIMED_OUT,
    "fork bomb 60": S.TIMED_OUT,
    "grandchild": S.COMPLETE,
    "grandchild orphan": S.COMPLETE,
    "oom": S.OUT_OF_MEMORY,
    "stderr: cublas alloc": S.OUT_OF_MEMORY,
    "stderr: cudnn alloc": S.OUT_OF_MEMORY,
    "stderr: nccl oom": S.OUT_OF_MEMORY,
    "stderr: torch oom": S.OUT_OF_MEMORY,
    "stderr: no kv cache": S.OUT_OF_MEMORY,
    "stderr: RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB": S.OUT_OF_MEMORY,
    "stderr: cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED": S.OUT_OF_MEMORY,
    "stderr: jaxlib XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory": S.OUT_OF_MEMORY,
    "host oom": S.HOST_OUT_OF_MEMORY,
    "memoryerror": S.HOST_OUT_OF_MEMORY,
    "stderr: memoryerror": S.HOST_OUT_OF_MEMORY,
    "stderr: terminate called after throwing an instance of 'std::bad_alloc'": (
        S.HOST_OUT_OF_MEMORY
    ),
    "stderr: xid": S.GPU_FAULT,
    "nonfinite": S.NON_FINITE,
    "tok_s=nan": S.NON_FINITE,
    "tok_s=inf": S.NON_FINITE,
    "tok_s=-inf": S.NON_FINITE,
    "tok_s=1e999": S.NON_FINITE,
    "p99_ms=nan": S.NON_FINITE,
    "type none": S.NON_FINITE,
    "type list": S.CRASHED,
    "type string": S.CRASHED,
    "type dict of p99_ms": S.CRASHED,
    "type object": S.CRASHED,
    "type array": S.CRASHED,
    "type bool": S.COMPLETE,
    "type decimal": S.COMPLETE,
    "type float32": S.COMPLETE,
    "unsupported": S.UNSUPPORTED,
    "bad output": S.BAD_OUTPUT,
    "stop early": S.STOPPED_EARLY,
    "huge log 20": S.COMPLETE,
    "disk full": S.CRASHED,
    "no answer": S.CRASHED,
    "half an answer": S.CRASHED,
    "hang at exit": S.COMPLETE,
    "segfault at exit": S.COMPLETE,
}  # fmt: skip


def is_whole(study: Study, trials: int) -> bool:
    """Every number once, in order, each with a reason where it failed."""
    numbers = [r.spec.number for r in study.records]
    told = all(r.failure and r.failure.reason for r in study.records if r.status is not S.COMPLETE)
    return numbers == list(range(trials)) and told


def test_every_fault_of_a_trial_ends_it_alone_with_its_class(tmp_path: Path) -> None:
    """All of them in one study, each at a number of its own, two at a time."""
    luck, order = random.Random(4), list(ENDS)
    luck.shuffle(order)  # so that no five in a row are alike
    order.insert(0, "")
    faults = tuple(f"{fault} if number=={n}" for n, fault in enumerate(order) if fault)
    study, _ = run(
        tmp_path, trials=len(order), workers=2, trial_timeout="2s", faults=faults, seed=1
    )
    assert is_whole(study, len(order)), study.outcome
    found = {order[r.spec.number]: r.status for r in study.records[1:]}
    assert found == ENDS
    assert until(lambda: left_over(tmp_path) == set(), 60)
    more, _ = again(tmp_path, study, trials=len(order) + 2)
    assert is_whole(more, len(order) + 2)
    assert more.records[: len(order)] == study.records


_PROGRAM = """\
import json, math, os, resource, signal, subprocess, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
out, fault = sys.argv[1:]
metrics = {"tokens_per_second": 5.0}
if fault == "abort": os.abort()
if fault == "segfault": os.kill(os.getpid(), signal.SIGSEGV)
if fault == "exit": sys.exit(9)
if fault == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if fault == "hang below":
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.run([sys.executable, "-c", code], start_new_session=True)
if fault == "leaves one":
    subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
if fault == "oom": sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
if fault == "numpy": sys.exit("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB")
if fault == "nan": metrics["tokens_per_second"] = math.nan
if fault == "inf": metrics["tokens_per_second"] = -math.inf
if fault == "text": metrics["tokens_per_second"] = "5 tok/s"
if fault == "list": metrics = [5.0]
if fault == "other name": metrics = {"tokens_per_secnd": 5.0}
if fault == "huge": metrics["x"] = "y" * (17 << 20)
if fault == "loud": sys.stdout.write("all work and no play\\n" * 1_000_000)
with open(out, "w") as file:
    if fault == "not json": file.write("tokens_per_second=5")
    elif fault != "silent": json.dump(metrics, file)
"""
_COMMAND_ENDS = {
    "none": S.COMPLETE,
    "abort": S.CRASHED,
    "segfault": S.CRASHED,
    "exit": S.CRASHED,
    "hang": S.TIMED_OUT,
    "hang below": S.TIMED_OUT,
    "leaves one": S.COMPLETE,
    "oom": S.OUT_OF_MEMORY,
    "numpy": S.HOST_OUT_OF_MEMORY,
    "nan": S.NON_FINITE,
    "inf": S.NON_FINITE,
    "text": S.CRASHED,
    "list": S.CRASHED,
    "other name": S.NON_FINITE,
    "huge": S.CRASHED,
    "loud": S.COMPLETE,
    "not json": S.CRASHED,
    "silent": S.CRASHED,
}


def test_every_fault_of_a_program_ends_its_trial_alone_with_its_class(tmp_path: Path) -> None:
    program, space = tmp_path / "a program.py", tmp_path / "mine.yaml"
    program.write_text(_PROGRAM)
    choices = json.dumps(list(_COMMAND_ENDS))
    space.write_text(
        f"name: mine\nknobs:\n  fault: {{choices: {choices}, default: none, scope: [command],"
        " apply: {argument: fault}}\n"
    )
    study, _ = run(
        tmp_path,
        model="mine",
        runner="command",
        space_files=(str(space),),
        command=f"{sys.executable} '{program}' {{out}} {{fault}}",
        trials=60,
        trial_timeout="4s",
        workers=2,
    )
    assert is_whole(study, len(_COMMAND_ENDS))
    found = {r.spec.configuration["fault"]: r.status for r in study.records}
    assert found == _COMMAND_ENDS
    misspelt = next(r for r in study.records if r.spec.configuration["fault"] == "other name")
    assert misspelt.failure is not None
    assert "did you mean tokens_per_secnd?" in misspelt.failure.hint
    assert until(lambda: left_over(tmp_path) == set(), 60)


def test_a_clock_that_jumps_leaves_durations_right(tmp_path: Path, monkeypatch) -> None:
    """A day forwards in the middle of a study, then two back."""
    real, begun = time.time, time.monotonic()

    def jumping() -> float:
        elapsed = time.monotonic() - begun
        return real() + (86400.0 if 0.5 < elapsed < 1.5 else -86400.0 if elapsed >= 1.5 else 0.0)

    monkeypatch.setattr(time, "time", jumping)
    study, _ = run(tmp_path, trials=12, options=("sleep=0.2",), workers=1)
    assert is_whole(study, 12)
    assert {r.status for r in study.records} == {S.COMPLETE}
    assert all(0.2 <= r.wall_seconds < 60 for r in study.records)


def test_a_trial_folder_that_cannot_be_made_fails_that_trial_only(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "0002").write_text("a file stands in the way")
    study, _ = run(tmp_path, trials=5)
    assert [r.status for r in study.records].count(S.CRASHED) == 1
    assert study.records[2].failure is not None
    assert "could not be started" in study.records[2].failure.reason
    assert is_whole(study, 5)


def words(*more: str) -> tuple[str, ...]:
    return ("tune", "toy", "--runner", "toy", "--strategy", "random", "--study", "s", *more)


def whole_store(path: Path) -> list[int]:
    store = Store(str(path))
    try:
        return [r.spec.number for r in store.load("s").records]
    finally:
        store.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", folder], capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("no file system may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_stops_the_study_with_exit_4_and_what_was_stored_is_whole(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "small"
    with small_disk(disk):
        done = local_cli.run(tmp_path, *words("--trials", "400", "--out", str(disk / "runs")))
        assert done.returncode == 4, done.stdout + done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert "full" in last or "No space" in last
        assert "`autotune resume s`" in last
        assert "Traceback" not in done.stderr
        numbers = whole_store(disk / "runs" / "autotune.db")
        assert numbers == list(range(len(numbers)))
        assert until(lambda: left_over(disk / "runs" / "s") == set(), 60)


def test_a_limit_on_file_sizes_stops_the_study_with_exit_4_and_it_is_resumed(
    tmp_path: Path,
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (160_000, 160_000))

    more = ("--trials", "60", "--workers", "1")
    done = local_cli.run(tmp_path, *words(*more), before=limit)
    assert done.returncode == 4, done.stdout + done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith("`autotune resume s`")
    assert "Traceback" not in done.stderr
    resumed = local_cli.run(tmp_path, "resume", "s")
    assert resumed.returncode == 0, resumed.stderr
    assert whole_store(tmp_path / "runs" / "autotune.db") == list(range(60))


def test_a_store_that_is_damaged_in_mid_study_ends_it_with_one_line(tmp_path: Path) -> None:
    driver = local_cli.start(tmp_path, *words("--trials", "60", "--option", "sleep=0.1"))
    path = tmp_path / "runs" / "autotune.db"
    assert until(lambda: "trial    3 " in (tmp_path / "output").read_text(), 100)
    for file in (path, path.with_name("autotune.db-wal")):
        if file.exists():
            size = file.stat().st_size
            file.write_bytes(random.Random(1).randbytes(size))
    assert driver.wait(100) == 4
    text = (tmp_path / "output").read_text()
    assert "Traceback" not in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("autotune: ")
    assert "damaged" in last or "not a database" in last
    assert until(lambda: left_over(tmp_path / "runs" / "s") == set(), 60)


def test_several_drivers_of_one_study_share_it(tmp_path: Path) -> None:
    drivers = [local_cli.start(tmp_path, *words("--trials", "30")) for _ in range(3)]
    assert [d.wait(200) for d in drivers] == [0] * 3, (tmp_path / "output").read_text()
    assert whole_store(tmp_path / "runs" / "autotune.db") == list(range(30))
    assert "lock" not in (tmp_path / "output").read_text()


def test_soak_and_random_kills_in_small(tmp_path: Path) -> None:
    """A twentieth of what benchmarks/soak.csv shows."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--trials", "100", "--kills", "4", "--threads",
         "--out", str(tmp_path / "soak")],
        cwd=ROOT,
        env=environ(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=500,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["ok"], found
    assert done.returncode == 0
    assert (tmp_path / "soak.csv").read_text().startswith("seconds,trials,driver,memory_bytes")


def test_the_plan_of_these_tests_is_checked_like_any_other() -> None:
    """A fault that is misspelt would test nothing."""
    with pytest.raises(ValueError, match="unknown fault"):
        planned(faults=("segfalt if number==1",))
