"""Field cases of what people write: misspelt, misplaced, of the wrong kind. Each is one line with
file, line and key, before any trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import catalogue, plan, request_file, runner_words
from autotune.plan import Plan
from autotune.request import Request
from autotune.space import SpaceError
from autotune.study import StudyError
from tests.test_cli import ROOT, environ

_TOY = "model: toy\nrunner: toy\ntrials: 3\n"


def planned(path: Path) -> Plan:
    """What `autotune tune FILE` does before any trial."""
    request = request_file.load(path, {})
    with request_file.locating(path, {}):
        return plan.make(request, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_trails: 5\n", ":4: unknown key n_trails; did you mean trials?"),
        ("objektive: tokens_per_second\n", "did you mean objective"),
        ("budget: {objective: x}\n", ":4: objective belongs to the top level, not into budget"),
        ("workload:\n  objective: x\n", ":5: objective belongs to the top level, not into work"),
        ("set:\n  batch: 4\n  objective: x\n", ":6: unknown knob objective"),
        ("trials: 4\n", ":4: key trials stands twice (first in line 3)"),
        ("limits: [tokens_per_secnd>=5]\n", ":4: unknown metric tokens_per_secnd; did you mean"),
        ("objective: tok_per_second:max\n", ":4: unknown metric tok_per_second"),
        ("objective: tokens_per_second:maxi\n", ":4: objective"),
        ("set:\n\tbatch: 4\n", ":5: tabs cannot indent"),
        ("set:\n  prec: fp8\n  btch: 4\n", ":6: unknown knob btch; did you mean batch?"),
        ("set:\n  prec: fp9\n", ":5: prec=fp9 is outside"),
        ("set: [prec]\n", ":4: --set 'prec' should read KNOB=VALUE"),
        ("set:\n", ":4: set should be a list of texts, not None"),
        ("set: {batch: {low: 1}}\n", ":4: set.batch should be a single value"),
        ("exclude: [btch]\n", ":4: no knob matches btch; did you mean batch?"),
        ("only: [prec, 'btch*']\n", ":4: no knob matches btch*"),
        ("strategy: tpee\n", ":4: unknown strategy tpee; did you mean tpe?"),
        ("goal: speed\n", ":4: unknown goal speed"),
        ("budget: soon\n", ":4: --budget 'soon' should be a time"),
        ("seed: x\n", ":4: seed should be a number"),
        ("workers: 0\n", ":4: --workers 0 should be at least 1"),
        ("gpus_per_trial: 99\n", ":4: --gpus-per-trial 99 asks for more than"),
        ("space: [no.yaml]\n", ":4: cannot read"),
        ("workload: {reqests: 5}\n", ":4: --workload reqests: nothing in runner toy reads it"),
        ("workload: {batch: 5}\n", ":4: --workload batch is a knob; use --set batch=5"),
        ("options: {slep: 5}\n", ":4: --option slep: runner toy has no such option; did you mean"),
        ("faults: ['oomm if batch>3']\n", ":4: --fault 'oomm if batch>3': unknown fault 'oomm'"),
        ("faults: ['oom if btch>3']\n", "no knob btch; did you mean batch?"),
        ("faults: ['oom if batch>']\n", ":4: --fault 'oom if batch>'"),
    ],
)
def test_yaml_06_a_mistake_is_told_with_file_line_and_key(tmp_path: Path, text, said) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(_TOY + text)
    with pytest.raises(SpaceError) as caught:
        planned(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "- a\n- b\n", "just words\n"])
def test_yaml_06_a_file_without_keys_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(SpaceError, match=r"study.yaml: (is empty|should hold keys and values)"):
        planned(path)


def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(_TOY + "limits: [tokens_per_second>=5]\n")
    overrides = {"limits": ("tokens_per_secnd>=5",)}
    request = request_file.load(path, overrides)
    with pytest.raises(SpaceError) as caught, request_file.locating(path, overrides):
        plan.make(request, [])
    assert str(caught.value) == "unknown metric tokens_per_secnd; did you mean tokens_per_second?"


def test_validate_finds_what_tune_would_find(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(_TOY + "limits: [tokens_per_secnd>=5]\n")
    with pytest.raises(SpaceError, match=r"study.yaml:4: unknown metric"):
        catalogue.validate(path)
    path.write_text(_TOY + "limits: [tokens_per_second>=5]\n")
    assert catalogue.validate(path) == "study"


def test_yaml_06_the_command_ends_with_2_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(_TOY + "limits: [tokens_per_secnd>=5]\n")
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "tune", "study.yaml"],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
    )
    said = "autotune: study.yaml:4: unknown metric tokens_per_secnd; did you mean tokens_per_second"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{said}?\n"
    assert [p.name for p in tmp_path.iterdir()] == ["study.yaml"]


def test_every_option_of_the_toy_is_read_by_it_and_no_other() -> None:
    source = (ROOT / "trials" / "toy.py").read_text() + (ROOT / "trials/toy_faults.py").read_text()
    read = {part.split('"')[1] for part in source.split("spec.options.get(")[1:]}
    assert read - {"faults"} == set(runner_words.OPTIONS["toy"])


def test_a_fact_that_the_command_does_not_mention_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: m\nknobs:\n  lr: {choices: [1, 2], default: 1, scope: [command]}\n")
    request = Request(
        model="mine",
        runner="command",
        space_files=(str(path),),
        command=f"{sys.executable} {{lr}} {{requests}} {{out}}",
        workload=("requests=5", "reqests=5"),
    )
    with pytest.raises(StudyError, match=r"--workload reqests: nothing in runner command"):
        plan.make(request, [])


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("{low: 1e-5, high: 1e-3, log: true}", 1e-5, 1e-3), ("{low: 1E-05, high: .5}", 1e-5, 0.5)],
)
def test_yaml_01_a_number_in_any_spelling_is_a_number(tmp_path: Path, text, low, high) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nknobs:\n  lr: {{floats: {text}, default: 1e-4, scope: [toy]}}\n")
    knob = plan.make(Request(model="toy", runner="toy", space_files=(str(path),)), []).space.knob(
        "lr"
    )
    assert (knob.domain.low, knob.domain.high, knob.default) == (low, high, 1e-4)
    assert all(type(v) is float for v in (knob.domain.low, knob.domain.high, knob.default))


@pytest.mark.parametrize("wrong", ['"1e-5"', "one", "1e-5x", "0x1p-3", "true"])
def test_yaml_01_a_bound_that_is_text_is_refused_with_its_line(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "mine.yaml"
    knob = f"lr: {{floats: {{low: {wrong}, high: 1.0}}, default: 1.0, scope: [toy]}}"
    path.write_text(f"name: mine\nknobs:\n  {knob}\n")
    with pytest.raises(SpaceError, match=r"mine.yaml:\d+: "):
        plan.make(Request(model="toy", runner="toy", space_files=(str(path),)), [])


@pytest.mark.parametrize("quoted", [True, False])
def test_yaml_03_words_that_look_like_booleans_stay_text(tmp_path: Path, quoted: bool) -> None:
    words = ["on", "off", "auto", "no", "yes", "NO", "y", "Off"]
    path = tmp_path / "mine.yaml"
    listed = json.dumps(words) if quoted else f"[{', '.join(words)}]"
    path.write_text(f"name: m\nknobs:\n  w: {{choices: {listed}, default: auto, scope: [toy]}}\n")
    space = plan.make(Request(model="toy", runner="toy", space_files=(str(path),)), []).space
    assert list(space.knob("w").domain.values) == words
