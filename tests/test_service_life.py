"""The service may die, and many may watch: the study does not mind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autotune.client import Client
from tests.services import running, start, until

_WATCHERS = 20


@pytest.mark.slow
def test_kill_9_of_the_service_leaves_the_study_alone_and_a_new_one_shows_it(
    tmp_path: Path,
) -> None:
    first = start(tmp_path / "runs")
    try:
        client = Client(first.address)
        client.tune(
            "tiny", runner="toy", trials=12, strategy="random", study="s", faults=["sleep 0.7"]
        )
        until(lambda: len(client.trials("s")) >= 2)
        before = len(client.trials("s"))
    finally:
        first.process.kill()
        first.process.communicate()
    with running(tmp_path / "runs") as second:
        again = Client(second.address)
        until(lambda: again.studies()[0]["state"] == "finished", seconds=240)
        records = again.trials("s")
        assert before < 12  # it was killed in mid-study
        assert sorted(r["spec"]["number"] for r in records) == list(range(12))
        assert [r["status"] for r in records] == ["COMPLETE"] * 12
        assert "configuration:" in again.export("s")


@pytest.mark.slow
def test_twenty_watchers_each_see_every_trial_once(tmp_path: Path) -> None:
    with running(tmp_path / "runs") as service:
        client = Client(service.address)
        client.tune(
            "tiny", runner="toy", trials=10, strategy="random", study="s", faults=["sleep 0.3"]
        )
        seen: list[list[int]] = [[] for _ in range(_WATCHERS)]
        states: list[str] = []

        def watch(place: int) -> None:
            for event in Client(service.address).watch("s"):
                if event["event"] == "trial":
                    seen[place].append(int(event["number"]))
                elif event["state"] == "finished":
                    states.append("finished")

        threads = [threading.Thread(target=watch, args=(i,)) for i in range(_WATCHERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
        assert states == ["finished"] * _WATCHERS
        assert [sorted(numbers) for numbers in seen] == [list(range(10))] * _WATCHERS
