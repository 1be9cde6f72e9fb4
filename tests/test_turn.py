"""Processes that take turns."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.turn import turn

_CHECKOUT = Path(__file__).parents[1]
_HOLD = """
import sys, tempfile
from autotune.turn import turn
tempfile.tempdir = sys.argv[1]
with turn("test"):
    print("mine", flush=True)
    sys.stdin.readline()
"""


def a_holder(folder: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", _HOLD, str(folder)]
    return subprocess.Popen(words, cwd=_CHECKOUT, stdin=pipe, stdout=pipe, text=True)


def test_the_next_waits_until_the_first_is_done_or_dead(tmp_path: Path) -> None:
    both = [a_holder(tmp_path), a_holder(tmp_path)]
    (holder,) = _that_say_mine(both, within=30.0)
    (waiting,) = (p for p in both if p is not holder)
    assert _that_say_mine([waiting], within=0.5) == []
    holder.kill()
    holder.communicate()
    assert _that_say_mine([waiting], within=30.0) == [waiting]
    waiting.communicate("\n")
    assert waiting.returncode == 0


def _that_say_mine(
    processes: list[subprocess.Popen[str]], *, within: float
) -> list[subprocess.Popen[str]]:
    by_pipe = {process.stdout: process for process in processes}
    ready, _, _ = select.select(list(by_pipe), [], [], within)
    assert all(pipe.readline() == "mine\n" for pipe in ready)
    return [by_pipe[pipe] for pipe in ready]


def test_without_a_place_for_a_lock_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    done = []
    with turn("test"):
        done.append(1)
    assert done
