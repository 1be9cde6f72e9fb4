"""Intervals and verdicts: right width, right side, and no claim that noise alone could make."""

from __future__ import annotations

import math
import random

import pytest

from autotune.interval import (
    TOO_FEW,
    Looks,
    compare,
    median_interval,
    ratio_interval,
    student_quantile,
    verdict,
)


def test_student_quantiles_are_those_of_the_tables() -> None:
    for confidence, freedom, value in ((0.95, 4, 2.776), (0.99, 9, 3.250), (0.90, 1, 6.314)):
        assert student_quantile(confidence, freedom) == pytest.approx(value, abs=0.001)


def test_a_median_lies_within_its_bounds_and_more_samples_narrow_them() -> None:
    rng = random.Random(1)
    few = median_interval([rng.gauss(100, 5) for _ in range(8)])
    many = median_interval([rng.gauss(100, 5) for _ in range(200)])
    for found in (few, many):
        assert found.low <= found.median <= found.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_one_sample_has_no_width_and_decides_nothing() -> None:
    assert median_interval([3.0]).n == 1
    assert verdict(ratio_interval([2.0], [1.0])) == "not distinguishable"


@pytest.mark.parametrize("direction", ["max", "min"])
def test_a_gain_reads_above_one_whichever_way_is_better(direction: str) -> None:
    better, worse = ([110.0, 112.0, 111.0], [100.0, 101.0, 100.0])
    if direction == "min":
        better, worse = worse, better
    gain = ratio_interval(better, worse, direction=direction)
    assert gain.low > 1.0
    assert gain.median == pytest.approx(1.106, abs=0.01)
    assert ratio_interval(worse, better, direction=direction).high < 1.0


def test_drift_that_hits_both_arms_cancels() -> None:
    drift = [1.0, 0.8, 0.5, 0.9, 0.6]
    gain = ratio_interval([103 * d for d in drift], [100 * d for d in drift])
    assert gain.low == pytest.approx(1.03)
    assert gain.high == pytest.approx(1.03)


def test_values_that_are_not_positive_are_compared_by_difference() -> None:
    gain = ratio_interval([1.0, 1.1, 0.9], [-1.0, -1.1, -0.9])
    assert gain.median == pytest.approx(3.0)


def test_arms_of_unequal_length_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="3 and 2 rounds"):
        ratio_interval([1.0, 2.0, 3.0], [1.0, 2.0])


def test_looks_grow_and_spend_no_more_than_the_error_allowed() -> None:
    looks = Looks()
    rounds = looks.rounds()
    assert rounds[0] == looks.first
    assert rounds[-1] == looks.last
    assert sorted(set(rounds)) == list(rounds)
    spent = sum(1 - looks.confidence(r) for r in rounds)
    assert spent == pytest.approx(looks.error)


def test_before_the_first_look_there_is_no_verdict() -> None:
    _, decided = compare([2.0] * 4, [1.0] * 4, Looks(first=5))
    assert decided == TOO_FEW


def _claims(gain: float, studies: int) -> int:
    """How many studies under 2 % noise call an arm with this gain better at any look."""
    rng, looks, found = random.Random(7), Looks(), 0
    for _ in range(studies):
        arm = [100 * gain * math.exp(rng.gauss(0, 0.02)) for _ in range(looks.last)]
        base = [100 * math.exp(rng.gauss(0, 0.02)) for _ in range(looks.last)]
        verdicts = [compare(arm[:n], base[:n], looks)[1] for n in looks.rounds()]
        found += "better" in verdicts
    return found


def test_looking_often_makes_no_gain_out_of_noise() -> None:
    assert _claims(1.0, 300) <= 300 * 0.02


def test_three_percent_under_two_percent_noise_are_found() -> None:
    assert _claims(1.03, 60) >= 54
