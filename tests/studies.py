"""Made-up studies and records for tests of what keeps, shows or exports them."""

from __future__ import annotations

from collections.abc import Mapping

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
from autotune.trial import (
    AppliedKnob,
    Failure,
    Fidelity,
    KnobValue,
    Measurement,
    Status,
    TrialRecord,
    TrialSpec,
)

GAIN = Interval(median=1.8, low=1.7, high=1.9, n=5)


def a_spec(name: str = "s1", *, trials: int | None = 20, seed: int = 0) -> StudySpec:
    return StudySpec(
        name=name,
        model_name="tiny",
        model={"name": "tiny"},
        task="train",
        runner="toy",
        workload={},
        objectives=(Objective(metric="tokens_per_second", direction="max"),),
        limits=(Limit(metric="peak_memory_bytes", op="<=", value=8e10),),
        budget=Budget(seconds=None, trials=trials),
        strategy="auto",
        seed=seed,
        workers=1,
        gpus_per_trial=0,
        price_usd_per_gpu_hour=None,
        space={"name": "toy"},
        presets=({"name": "common_practice", "configuration": {"batch": 4}},),
        created_at="2026-12-01T08:00:00+00:00",
    )


def applied(configuration: Mapping[str, KnobValue], kind: str = "argument") -> list[AppliedKnob]:
    """Every knob applied in one way, none at its default."""
    return [
        AppliedKnob(name=name, value=value, apply={kind: name}, is_default=False)
        for name, value in configuration.items()
    ]


def a_record(
    number: int,
    status: Status = Status.COMPLETE,
    *,
    study: str = "s1",
    rate: float = 10.0,
    knobs: tuple[AppliedKnob, ...] | None = None,
) -> TrialRecord:
    complete = status is Status.COMPLETE
    if knobs is None:
        knobs = tuple(applied({"batch": 8, "prec": "bf16", "compile": False}))
    return TrialRecord(
        spec=TrialSpec(
            study=study,
            number=number,
            task="train",
            runner="toy",
            model={"name": "tiny"},
            workload={"seq_len": 128},
            configuration={knob.name: knob.value for knob in knobs},
            applied=knobs,
            stage="search",
            fidelity=Fidelity(depths=(1, 2)),
            seed=1,
            gpus=0,
            timeout_seconds=10.0,
            front=({"tokens_per_second": 1.0},),
        ),
        status=status,
        measurement=Measurement(
            metrics={
                "tokens_per_second": rate,
                "peak_memory_bytes": 1e9,
                "average_power_watts": None,
            },
            samples={"step_time_ms": (1.0, 1.5)},
            telemetry={"sm_clock_mhz": [1980, 1975]},
            notices=("a notice",),
        )
        if complete
        else None,
        failure=None if complete else Failure(reason="no room", signal="SIGKILL"),
        wall_seconds=1.5,
        started_at="2026-12-01T00:00:00+00:00",
        host="here",
        folder=f"runs/{study}/{number:04d}",
    )


def an_outcome() -> Outcome:
    contribution = Contribution(knob="batch", value=8, baseline_value=1, gain=GAIN, kept=True)
    return Outcome(
        best=0,
        configuration={"batch": 8},
        changed={"batch": 8},
        changed_from_upstream={"batch": 8},
        measured={"tokens_per_second": GAIN},
        baselines={"default": {"tokens_per_second": GAIN}},
        comparisons=(Comparison(baseline="default", gain=GAIN, verdict="better"),),
        contributions=(contribution,),
        neighbours=(contribution,),
        verdict="better",
        stopped_because="all trials done",
    )


def a_study() -> Study:
    return Study(
        spec=a_spec(),
        records=(a_record(0), a_record(1, Status.OUT_OF_MEMORY)),
        outcome=an_outcome(),
        state="finished",
    )
