"""What a user may ask for, and how a mistake is answered."""

import pytest

from autotune.request import (
    Request,
    check_study_name,
    limits_of,
    objectives_of,
    parse_seconds,
)
from autotune.study import Objective, StudyError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_a_time_is_read_in_the_units_that_people_write(text, seconds):
    assert parse_seconds(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "0", "-5s", "ten", "5 minutes", "1e400"])
def test_a_time_that_is_not_above_zero_is_refused_with_an_example(text):
    with pytest.raises(StudyError, match=r"--budget .* such as 90s"):
        parse_seconds(text, "--budget")


def test_a_goal_stands_for_objectives_and_objectives_go_over_it():
    assert objectives_of(Request(model="m")) == (
        Objective(metric="tokens_per_second", direction="max"),
    )
    asked = Request(model="m", objectives=("peak_memory_bytes",))
    assert objectives_of(asked) == (Objective(metric="peak_memory_bytes", direction="min"),)


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        (("tokens_per_secnd:max",), "did you mean tokens_per_second"),
        (("tokens_per_second:up",), "METRIC:max or METRIC:min"),
        (("step_time_ms", "step_time_ms:min"), "given twice"),
        (("time_to_first_token_ms:min",), "needs a percentile"),
    ],
)
def test_a_wrong_objective_names_the_next_step(objectives, message):
    with pytest.raises(StudyError, match=message):
        objectives_of(Request(model="m", objectives=objectives))


@pytest.mark.parametrize(
    "limits",
    [
        ("step_time_ms<=5", "step_time_ms>=6"),
        ("step_time_ms<5", "step_time_ms>=5"),
    ],
)
def test_limits_that_exclude_each_other_are_refused(limits):
    with pytest.raises(StudyError, match="contradict each other"):
        limits_of(Request(model="m", limits=limits))


def test_limits_that_leave_one_point_are_allowed():
    assert len(limits_of(Request(model="m", limits=("step_time_ms<=5", "step_time_ms>=5")))) == 2


@pytest.mark.parametrize("text", ["step_time_ms", "step_time_ms<=", "step_time_ms<=nan", "<=3"])
def test_a_limit_that_cannot_be_read_shows_an_example(text):
    with pytest.raises(StudyError, match="should read like"):
        limits_of(Request(model="m", limits=(text,)))


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 81, "a b", "é"])
def test_a_study_name_that_could_leave_its_folder_is_refused(name):
    with pytest.raises(StudyError, match="study name"):
        check_study_name(name)
