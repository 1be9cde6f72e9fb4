"""What is handed over: best.yaml and files for other programs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ruamel.yaml import YAML

from autotune import export
from autotune.export import ExportError
from autotune.plain import NotPlain, plain, yaml_text
from autotune.study import Comparison, Interval, Study
from autotune.trial import AppliedKnob, KnobValue, Status
from tests.studies import GAIN, a_record, a_spec, a_study, applied


def loaded_by_both(text: str) -> Any:
    """By a YAML 1.1 reader and a YAML 1.2 reader; they must agree to the type."""
    old = yaml.safe_load(text)
    new = YAML(typ="safe", pure=True).load(text)  # 1.2 is its default
    assert repr(new) == repr(old)
    return old


def a_winner(configuration: Mapping[str, KnobValue], **options: Any) -> Study:
    """A finished study that was won by a configuration."""
    knobs = tuple(options.pop("knobs", applied(configuration)))
    outcome = dataclasses.replace(
        a_study().outcome or pytest.fail("the sample has no outcome"),
        configuration=configuration,
        changed_from_upstream={k.name: k.value for k in knobs if not k.is_default},
        comparisons=(
            Comparison(baseline="default", gain=GAIN, verdict="better"),
            Comparison(baseline="common_practice", gain=GAIN, verdict="not distinguishable"),
        ),
        baselines={"default": {}, "common_practice": {"tokens_per_second": GAIN}},
    )
    spec = dataclasses.replace(a_spec(), **options)
    return Study(spec=spec, records=(a_record(0, knobs=knobs),), outcome=outcome, state="finished")


def test_best_yaml_holds_what_the_design_promises() -> None:
    study = a_winner(
        {"batch": 8},
        seed=7,
        fingerprint={
            "gpus": [{"name": "H200", "uuid": "GPU-1"}],
            "versions": {"torch": "2.13.0"},
            "torch": "2.13.0",
            "driver": "570.1",
            "git_revision": "abc",
            "command": ["autotune", "tune"],
        },
    )
    best = loaded_by_both(export.text(study, "yaml"))
    assert best["hardware"] == {"gpus": [{"name": "H200", "uuid": "GPU-1"}]}
    assert best["versions"] == {"torch": "2.13.0", "driver": "570.1", "git_revision": "abc"}
    interval = {"median": 1.8, "low": 1.7, "high": 1.9, "n": 5}
    assert {k: best[k] for k in ("model", "task", "runner", "seed", "verdict")} == {
        "model": "tiny",
        "task": "train",
        "runner": "toy",
        "seed": 7,
        "verdict": "better",
    }
    assert best["configuration"] == best["changed"] == {"batch": 8}
    assert best["measured"] == best["baseline"] == {"tokens_per_second": interval}
    assert best["gain"] == {"over": "common_practice", **interval}
    assert best["baselines"]["common_practice"]["verdict"] == "not distinguishable"


def test_the_command_builds_the_same_configuration_again() -> None:
    study = a_winner(
        {"batch": 8, "compile": True, "text": "a b; echo hi", "still": 1},
        knobs=[
            *applied({"batch": 8, "compile": True, "text": "a b; echo hi"}),
            AppliedKnob(name="still", value=1, apply={"argument": "still"}, is_default=True),
        ],
        model_name="my models (v2) ü",
        options={"argv": ["prog", "--out", "{out} x"], "faults": ["oom if batch>64"], "sleep": 1},
        environ={"BAR": "2 3", "HF_TOKEN": "secret"},
    )
    command = loaded_by_both(export.text(study, "yaml"))["command"]
    words = json.loads(
        subprocess.run(
            ["sh", "-c", f'set -- {command}; exec "$0" -c "$CODE" "$@"', sys.executable],
            env={**os.environ, "CODE": "import json, sys; print(json.dumps(sys.argv[1:]))"},
            capture_output=True,
            check=True,
        ).stdout
    )
    assert words[:4] == ["autotune", "tune", "my models (v2) ü", "--task"]
    pairs = list(itertools.pairwise(words))
    for pair in (
        ("--set", "batch=8"),
        ("--set", "compile=true"),
        ("--set", "text=a b; echo hi"),
        ("--command", "prog --out '{out} x'"),
        ("--fault", "oom if batch>64"),
        ("--option", "sleep=1"),
        ("--env", "BAR=2 3"),
    ):
        assert pair in pairs
    assert not any("still" in word or "secret" in word for word in words)


AWKWARD: dict[str, KnobValue] = {
    "lr": 1e-05,
    "large": 1e16,
    "tiny": 5e-324,
    "whole": 1.0,
    "count": 12,
    "on": True,
    "no": "NO",
    "off": "off",
    "y": "y",
    "yes": "Yes",
    "null_text": "null",
    "tilde": "~",
    "exponent": "1e3",
    "exponent_dot": "1.0e+3",
    "octal": "0o17",
    "old_octal": "017",
    "hex": "0x1F",
    "sexagesimal": "1:30",
    "underscore": "1_000",
    "date": "2026-12-01",
    "infinity": ".inf",
    "not_a_number": ".NaN",
    "merge": "<<",
    "equals": "=",
    "empty": "",
    "blank": " padded ",
    "comment": "a # b",
    "colon": "a: b",
    "dash": "- a",
    "braces": "{a: [b]}",
    "quote": "\"'\\",
    "lines": "a\nb\r\n\tc",
    "nul": "\x00\x07\x85\u2028",
    "unicode": "ü 漢字 🙂 \u202etfel",
    "bool_text": "true",
    "plain": "bf16",
    "path": "/a b/c",
    "long": "word " * 100,
}


def test_every_value_comes_back_equal_from_either_yaml() -> None:
    study = a_winner(AWKWARD)
    best = loaded_by_both(export.text(study, "yaml"))
    assert {k: (v, type(v)) for k, v in best["configuration"].items()} == {
        k: (v, type(v)) for k, v in AWKWARD.items()
    }


@pytest.mark.parametrize("word", ["no", "on", "y", "null", "1e3", "2026-12-01", "n", "~", "1"])
def test_names_are_safe_too(word: str) -> None:
    assert loaded_by_both(yaml_text({word: 1})) == {word: 1}


def test_text_is_quoted_where_a_reader_would_guess() -> None:
    lines = yaml_text({"a": "NO", "b": "bf16", "c": 1e-05, "d": "1e3"}).splitlines()
    assert lines == ['a: "NO"', "b: bf16", "c: 1.0e-05", 'd: "1e3"']


class Mode(Enum):
    FAST = "max-autotune"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("NO"), "NO"),
        (np.array(2.5), 2.5),
        ((1, "a"), [1, "a"]),
        (Mode.FAST, "max-autotune"),
        (Status.COMPLETE, "COMPLETE"),
        (Path("/a b"), "/a b"),
        (None, None),
        (Decimal("0.25"), 0.25),
        (frozenset({2}), [2]),
        ({"a": np.int64(1)}, {"a": 1}),
        (math.inf, math.inf),
    ],
)
def test_values_of_any_library_become_plain_ones(value: Any, expected: Any) -> None:
    found = loaded_by_both(yaml_text({"value": value}))["value"]
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("value", [object(), np.array([1, 2]), b"bytes"])
def test_a_value_without_a_plain_form_is_named(value: Any) -> None:
    with pytest.raises(NotPlain, match=rf"a\.b is a {type(value).__name__}"):
        plain({"b": value}, "a")


def test_a_bad_value_in_a_study_is_an_export_error() -> None:
    study = a_winner({"batch": 8}, workload={"trace": object()})
    with pytest.raises(ExportError, match=r"workload\.trace is a object"):
        export.text(study, "yaml")


def test_an_open_interval_is_written_as_infinity() -> None:
    wide = Interval(median=1.0, low=-math.inf, high=math.inf, n=1)
    study = a_winner({"batch": 8})
    assert study.outcome is not None
    outcome = dataclasses.replace(study.outcome, measured={"tokens_per_second": wide})
    best = loaded_by_both(export.text(dataclasses.replace(study, outcome=outcome), "yaml"))
    assert Interval(**best["measured"]["tokens_per_second"]) == wide


def test_best_yaml_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    export.write_atomically(path, export.text(a_winner({"batch": 8}), "yaml"))
    best = export.load_best(path)
    assert best["configuration"] == {"batch": 8}
    assert Interval(**best["measured"]["tokens_per_second"]) == GAIN


GOOD = {
    "model": "tiny",
    "task": "train",
    "runner": "toy",
    "configuration": {"batch": 8},
    "measured": {"tokens_per_second": {"median": 1, "low": 1, "high": 1, "n": 1}},
}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "should be a mapping"),
        ("[1]", "should be a mapping"),
        ("a: [", "is not YAML"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("model: tiny", "lacks task, runner, configuration, measured"),
        (yaml_text(GOOD | {"configuration": [1]}), "configuration should be a mapping"),
        (yaml_text(GOOD | {"configuration": {"a": [1]}}), r"configuration\.a should be a plain"),
        (yaml_text(GOOD | {"measured": {"a": {"median": 1}}}), r"measured\.a should have median"),
        (yaml_text(GOOD | {"measured": {"a": 3}}), r"measured\.a should have median"),
        ("\x80", "is not YAML"),
    ],
)
def test_a_file_that_is_no_best_yaml_is_refused_in_one_line(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "best.yaml"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(ExportError, match=words) as raised:
        export.load_best(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_best_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot read"):
        export.load_best(tmp_path / "none.yaml")


def test_one_trial_can_be_exported_even_a_failed_one() -> None:
    study = dataclasses.replace(a_study(), records=(a_record(0), a_record(1, Status.CRASHED)))
    best = loaded_by_both(export.text(study, "yaml", trial=1))
    assert best["trial"] == 1
    assert best["measured"] == {}
    assert best["gain"] is None
    assert best["verdict"] == "trial 1 alone (CRASHED), not compared"
    with pytest.raises(ExportError, match="no finished trial 9"):
        export.text(study, "yaml", trial=9)


def test_an_unfinished_study_exports_its_best_trial_so_far() -> None:
    study = Study(spec=a_spec(), records=(a_record(0, rate=1.0), a_record(1, rate=2.0)))
    best = loaded_by_both(export.text(study, "yaml"))
    assert best["trial"] == 1
    assert best["measured"]["tokens_per_second"] == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 1}
    assert "not yet compared" in best["verdict"]


def test_a_study_without_a_feasible_trial_has_nothing_to_export() -> None:
    study = Study(spec=a_spec(), records=(a_record(0, Status.CRASHED),))
    with pytest.raises(ExportError, match="no feasible trial"):
        export.text(study, "yaml")


def test_an_unknown_format_is_named_with_the_nearest() -> None:
    with pytest.raises(ExportError, match=r"unknown format yml; did you mean yaml\?"):
        export.text(a_study(), "yml")


def test_optuna_opens_the_exported_study(tmp_path: Path) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    records = (
        a_record(0, rate=1.0, knobs=tuple(applied({"a": 1, "b": True, "c": "x", "d": 0.5}))),
        a_record(1, rate=3.0, knobs=tuple(applied({"a": 4, "b": False, "d": 2}))),
        a_record(2, Status.OUT_OF_MEMORY, knobs=tuple(applied({"a": 9, "b": True, "c": 1}))),
    )
    study = dataclasses.replace(a_study(), records=records, outcome=None)
    path = tmp_path / "best.optuna"
    export.write_atomically(path, export.text(study, "optuna"))
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    (name,) = optuna.get_all_study_names(storage)
    theirs = optuna.load_study(study_name=name, storage=storage)
    assert name == "s1"
    assert theirs.best_trial.number == 1
    assert theirs.best_params == {"a": 4, "b": False, "d": 2.0}
    assert [t.state.name for t in theirs.trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert theirs.trials[2].user_attrs["status"] == "OUT_OF_MEMORY"
    assert theirs.trials[2].params["c"] == "1"
    assert theirs.trials[0].duration == timedelta(seconds=1.5)
