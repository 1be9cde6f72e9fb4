"""A wheel built from the checkout and installed elsewhere stands on its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but what the wheel brought."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("autotune_llm-*.whl")
    target = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    return target


def installed(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site), "AUTOTUNE_DEVICE": "cpu", "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


def test_it_is_the_wheel_that_runs_and_it_brings_its_rooms(site: Path, tmp_path: Path) -> None:
    program = (
        "import autotune, autotune.rooms as r; print(autotune.__file__); print(r.rooms_root())"
    )
    done = installed(site, tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr
    code, rooms = done.stdout.splitlines()
    assert Path(code).is_relative_to(site)
    assert Path(rooms).is_relative_to(site)
    for room in ("trials/__main__.py", "reports/__main__.py", "search_spaces/models/llama-7b.yaml"):
        assert (Path(rooms) / room).is_file(), room


def test_a_study_of_real_training_slices_runs_from_the_wheel(site: Path, tmp_path: Path) -> None:
    study = ("--study", "s", "--trials", "2", "--strategy", "random", "--seed", "1")
    done = installed(site, tmp_path, "-m", "autotune", "tune", "tiny", *study)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "s"
    records = json.loads((folder / "study.json").read_text())["records"]
    assert "COMPLETE" in [record["status"] for record in records]
    assert (folder / "report.html").stat().st_size > 100_000
    assert (folder / "best.yaml").is_file()
