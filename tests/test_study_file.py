"""study.json there and back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from autotune.study import Interval, Outcome, Study
from autotune.study_file import load_study, outcome_from_json, study_from_json
from autotune.trial import BadRecord, to_json
from tests.studies import a_study


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
