"""Slots as Ray actors and as threads: a record for each trial, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import process_tree, ray_host
from autotune.cluster import NoResources, RayCluster
from autotune.launch import Cluster
from autotune.local_cluster import LocalCluster
from autotune.trial import Status, TrialRecord, TrialSpec
from tests.toy_trials import left_over, toy, until

S = Status
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    """One Ray for this file: its start is dear."""
    made = RayCluster(runner="toy", workers=2, environ={"BAR": "2"}, late_seconds=5.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    made = LocalCluster(runner="toy", workers=2, environ={"BAR": "2"})
    yield made
    made.close()


@pytest.fixture(params=["ray_cluster", "local_cluster"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def run_all(cluster: Cluster, specs: list[TrialSpec], folder: Path) -> dict[int, TrialRecord]:
    """As the loop does: keep every slot busy."""
    waiting, found = list(specs), {}
    limit = time.monotonic() + 120
    while len(found) < len(specs):
        assert time.monotonic() < limit, f"only {sorted(found)} came back"
        while waiting and cluster.free_slots:
            spec = waiting.pop(0)
            cluster.submit(spec, folder / f"{spec.number:04d}")
        if (record := cluster.next_finished(0.5)) is not None:
            found[record.spec.number] = record
    return found


def test_every_spec_comes_back_as_a_record(cluster: Cluster, tmp_path: Path) -> None:
    found = run_all(cluster, [toy(number=n, environ={"BAR": "2"}) for n in range(12)], tmp_path)
    assert sorted(found) == list(range(12))
    assert {r.status for r in found.values()} == {S.COMPLETE}
    assert cluster.free_slots == 2
    assert cluster.next_finished(0.01) is None


def test_slots_run_at_the_same_time(cluster: Cluster, tmp_path: Path) -> None:
    assert until(lambda: cluster.free_slots == 2)
    for n in range(2):
        cluster.submit(toy("sleep 1.5", number=n, environ={"BAR": "2"}), tmp_path / f"{n:04d}")
    assert cluster.free_slots == 0
    assert until(lambda: len(left_over(tmp_path)) == 0)
    records = [cluster.next_finished(30), cluster.next_finished(30)]
    starts = sorted(r.started_at for r in records if r is not None)
    assert len(starts) == 2
    first, second = records
    assert first is not None
    assert second is not None
    ended = min(first.wall_seconds, second.wall_seconds)
    apart = abs(_seconds(first.started_at) - _seconds(second.started_at))
    assert apart < ended  # the second began before the first was over


def _seconds(iso: str) -> float:
    import datetime

    return datetime.datetime.fromisoformat(iso).timestamp()


def test_ray12_trials_that_are_killed_fail_alone_with_their_signal(
    cluster: Cluster, tmp_path: Path
) -> None:
    faults = ["kill -9 self if batch==16", "segfault if batch==32", "abort if batch==64"]
    specs = [
        toy(faults, number=n, knobs={"batch": 2 ** (n % 12)}, environ={"BAR": "2"})
        for n in range(8)
    ]
    found = run_all(cluster, specs, tmp_path)
    failed = {r.spec.configuration["batch"]: r for r in found.values() if r.failure}
    assert {batch: r.failure.signal for batch, r in failed.items() if r.failure} == {
        16: "SIGKILL",
        32: "SIGSEGV",
        64: "SIGABRT",
    }
    assert all(r.failure.hint for r in failed.values() if r.failure)


def test_nemo01_every_failure_has_one_class_and_its_last_lines(
    cluster: Cluster, tmp_path: Path
) -> None:
    wanted = {
        "": S.COMPLETE,
        "oom": S.OUT_OF_MEMORY,
        "crash": S.CRASHED,
        "sleep 600": S.TIMED_OUT,
        "unsupported": S.UNSUPPORTED,
        "tok_s=nan": S.NON_FINITE,
        "stderr: the last line": S.CRASHED,
    }
    specs = [
        toy(fault or (), number=n, timeout_seconds=2.0, environ={"BAR": "2"})
        for n, fault in enumerate(wanted)
    ]
    found = run_all(cluster, specs, tmp_path)
    assert [found[n].status for n in sorted(found)] == list(wanted.values())
    for record in found.values():
        assert Path(record.folder, "log.txt").exists()
        assert record.spec.configuration == {"batch": 16}
    last = found[len(wanted) - 1].failure
    assert last is not None
    assert last.detail == "the last line"


def test_a_worker_that_dies_is_replaced_and_its_trial_abandoned(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    ray_cluster.submit(toy("sleep 60", environ={"BAR": "2"}), tmp_path / "0000")
    os.kill(_launcher_in(tmp_path), signal.SIGKILL)
    record = ray_cluster.next_finished(30)
    assert record is not None
    assert record.status is S.ABANDONED
    assert record.failure is not None
    assert "its worker died" in record.failure.reason
    assert until(lambda: left_over(tmp_path) == set())
    found = run_all(ray_cluster, [toy(number=n, environ={"BAR": "2"}) for n in range(4)], tmp_path)
    assert {r.status for r in found.values()} == {S.COMPLETE}


def _launcher_in(folder: Path) -> int:
    """The process that launched the trial in this folder: an actor's."""
    assert until(lambda: (folder / "0000" / "environ.json").exists())
    mark = json.loads((folder / "0000" / "environ.json").read_text())["AUTOTUNE_TRIAL"]
    return int(mark.rsplit(":", 2)[1])


def test_a_worker_that_never_answers_is_given_up(ray_cluster: RayCluster, tmp_path: Path) -> None:
    spec = toy("sleep 60", timeout_seconds=1.0, environ={"BAR": "2"})
    ray_cluster.submit(spec, tmp_path / "0000")
    pid = _launcher_in(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    found: list[TrialRecord] = []

    def came() -> bool:
        if (one := ray_cluster.next_finished(0.5)) is not None:
            found.append(one)
        return bool(found)

    assert until(came, 40)
    assert found[0].status is S.TIMED_OUT
    assert found[0].failure is not None
    assert "never answered" in found[0].failure.reason
    assert until(lambda: process_tree.start_ticks(pid) is None)
    assert until(lambda: left_over(tmp_path) == set())
    again = run_all(ray_cluster, [toy(number=n, environ={"BAR": "2"}) for n in range(2)], tmp_path)
    assert {r.status for r in again.values()} == {S.COMPLETE}


def test_ray_does_not_take_cores_from_trials(ray_cluster: RayCluster, tmp_path: Path) -> None:
    found = run_all(ray_cluster, [toy("print OMP_NUM_THREADS", environ={"BAR": "2"})], tmp_path)
    wanted = os.environ.get("OMP_NUM_THREADS")
    assert Path(found[0].folder, "log.txt").read_text() == f"OMP_NUM_THREADS={wanted}\n"


def run_python(code: str, *words: str, **more) -> subprocess.CompletedProcess[str]:  # type: ignore[no-untyped-def]
    """A driver in a process of its own, since Ray has one cluster per process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [("gpus=2", "needs 2 GPU on one node"), ("cpus=999", "needs 999 CPU on one node")],
)
def test_ray16_resources_that_do_not_exist_are_an_error_with_what_is_there(
    asked: str, words: str
) -> None:
    code = f"""
        from pathlib import Path
        from autotune.cluster import NoResources, RayCluster
        from tests.toy_trials import toy
        made = RayCluster(runner="toy", workers=1, {asked})
        try:
            made.submit(toy(), Path("/tmp/none"))
        except NoResources as error:
            print(error)
        made.close()
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "has 0 GPU and" in done.stdout


@pytest.mark.slow
def test_ray10_a_running_cluster_gets_what_the_allow_list_names(tmp_path: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        import ray
        from ray.cluster_utils import Cluster
        from tests.toy_trials import toy
        from tests.test_cluster import run_all
        head = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        os.environ.update(FOO="1", TORCH_LOGS="+x", HF_TOKEN="hf_abcdefghijkl")
        os.environ["CUDA_VISIBLE_DEVICES"] = "9"
        from autotune.cluster import RayCluster
        made = RayCluster(runner="toy", workers=1, environ={"BAR": "2"}, address=head.address)
        names = ["FOO", "BAR", "TORCH_LOGS", "HF_TOKEN", "CUDA_VISIBLE_DEVICES"]
        run_all(made, [toy([f"print {n}" for n in names], environ={"BAR": "2"})], Path(sys.argv[1]))
        made.close()
        head.shutdown()
    """
    done = run_python(code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "0000" / "log.txt").read_text().split() == [
        "FOO=None",  # not on the list; --env FOO=1 would bring it
        "BAR=2",
        "TORCH_LOGS=+x",
        "HF_TOKEN=hf_abcdefghijkl",
        "CUDA_VISIBLE_DEVICES=None",  # the worker's to say
    ]
    kept = json.loads((tmp_path / "0000" / "environ.json").read_text())
    assert kept["BAR"] == "2"
    assert kept["HF_TOKEN"] == "***"


@pytest.mark.slow
def test_a_node_that_is_lost_takes_its_trial_and_nothing_else(tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from ray.cluster_utils import Cluster
        from tests.toy_trials import toy, until
        from tests.test_cluster import run_all
        from autotune.cluster import RayCluster
        ray_ = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1})
        second = ray_.add_node(num_cpus=1, num_gpus=1)
        folder = Path(sys.argv[1])
        made = RayCluster(runner="toy", workers=4, gpus=1, address=ray_.address)
        made.submit(toy("sleep 60", number=0, gpus=0), folder / "0000")
        assert until(lambda: made.free_slots == 1)
        made.submit(toy("sleep 60", number=1, gpus=0), folder / "0001")
        assert made.free_slots == 0, made.free_slots  # two GPUs, two slots, whatever was asked
        assert until(lambda: (folder / "0001" / "environ.json").exists())
        ray_.remove_node(second)
        lost = []
        def came():
            if (one := made.next_finished(0.5)) is not None:
                lost.append(one)
            return bool(lost)
        assert until(came, 60)
        print(len(lost), lost[0].status)
        made.close()
        ray_.shutdown()
    """
    done = run_python(code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "ABANDONED"]
    assert until(lambda: left_over(tmp_path) == set())


@pytest.mark.parametrize("kind", ["RayCluster", "LocalCluster"])
def test_a_driver_that_is_killed_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    module = "autotune.cluster" if kind == "RayCluster" else "autotune.local_cluster"
    code = f"""
        import sys, time
        from pathlib import Path
        from {module} import {kind}
        from tests.toy_trials import toy
        made = {kind}(runner="toy", workers=1)
        faults = ["grandchild orphan", "hang ignoring sigterm"]
        made.submit(toy(faults), Path(sys.argv[1]) / "0000")
        time.sleep(600)
    """
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], cwd=ROOT
    )
    try:
        assert until(lambda: (tmp_path / "0000" / "environ.json").exists(), 60)
        time.sleep(0.5)
        below = process_tree.Tree(root=-1, keeper=driver.pid).members()
        assert len(below) >= 3
    finally:
        driver.kill()
        driver.wait()
    assert until(lambda: all(process_tree.start_ticks(pid) is None for pid in below))


@pytest.mark.parametrize("kind", ["RayCluster", "LocalCluster"])
def test_closing_ends_what_still_runs(tmp_path: Path, kind: str) -> None:
    module = "autotune.cluster" if kind == "RayCluster" else "autotune.local_cluster"
    code = f"""
        import sys, time
        from pathlib import Path
        from {module} import {kind}
        from tests.toy_trials import toy, until
        made = {kind}(runner="toy", workers=1)
        folder = Path(sys.argv[1]) / "0000"
        made.submit(toy(["grandchild orphan", "hang ignoring sigterm"]), folder)
        assert until(lambda: (folder / "environ.json").exists(), 60)
        made.close()
    """
    done = run_python(code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no log noise either
    assert left_over(tmp_path) == set()


def test_ray_says_nothing_and_shows_no_dashboard(ray_cluster: RayCluster, tmp_path: Path) -> None:
    import ray

    run_all(ray_cluster, [toy(environ={"BAR": "2"})], tmp_path)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ray._private.worker.global_worker.node.webui_url == ""
    assert os.environ.get("RAY_AUTH_MODE") != "disabled"


def test_waiting_for_a_slot_without_ray_is_an_error_not_a_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no room\nmore words")

    monkeypatch.setattr(ray_host, "start", broken)
    made = RayCluster(runner="toy", workers=1)
    with pytest.raises(NoResources, match=r"^Ray could not start: no room$"):
        made.submit(toy(), tmp_path / "0000")
