"""Field cases of the search itself: what is proposed after failures, in wide spaces, on a grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from autotune import export, plan
from autotune.request import Request
from autotune.sampler import factory
from autotune.sampler.protocol import Proposal
from autotune.session import completed
from autotune.space import members
from autotune.study import Objective
from autotune.trial import Failure, Measurement, Status, TrialRecord
from tests.local_studies import planned, run
from tests.toy_trials import toy

S = Status


def record_of(proposal: Proposal, number: int, rate: float | None) -> TrialRecord:
    """A trial that went well, or (without a rate) ran out of memory."""
    spec = toy(number=number, knobs=dict(proposal.configuration))
    metrics = {"tokens_per_second": rate, "request_latency_ms_p99": 5.0 + number % 7}
    return TrialRecord(
        spec=dataclasses.replace(spec, stage=proposal.stage),
        status=S.OUT_OF_MEMORY if rate is None else S.COMPLETE,
        measurement=None if rate is None else Measurement(metrics=metrics),
        failure=Failure(reason="CUDA out of memory") if rate is None else None,
        wall_seconds=0.1,
        started_at="2026-12-01T00:00:00.000Z",
        host="here",
        folder="",
    )


def searched(seed: int, fails: Callable[[Proposal], bool], trials: int) -> list[TrialRecord]:
    made = planned(only=("batch", "prec"), seed=seed)
    strategy = factory.make(
        "tpe", made.space, objectives=made.spec.objectives, seed=seed, budget=made.spec.budget
    )
    records: list[TrialRecord] = []
    while len(records) < trials and (proposal := strategy.ask()) is not None:
        batch = float(proposal.configuration["batch"])
        rate = None if fails(proposal) else 1000 * math.exp(-((math.log2(batch / 64)) ** 2) / 8)
        records.append(record_of(proposal, len(records), rate))
        strategy.tell(records[-1])
    return records


@pytest.mark.parametrize("seed", range(5))
def test_at_02_settings_that_fail_are_left(seed: int) -> None:
    records = searched(seed, lambda p: float(p.configuration["batch"]) > 64, 60)
    settings = [tuple(sorted(r.spec.configuration.items())) for r in records]
    assert len(records) == len(set(settings)) == 60  # none that failed again, none twice
    early = sum(r.status is S.OUT_OF_MEMORY for r in records[:20]) / 20
    late = sum(r.status is S.OUT_OF_MEMORY for r in records[30:]) / 30
    assert late < early


def test_opt_11_two_objectives_go_on_with_half_of_all_trials_cut_short(tmp_path: Path) -> None:
    study, _ = run(
        tmp_path,
        strategy="tpe",
        objectives=("tokens_per_second:max", "request_latency_ms_p99:min"),
        faults=("stop early if chance<0.5 and number>=2",),
        trials=60,
        workers=2,
    )
    ends = [r.status for r in study.records]
    assert len(ends) == 60
    assert 10 < ends.count(S.STOPPED_EARLY) == 60 - ends.count(S.COMPLETE)
    assert study.outcome is not None
    assert study.records[study.outcome.best or 0].status is S.COMPLETE


def space_file(folder: Path, knobs: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\nknobs:\n{knobs}")
    return str(path)


def test_opt_10_steps_are_clean_multiples_with_the_top_in_them(tmp_path: Path) -> None:
    path = space_file(
        tmp_path,
        "  gpu_mem_util:\n    floats: {low: 0.80, high: 0.95, step: 0.05}\n    default: 0.9\n"
        "    scope: [toy]\n"
        "  lr: {floats: {low: 0.1, high: 0.3, step: 0.1}, default: 0.1, scope: [toy]}\n"
        "  tiny: {floats: {low: 0.0, high: 0.7, step: 0.1}, default: 0.0, scope: [toy]}\n",
    )
    space = planned(space_files=(path,)).space
    steps = {
        name: list(members(space.knob(name).domain) or ())
        for name in ("gpu_mem_util", "lr", "tiny")
    }
    assert steps["gpu_mem_util"] == [0.80, 0.85, 0.90, 0.95]
    assert steps["lr"] == [0.1, 0.2, 0.3]
    assert steps["tiny"] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    study, _ = run(
        tmp_path, space_files=(path,), only=("gpu_mem_util", "lr"), strategy="random", trials=50
    )
    found = {
        (r.spec.configuration["gpu_mem_util"], r.spec.configuration["lr"]) for r in study.records
    }
    assert found == {(a, b) for a in steps["gpu_mem_util"] for b in steps["lr"]}
    for number in range(12):
        text = export.text(study, "yaml", trial=number)
        found_there = yaml.safe_load(text)["configuration"]
        assert found_there["lr"] in steps["lr"]
        assert all(
            f"  {name}: {found_there[name]:.3g}\n" in text.replace("0\n", "\n")
            for name in ("lr", "gpu_mem_util")
        )


@pytest.mark.parametrize(
    ("count", "strategy", "told"), [(500, "tpe", 1), (2000, "tpe", 1), (300, "tpe", 0)]
)
def test_opt_16_a_very_wide_space_ends_with_a_notice_of_the_cheaper_way(
    tmp_path: Path, count: int, strategy: str, told: int
) -> None:
    knobs = "".join(
        f"  flag{n}: {{choices: [false, true], default: false, scope: [toy]}}\n"
        for n in range(count)
    )
    made = plan.make(
        Request(
            model="toy",
            runner="toy",
            strategy=strategy,
            space_files=(space_file(tmp_path, knobs),),
            only=("flag*",),
            trials=60,
        ),
        [],
    )
    strategy_made = factory.make(
        strategy, made.space, objectives=made.spec.objectives, budget=made.spec.budget
    )
    seen = set()
    trials = 60 if count == 500 else 8
    for number in range(trials):
        proposal = strategy_made.ask()
        assert proposal is not None
        seen.add(tuple(proposal.configuration.items()))
        strategy_made.tell(record_of(proposal, number, 100.0 + number))
    assert len(seen) == trials
    assert len([text for text in strategy_made.notices() if "cheaper" in text]) == told


@pytest.mark.parametrize(("gpus", "rate"), [(1, 100.0), (8, 12.5), (0, 100.0)])
def test_vllm_02_the_rate_per_gpu_counts_what_the_trial_was_given(gpus: int, rate: float) -> None:
    from autotune.session import Session

    made = planned(objectives=("tokens_per_second_per_gpu:max",))
    session = Session(plan=made, folder=Path(), owner="", emit=lambda _event: None)
    spec = toy(gpus=gpus)
    record = TrialRecord(
        spec=spec,
        status=S.COMPLETE,
        measurement=Measurement(metrics={"tokens_per_second": 100.0}),
        failure=None,
        wall_seconds=1.0,
        started_at="",
        host="",
        folder="",
    )
    assert completed(session, record, {}).metric("tokens_per_second_per_gpu") == rate
    assert made.spec.objectives == (Objective(metric="tokens_per_second_per_gpu", direction="max"),)
