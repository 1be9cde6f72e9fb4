"""study.json there and back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from autotune.study import (
    Budget,
    Comparison,
    Contribution,
    Interval,
    Limit,
    Objective,
    Outcome,
    Study,
    StudySpec,
)
from autotune.study_file import load_study, outcome_from_json, study_from_json
from autotune.trial import (
    AppliedKnob,
    BadRecord,
    Failure,
    Fidelity,
    Measurement,
    Status,
    TrialRecord,
    TrialSpec,
    to_json,
)


def a_record(number: int, status: Status = Status.COMPLETE) -> TrialRecord:
    complete = status is Status.COMPLETE
    return TrialRecord(
        spec=TrialSpec(
            study="s1",
            number=number,
            task="train",
            runner="toy",
            model={"name": "tiny"},
            workload={"seq_len": 128},
            configuration={"batch": 8, "prec": "bf16", "compile": False},
            applied=(
                AppliedKnob(name="batch", value=8, apply={"argument": "batch"}, is_default=False),
            ),
            stage="search",
            fidelity=Fidelity(depths=(1, 2)),
            seed=1,
            gpus=0,
            timeout_seconds=10.0,
            front=({"tokens_per_second": 1.0},),
        ),
        status=status,
        measurement=Measurement(
            metrics={"tokens_per_second": 10.0, "average_power_watts": None},
            samples={"step_time_ms": (1.0, 1.5)},
            notices=("a notice",),
        )
        if complete
        else None,
        failure=None if complete else Failure(reason="no room", signal="SIGKILL"),
        wall_seconds=1.5,
        started_at="2026-12-01T00:00:00+00:00",
        host="here",
        folder="runs/s1/0000",
    )


def a_study() -> Study:
    gain = Interval(median=1.8, low=1.7, high=1.9, n=5)
    contribution = Contribution(knob="batch", value=8, baseline_value=1, gain=gain, kept=True)
    return Study(
        spec=StudySpec(
            name="s1",
            model_name="tiny",
            model={"name": "tiny"},
            task="train",
            runner="toy",
            workload={},
            objectives=(Objective(metric="tokens_per_second", direction="max"),),
            limits=(Limit(metric="peak_memory_bytes", op="<=", value=8e10),),
            budget=Budget(seconds=None, trials=20),
            strategy="auto",
            seed=0,
            workers=1,
            gpus_per_trial=0,
            price_usd_per_gpu_hour=None,
            space={"name": "toy"},
            presets=({"name": "common_practice", "configuration": {"batch": 4}},),
        ),
        records=(a_record(0), a_record(1, Status.OUT_OF_MEMORY)),
        outcome=Outcome(
            best=0,
            configuration={"batch": 8},
            changed={"batch": 8},
            measured={"tokens_per_second": gain},
            baselines={"default": {"tokens_per_second": gain}},
            comparisons=(Comparison(baseline="default", gain=gain, verdict="better"),),
            contributions=(contribution,),
            neighbours=(contribution,),
            verdict="better",
        ),
        state="finished",
    )


def test_a_study_survives_the_way_through_json() -> None:
    study = a_study()
    assert study_from_json(json.loads(json.dumps(to_json(study), allow_nan=False))) == study


def test_an_unfinished_study_survives_too() -> None:
    study = Study(spec=a_study().spec, records=())
    assert study_from_json(to_json(study)) == study


def test_an_open_end_of_an_interval_stays_open() -> None:
    wide = Interval(median=1.0, low=-math.inf, high=math.inf, n=1)
    outcome = Outcome(best=0, measured={"tokens_per_second": wide})
    assert outcome_from_json(to_json(outcome)) == outcome


def test_the_sample_study_fills_every_field_of_its_outcome() -> None:
    """Otherwise a field that is not read back would go unnoticed here."""
    filled = to_json(a_study().outcome)
    assert all(value is not None and value != [] for value in filled.values()), filled


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not a study.json"),
        ("[]", "should be an object"),
        ('{"spec": 3, "records": []}', "StudySpec should be an object"),
        ('{"records": []}', "Study lacks spec"),
        ('{"spec": {}, "records": [], "recods": 1}', "no field recods"),
    ],
)
def test_a_file_that_is_no_study_is_refused_in_one_line(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "study.json"
    path.write_text(content)
    with pytest.raises(BadRecord, match=words) as raised:
        load_study(path)
    assert "\n" not in str(raised.value)


def test_records_of_the_wrong_kind_are_a_bad_record() -> None:
    data = to_json(a_study())
    data["records"][0]["measurement"]["samples"] = 3
    with pytest.raises(BadRecord, match="wrong kind"):
        study_from_json(data)


def test_an_unknown_status_is_a_bad_record() -> None:
    data = to_json(a_study())
    data["records"][0]["status"] = "SPLENDID"
    with pytest.raises(BadRecord, match="SPLENDID"):
        study_from_json(data)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="cannot read"):
        load_study(tmp_path / "none.json")
