"""Field cases of the loop itself: what a trial that measured nothing counts for, and when all of it
is stopped. Driven with slots in threads of this process, so that each takes a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.trial import Status
from tests.local_studies import again, run

S = Status


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("requests=0",), "tokens_per_second is null: no time passed"),
        (("tokens=0",), "tokens_per_second is null: no time passed"),
        (("elapsed=0",), "tokens_per_second is null: no time passed"),
    ],
)
def test_perf_01_a_trial_fails_for_a_null_objective_with_its_reason(
    tmp_path: Path, options, reason
) -> None:
    study, _ = run(tmp_path, options=options, trials=2)
    assert [r.status for r in study.records] == [S.NON_FINITE, S.NON_FINITE]
    assert {r.failure.reason for r in study.records if r.failure} == {reason}
    assert study.records[0].measurement is not None


def test_perf_01_a_null_metric_that_is_no_objective_fails_nothing(tmp_path: Path) -> None:
    study, _ = run(tmp_path, options=("tokens=1",), trials=2)
    assert [r.status for r in study.records] == [S.COMPLETE, S.COMPLETE]
    record = study.records[0]
    assert record.metric("inter_token_latency_ms_p50") is None
    assert record.measurement is not None
    assert any("inter_token_latency_ms_p50 is null" in n for n in record.measurement.notices)


def test_a_machine_that_breaks_in_mid_study_is_told_from_a_hard_region(tmp_path: Path) -> None:
    """All went well, then everything fails alike: the default is run once more, and fails too."""
    faults = ("crash libcuda.so is gone if number>=4",)
    study, events = run(tmp_path, faults=faults, trials=40)
    assert study.state == "failed"
    assert study.outcome is not None
    assert "failed alike" in study.outcome.stopped_because
    assert [r.spec.stage for r in study.records].count("canary") == 1
    assert len(study.records) < 15
    assert any("running the default once more" in e.text for e in events)


def test_a_hard_region_goes_on_when_the_default_still_runs(tmp_path: Path) -> None:
    faults = ("crash no such kernel if batch!=16 and number>=2 and number<12",)
    study, _ = run(tmp_path, faults=faults, trials=16)
    assert study.state == "finished"
    assert len(study.records) == 16
    canaries = [r for r in study.records if r.spec.stage == "canary"]
    assert canaries
    assert {r.status for r in canaries} == {S.COMPLETE}


def test_opt_07_each_setting_runs_once_also_when_five_of_six_are_known(tmp_path: Path) -> None:
    words = {"only": ("prec", "compile"), "exclude": ("compile_mode", "recipe")}
    study, _ = run(tmp_path, trials=5, **words)
    assert len(study.records) == 5
    whole, _ = again(tmp_path, study, trials=20)
    settings = [
        (r.spec.configuration["prec"], r.spec.configuration["compile"]) for r in whole.records
    ]
    assert len(settings) == len(set(settings)) == 6
    assert whole.outcome is not None
    assert whole.outcome.stopped_because == "space exhausted"


@pytest.mark.parametrize("seed", [137, 0])
def test_opt_13_a_resumed_study_does_not_walk_the_same_way_again(tmp_path: Path, seed: int) -> None:
    half, _ = run(tmp_path, trials=5, seed=seed, strategy="tpe")
    whole, _ = again(tmp_path, half, trials=10)
    seen = [tuple(sorted(r.spec.configuration.items())) for r in whole.records]
    assert len(seen) == len(set(seen)) == 10


def test_opt_17_a_stated_time_out_holds_for_the_default_too(tmp_path: Path) -> None:
    study, _ = run(tmp_path, faults=("sleep 600",), trials=2, trial_timeout="1s", budget="9s")
    assert [r.status for r in study.records] == [S.TIMED_OUT, S.TIMED_OUT]
    assert {r.spec.timeout_seconds for r in study.records} == {1.0}


def test_opt_17_a_study_ends_with_its_budget(tmp_path: Path) -> None:
    study, _ = run(tmp_path, faults=("sleep 600",), trial_timeout="10s", budget="2s")
    assert [r.status for r in study.records] == [S.STOPPED_EARLY]
    assert study.records[0].spec.timeout_seconds < 2.2
    assert study.outcome is not None
    assert study.outcome.stopped_because == "time budget used"


def test_a_baseline_that_stands_is_a_best_to_hand_over(tmp_path: Path) -> None:
    """Knobs without any effect: the default is the answer, and that is a success."""
    study, _ = run(tmp_path, only=("policy", "pinned"), strategy="auto", trials=24)
    assert study.outcome is not None
    assert "stands" in study.outcome.verdict
    assert study.outcome.best is not None
    chosen = next(r for r in study.records if r.spec.number == study.outcome.best)
    assert chosen.spec.configuration == study.outcome.configuration
