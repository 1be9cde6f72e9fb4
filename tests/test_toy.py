"""The toy runner: a known best, known front, planted gains, and faults under conditions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from autotune.trial import Measurement
from tests import toy_trials
from trials import toy, toy_faults
from trials.settings import Settings


def measure(tmp_path: Path, *faults: str, **more) -> Measurement:  # type: ignore[no-untyped-def]
    spec = toy_trials.toy(faults, **more)
    return toy.run(spec, tmp_path, Settings(spec))


def test_throughput_has_one_peak_over_batch_and_the_rest_grows() -> None:
    found = [toy.formula({"batch": batch}) for batch in range(1, 257)]
    rates = [f["tokens_per_second"] for f in found]
    peak = rates.index(max(rates)) + 1
    assert peak == toy.PEAK_BATCH
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak - 1 :] == sorted(rates[peak - 1 :], reverse=True)
    for name in ("request_latency_ms_p99", "peak_memory_bytes"):
        assert all(a[name] < b[name] for a, b in itertools.pairwise(found))


def test_every_knob_that_should_act_acts_and_no_other() -> None:
    base = toy.formula({"batch": 16, "prec": "fp32", "compile": False})
    for change in ({"batch": 17}, {"prec": "bf16"}, {"compile": True}):
        assert toy.formula({"batch": 16, **change}) != base
    assert toy.formula({"batch": 16, "seed": 5, "pinned": True}) == base


def test_noise_is_repeatable_per_trial_and_differs_between_trials(tmp_path: Path) -> None:
    rates = [
        measure(tmp_path, options={"noise": 0.02}, number=n).metrics["tokens_per_second"]
        for n in (1, 1, 2)
    ]
    assert rates[0] == rates[1] != rates[2]


@pytest.mark.parametrize("effects", [{"pinned=true": 1.03}, "pinned=true:1.03,policy=fcfs:1.5"])
def test_a_planted_gain_is_there_and_only_for_its_value(tmp_path: Path, effects: object) -> None:
    options = {"effects": effects}
    on = measure(tmp_path, knobs={"pinned": True}, options=options).metrics["tokens_per_second"]
    off = measure(tmp_path, knobs={"pinned": False}, options=options).metrics["tokens_per_second"]
    assert on / off == pytest.approx(1.03)


@pytest.mark.parametrize(
    ("fault", "knobs", "happens"),
    [
        ("oom if batch>64", {"batch": 65}, True),
        ("oom if batch>64", {"batch": 64}, False),
        ("oom if prec == 'fp8' and batch > 8", {"batch": 16, "prec": "fp8"}, True),
        ("oom if chance<1", {}, True),
        ("oom if chance<0", {}, False),
        ("oom if number==3", {}, False),
        ("oom if nothing==3", {}, False),
    ],
)
def test_faults_come_under_their_condition(fault: str, knobs: dict, happens: bool) -> None:
    spec = toy_trials.toy(fault, knobs=knobs)
    assert toy_faults.active(spec, spec.configuration, 0.5) == (["oom"] if happens else [])


@pytest.mark.parametrize("fault", ["explode", "oom iff batch>3", "tokens_per_second=", "type cat"])
def test_an_unknown_fault_is_refused(fault: str) -> None:
    with pytest.raises(ValueError, match="unknown fault"):
        toy_faults.active(toy_trials.toy(fault), {}, 0.5)


@pytest.mark.parametrize(
    ("options", "null", "known"),
    [
        ({"elapsed": 0}, {"tokens_per_second"}, {"request_latency_ms_p99"}),
        (
            {"requests": 0},
            {
                "tokens_per_second",
                "request_latency_ms_p99",
                "inter_token_latency_ms_p50",
                "energy_joules_per_token",
            },
            {"peak_memory_bytes"},
        ),
        (
            {"tokens": 0, "elapsed": 1.0},
            {"inter_token_latency_ms_p50", "energy_joules_per_token"},
            {"tokens_per_second", "request_latency_ms_p99"},
        ),
        ({"tokens": 1}, {"inter_token_latency_ms_p50"}, {"tokens_per_second"}),
    ],
)
def test_perf01_what_has_no_value_is_null_with_a_reason(
    tmp_path: Path, options: dict, null: set, known: set
) -> None:
    found = measure(tmp_path, options=options)
    assert {name for name, value in found.metrics.items() if value is None} == null
    assert all(found.metrics[name] is not None for name in known)
    for name in null:
        assert any(text.startswith(f"{name} is null: ") for text in found.notices)
