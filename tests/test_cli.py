"""The command line as a user types it: real processes, a real store, Ray and the toy runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def environ(**extra: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AUTOTUNE_DEVICE": "cpu",
        "TERM": "dumb",
        **extra,
    }


def autotune(*arguments: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=cwd,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def toy(*more: str) -> tuple[str, ...]:
    return ("tune", "toy", "--runner", "toy", "--study", "s", *more)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tune", "lama-7b"), "did you mean llama-7b"),
        (("tune", "tiny", "--goal", "speed"), "unknown goal"),
        (("tune", "tiny", "--objective", "tokens_per_secnd:max"), "did you mean tokens_per_second"),
        (("tune", "tiny", "--limit", "step_time_ms<=five"), "should read like"),
        (
            ("tune", "tiny", "--limit", "step_time_ms<=5", "--limit", "step_time_ms>=6"),
            "contradict",
        ),
        (("tune", "tiny", "--set", "train.micro_batch=4"), "did you mean train.micro_batch_size"),
        (("tune", "tiny", "--set", "train.micro_batch_size=3000"), "outside"),
        (("tune", "tiny", "--only", "nothing.*"), "nothing.*"),
        (("tune", "tiny", "--gpus-per-trial", "2"), "GPUs"),
        (("tune", "tiny", "--budget", "soon"), "--budget"),
        (("tune", "tiny", "--study", "../x"), "study name"),
        (("tune", "tiny", "--objective", "energy_joules_per_token:min"), "cannot be measured here"),
        (("tune", "tiny", "--goal", "cost"), "--price"),
        (("tune", "tiny", "--strategy", "anneal"), "unknown strategy"),
        (("tun", "tiny"), "did you mean tune"),
        (("show", "nothing"), "no store"),
        (("export", "x", "--store", "README.md"), "README.md"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_before_any_trial(tmp_path, arguments, said):
    (tmp_path / "README.md").write_text("not a database, whatever its name\n" * 50)
    done = autotune(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_a_read_only_output_folder_is_refused_before_any_trial(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = autotune(*toy("--out", str(blocked / "runs")), cwd=tmp_path)
    assert done.returncode == 2
    assert "choose another --out" in done.stderr


def test_help_loads_no_heavy_library():
    code = (
        "import sys, autotune.cli as c\n"
        "try: c.cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'ray', 'optuna', 'torch', 'sqlalchemy', 'fastapi'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ(), capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == []
    assert "tune" in done.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("with a space and ü")
    options = ("--trials", "44", "--option", "noise=0.01", "--only", "batch", "--only", "prec")
    return folder, autotune(*toy(*options), cwd=folder)


def test_a_study_leaves_a_report_and_a_best_yaml_and_says_what_it_found(study):
    folder, done = study
    assert done.returncode == 0, done.stderr
    assert "x upstream_default in tokens_per_second" in done.stdout
    best = yaml.safe_load((folder / "runs/s/best.yaml").read_text())
    assert best["configuration"]["prec"] == "fp8"
    assert (folder / "runs/s/report.html").stat().st_size > 100_000
    assert "\x1b" not in done.stderr


def test_reading_commands_agree_with_each_other(study):
    folder, _ = study
    shown = json.loads(autotune("show", "s", "--json", cwd=folder).stdout)
    listed = json.loads(autotune("trials", "s", "--json", cwd=folder).stdout)
    assert shown["trials"] == len(listed) == sum(shown["counts"].values())
    assert sorted(r["spec"]["number"] for r in listed) == list(range(len(listed)))
    table = autotune("trials", "s", "--csv", cwd=folder).stdout.splitlines()
    assert len(table) == len(listed) + 1
    exported = autotune("export", "s", cwd=folder).stdout
    assert yaml.safe_load(exported)["trial"] == shown["outcome"]["best"]


def test_an_unknown_study_names_the_known_ones(study):
    folder, _ = study
    done = autotune("report", "z", "-o", "z.html", cwd=folder)
    assert done.returncode == 2
    assert "known: s" in done.stderr
    assert not (folder / "z.html").exists()


def test_replay_runs_a_trial_again(study):
    folder, _ = study
    done = autotune("replay", "s", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "tokens_per_second" in done.stdout


def test_a_driver_killed_in_mid_study_loses_nothing_and_doubles_nothing(tmp_path):
    command = [sys.executable, "-m", "autotune"]
    command += toy("--trials", "24", "--option", "sleep=0.3", "--workers", "2")
    driver = subprocess.Popen(
        command, cwd=tmp_path, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "runs/s"
    limit = time.monotonic() + 120
    while len(list(folder.glob("0*/measurement.json"))) < 6 and time.monotonic() < limit:
        time.sleep(0.1)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    before = json.loads(autotune("trials", "s", "--json", cwd=tmp_path).stdout)
    done = autotune("resume", "s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = json.loads(autotune("trials", "s", "--json", cwd=tmp_path).stdout)
    assert [r["spec"]["number"] for r in after] == list(range(24))
    kept = {r["spec"]["number"]: r["started_at"] for r in after}
    assert all(kept[r["spec"]["number"]] == r["started_at"] for r in before)


def test_a_study_file_with_a_misspelt_key_names_file_line_and_key(tmp_path):
    (tmp_path / "study.yaml").write_text("model: toy\nrunner: toy\nn_trails: 5\n")
    done = autotune("tune", "study.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "study.yaml:3" in done.stderr
    assert "n_trails" in done.stderr


def test_all_infeasible_exits_3_with_the_limit_and_the_nearest_miss(tmp_path):
    done = autotune(*toy("--trials", "6", "--limit", "tokens_per_second>=1e9"), cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "tokens_per_second>=1e+09 is missed by trial" in done.stdout


def test_json_prints_only_json(tmp_path):
    done = autotune(*toy("--dry-run", "--json"), cwd=tmp_path)
    assert done.returncode == 0
    assert "batch" in json.loads(done.stdout)["free_knobs"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("autotune tu", "tune"),
        ("autotune tune llama-7", "llama-7b"),
        ("autotune knobs show optim.l", "optim.lr"),
        ("autotune tune tiny --set train.micro", "train.micro_batch_size"),
        ("autotune show on", "one"),
    ],
)
def test_a_shell_is_offered_commands_models_knobs_and_studies(
    typed: str, offered: str, tmp_path: Path
) -> None:
    if "show on" in typed:
        done = autotune(
            *toy("--trials", "1", "--strategy", "random", "--study", "one"), cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    words = typed.split()
    shell = {"_AUTOTUNE_COMPLETE": "bash_complete", "COMP_WORDS": typed}
    asked = subprocess.run(
        [sys.executable, "-c", "from autotune.cli import cli; cli(prog_name='autotune')"],
        cwd=tmp_path,
        env=environ(**shell, COMP_CWORD=str(len(words) - 1)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert f"plain,{offered}" in asked.stdout.splitlines(), asked.stdout + asked.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_names_the_program(shell: str, tmp_path: Path) -> None:
    done = autotune("completion", shell, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "_AUTOTUNE_COMPLETE" in done.stdout
