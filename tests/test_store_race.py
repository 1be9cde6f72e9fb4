"""Many drivers on one study, and drivers that are killed."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.store import Store, owner
from tests.studies import a_record, a_spec

_CHECKOUT = Path(__file__).parents[1]


def a_driver(url: str, *, total: int, pause: float = 0.0) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.store_driver", url, "s1", str(total), str(pause)]
    return subprocess.Popen(
        words, cwd=_CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = Store(url)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.slow
def test_sixteen_drivers_that_start_at_once_share_a_fresh_store(store_url: str) -> None:
    drivers = [a_driver(store_url, total=64) for _ in range(16)]
    ends = [driver.communicate(timeout=200) for driver in drivers]
    assert [(d.returncode, err) for d, (_, err) in zip(drivers, ends, strict=True)] == [
        (0, "")
    ] * 16
    claimed = [int(line) for out, _ in ends for line in out.split()]
    assert sorted(claimed) == list(range(64))
    with opened(store_url) as store:
        assert [r.spec.number for r in store.load("s1").records] == list(range(64))
        assert store.claims("s1") == ()


def test_a_killed_drivers_trial_is_shown_and_runs_again_once(store_url: str) -> None:
    driver = a_driver(store_url, total=3, pause=60.0)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "0\n"
    driver.kill()
    driver.communicate()
    with opened(store_url) as store:
        (claim,) = store.claims("s1")
        assert claim.state == "abandoned"
        assert claim.text.startswith(
            f"abandoned: process {driver.pid} on {socket.gethostname()} was last seen at 20"
        )
        assert store.abandon_dead("s1") == [0]
        assert store.abandon_dead("s1") == []
        assert store.claims("s1")[0].state == "abandoned"
        assert [store.claim("s1", "me", below=3) for _ in range(4)] == [0, 1, 2, None]
        for number in range(3):
            assert store.add(a_record(number))
        assert store.claims("s1") == ()
        assert len(store.load("s1").records) == 3


def test_the_last_number_is_taken_over_from_a_driver_that_died(store_url: str) -> None:
    """Drivers that share a study need no resume to reach its total."""
    driver = a_driver(store_url, total=2, pause=60.0)
    assert driver.stdout is not None
    driver.stdout.readline()
    driver.kill()
    driver.communicate()
    with opened(store_url) as store:
        assert [store.claim("s1", "me", below=2) for _ in range(3)] == [1, 0, None]


@pytest.mark.slow
def test_no_record_is_lost_or_doubled_by_kills(store_url: str) -> None:
    """Two drivers at a time, one of them killed at a random moment, again and again."""
    luck = random.Random(7)
    total, kills = 200, 8
    stays = a_driver(store_url, total=total, pause=0.02)
    acknowledged: set[int] = set()
    for _ in range(kills):
        driver = a_driver(store_url, total=total)
        assert driver.stdout is not None
        lines = [driver.stdout.readline() for _ in range(luck.randint(1, 12))]
        time.sleep(luck.random() * 0.01)
        driver.kill()
        rest, _ = driver.communicate()
        numbers = [int(line) for line in [*lines, *rest.split()] if line.strip()]
        acknowledged |= set(numbers[:-1])  # the next was claimed, so these were stored
    assert stays.communicate(timeout=200)[1] == ""
    last = a_driver(store_url, total=total)
    assert last.communicate(timeout=200)[1] == ""
    with opened(store_url) as store:
        numbers = [r.spec.number for r in store.load("s1").records]
        assert numbers == list(range(total))
        assert acknowledged <= set(numbers)
        assert store.claims("s1") == ()


def test_a_stopped_driver_is_alive(store_url: str) -> None:
    """A debugger, a suspended laptop: nobody may take its trial over on this host."""
    driver = a_driver(store_url, total=3, pause=60.0)
    assert driver.stdout is not None
    driver.stdout.readline()
    try:
        os.kill(driver.pid, signal.SIGSTOP)
        with opened(store_url) as store:
            assert store.abandon_dead("s1") == []
    finally:
        driver.kill()
        driver.communicate()


def test_a_driver_on_another_machine_is_judged_by_its_heartbeat() -> None:
    now = time.time()
    there = owner.Process(host="other", machine="other/boot", pid=os.getpid(), started=1)
    assert not owner.is_dead(there, now - owner.HEARTBEAT_SECONDS)
    assert owner.is_dead(there, now - owner.STALE_SECONDS - 1)


def test_a_reused_process_number_is_another_process() -> None:
    me = owner.this_process()
    reused = owner.Process(host=me.host, machine=me.machine, pid=me.pid, started=me.started - 1)
    assert owner.is_dead(reused, time.time())
    assert not owner.is_dead(me, time.time() - 1e6)


def test_a_driver_that_comes_back_late_changes_nothing(store_url: str) -> None:
    with opened(store_url) as first, opened(store_url) as second:
        first.create_study(a_spec())
        assert first.claim("s1", "first") == 0
        first.finish("s1", None, "interrupted")  # thought dead
        assert second.claim("s1", "second") == 0
        assert second.add(a_record(0, rate=2.0))
        assert not first.add(a_record(0, rate=1.0))
        assert [r.metric("tokens_per_second") for r in first.load("s1").records] == [2.0]


def test_claim_times_are_utc(store_url: str) -> None:
    with opened(store_url) as store:
        store.create_study(a_spec())
        store.claim("s1", "me")
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\+00:00", store.claims("s1")[0].claimed_at)
