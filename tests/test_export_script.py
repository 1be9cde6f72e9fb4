"""The exports that run: a Python file, a shell script, a file of variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import export
from autotune.export import ExportError
from autotune.study import Study
from autotune.trial import AppliedKnob, KnobValue
from tests.test_export import a_winner

NASTY = 'it\'s "$(touch pwned)" `x` \\ 🙂'


def knob(name: str, value: KnobValue, *, default: bool = False, **apply: str) -> AppliedKnob:
    return AppliedKnob(name=name, value=value, apply=apply, is_default=default)


def a_mixed_study(*more: AppliedKnob, **options: Any) -> Study:
    knobs = [
        knob("env.threads", 2, env="OMP_NUM_THREADS"),
        knob("env.text", NASTY, env="NASTY_TEXT"),
        knob("env.gone", "unset", env="LANGUAGE"),
        knob("env.same", 5, env="SAME_AS_EVER", default=True),
        knob("alloc.a", True, env="ALLOC_CONF[expandable]"),
        knob("alloc.b", 8, env="ALLOC_CONF[split_mb]"),
        knob("torch.tf32", True, torch="torch.backends.cuda.matmul.allow_tf32"),
        knob("torch.tune", True, torch="torch._inductor.config.max_autotune"),
        knob("torch.none", "none", torch="torch._inductor.config.coordinate_descent_tuning"),
        knob("torch.same", 3, torch="torch.no_such_attribute", default=True),
        knob("train.batch", 8, argument="train.batch"),
        knob("train.text", NASTY, argument="train.text"),
        knob("engine.blocks", 16, engine="--block-size"),
        *more,
    ]
    return a_winner({k.name: k.value for k in knobs}, knobs=knobs, **options)


def write(folder: Path, name: str, study: Study, form: str) -> Path:
    path = folder / name
    export.write_atomically(path, export.text(study, form))
    return path


def run(command: list[str], folder: Path, **environ: str) -> str:
    """In an empty folder, by an interpreter that knows nothing of autotune."""
    clean = {"PATH": os.environ["PATH"], "LANGUAGE": "en", **environ}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "pwned").exists()
    return done.stdout


def test_the_python_file_needs_nothing_but_python(tmp_path: Path) -> None:
    write(tmp_path, "best.py", a_mixed_study(), "python")
    code = """
import json, os, sys
sys.path.insert(0, ".")
import best
best.TORCH = {}
best.apply()
names = ("OMP_NUM_THREADS", "NASTY_TEXT", "LANGUAGE", "SAME_AS_EVER", "ALLOC_CONF")
print(json.dumps([{n: os.environ.get(n) for n in names}, best.ARGUMENTS, best.ENGINE]))
"""
    found = json.loads(run([sys.executable, "-I", "-S", "-c", code], tmp_path))
    assert found == [
        {
            "OMP_NUM_THREADS": "2",
            "NASTY_TEXT": NASTY,
            "LANGUAGE": None,
            "SAME_AS_EVER": None,
            "ALLOC_CONF": "expandable:True,split_mb:8",
        },
        {"train.batch": 8, "train.text": NASTY},
        {"--block-size": 16},
    ]


@pytest.mark.slow
def test_the_python_file_sets_the_flags_of_torch(tmp_path: Path) -> None:
    write(tmp_path, "best.py", a_mixed_study(), "python")
    code = """
import sys
sys.path.insert(0, ".")
import best
assert "torch" not in sys.modules
best.apply()
import torch, torch._inductor.config as inductor
print(torch.backends.cuda.matmul.allow_tf32, inductor.max_autotune)
print(inductor.coordinate_descent_tuning)
"""
    assert run([sys.executable, "-I", "-c", code], tmp_path) == "True True\nNone\n"


def test_the_python_file_names_an_attribute_that_is_gone(tmp_path: Path) -> None:
    study = a_mixed_study(knob("os.gone", 1, torch="os.path.no_such_attribute"))
    write(tmp_path, "best.py", study, "python")
    code = "import sys; sys.path.insert(0, '.'); import best; best._owner('os.path.no_such')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "this version of torch has no os.path.no_such" in done.stderr


def test_the_python_file_shows_itself_when_run(tmp_path: Path) -> None:
    path = write(tmp_path, "best.py", a_mixed_study(), "python")
    shown = run([sys.executable, "-I", str(path)], tmp_path)
    assert "  arguments  train.batch = 8" in shown.splitlines()


def test_hostile_names_stay_inside_their_quotes(tmp_path: Path) -> None:
    hostile = 'x"""\nimport os; os.mkdir("pwned")\n"""'
    study = a_winner({"a": hostile}, name=hostile, model_name=hostile)
    run([sys.executable, "-I", str(write(tmp_path, "best.py", study, "python"))], tmp_path)
    run(["sh", str(write(tmp_path, "best.sh", study, "shell")), "true"], tmp_path)
    run(["sh", str(write(tmp_path, "best.env", study, "env"))], tmp_path)


def test_the_shell_script_runs_a_program_with_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path, "best.sh", a_mixed_study(), "shell")
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    found = json.loads(run(["sh", str(path), sys.executable, "-c", code], tmp_path))
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["NASTY_TEXT"] == NASTY
    assert found["ALLOC_CONF"] == "expandable:True,split_mb:8"
    assert "LANGUAGE" not in found
    assert "SAME_AS_EVER" not in found
    assert json.loads(found["AUTOTUNE_ARGUMENTS"]) == {"train.batch": 8, "train.text": NASTY}


def test_the_shell_script_repeats_a_measured_command(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--text={train.text}", "{out}"]
    path = write(tmp_path, "best.sh", a_mixed_study(options={"argv": argv}), "shell")
    assert run(["sh", str(path)], tmp_path) == f"{[f'--text={NASTY}', 'metrics.json']}\n"


def test_the_env_file_is_read_by_a_shell(tmp_path: Path) -> None:
    write(tmp_path, "best.env", a_mixed_study(), "env")
    code = "import os; print(os.environ['NASTY_TEXT'])"
    script = 'set -a; . ./best.env; exec "$0" -c "$CODE"'
    assert run(["sh", "-c", script, sys.executable], tmp_path, CODE=code) == f"{NASTY}\n"
    lines = (tmp_path / "best.env").read_text().splitlines()
    assert "# LANGUAGE must not be set" in lines
    assert "# argument train.batch = 8" in lines


def test_an_env_file_refuses_what_it_cannot_hold() -> None:
    study = a_mixed_study(knob("env.lines", "a\nb", env="LINES_TEXT"))
    with pytest.raises(ExportError, match=r"LINES_TEXT holds a line break.*--format shell"):
        export.text(study, "env")


@pytest.mark.parametrize("form", ["yaml", "env", "python", "shell"])
def test_no_secret_of_the_users_is_handed_over(form: str) -> None:
    study = a_mixed_study(environ={"HF_TOKEN": "hf_secret", "BAR": "kept"})
    text = export.text(study, form)
    assert "hf_secret" not in text
    assert "kept" in text
