"""When a study stops because the machine, not the configurations, is at fault."""

from autotune.breaker import alike_failures, verdict, wants_canary
from autotune.trial import Failure, Fidelity, Measurement, Status, TrialRecord, TrialSpec


def record(batch: int, status: Status, reason: str = "", stage: str = "search") -> TrialRecord:
    spec = TrialSpec(
        study="s",
        number=batch,
        task="train",
        runner="toy",
        model={},
        workload={},
        configuration={"batch": batch},
        applied=(),
        stage=stage,
        fidelity=Fidelity(),
        seed=0,
        gpus=0,
        timeout_seconds=1.0,
    )
    complete = status is Status.COMPLETE
    return TrialRecord(
        spec=spec,
        status=status,
        measurement=Measurement(metrics={"tokens_per_second": 1.0}) if complete else None,
        failure=None if complete else Failure(reason=reason),
        wall_seconds=1.0,
        started_at="",
        host="",
        folder="",
    )


def crashes(count: int, reason: str = "libcuda.so: cannot open {}") -> list[TrialRecord]:
    return [record(i, Status.CRASHED, reason.format(i)) for i in range(count)]


def test_unrelated_configurations_that_fail_alike_from_the_start_stop_the_study():
    assert verdict(crashes(4)) is None
    assert "failed alike" in (verdict(crashes(5)) or "")


def test_the_numbers_in_a_message_do_not_make_it_another_failure():
    shared = alike_failures(crashes(5, "worker 0x{0}f died after {0}.5 s in /tmp/a/{0}"))
    assert shared is not None


def test_a_hard_region_does_not_stop_a_study_that_has_succeeded_elsewhere():
    records = [record(100, Status.COMPLETE), *crashes(5)]
    assert verdict(records) is None
    assert wants_canary(records)


def test_a_default_that_now_fails_like_the_others_stops_the_study():
    records = [record(100, Status.COMPLETE, stage="default"), *crashes(5)]
    records.append(record(101, Status.CRASHED, "libcuda.so: cannot open 9", stage="canary"))
    assert "failed alike" in (verdict(records) or "")


def test_failures_of_different_kinds_are_a_hard_space_not_a_broken_machine():
    mixed = [record(i, Status.CRASHED, f"cause {'abcde'[i]}") for i in range(5)]
    assert verdict(mixed) is None


def test_repeats_of_one_configuration_prove_nothing():
    assert verdict([record(1, Status.CRASHED, "x")] * 9) is None


def test_configurations_that_the_model_rejects_never_stop_a_study():
    assert verdict([record(i, Status.INFEASIBLE, "too big") for i in range(9)]) is None
