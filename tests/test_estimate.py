"""The memory and time model, against full-depth runs on one H200 (shared reference, 2026-11)."""

import dataclasses

import pytest

from autotune import estimate, space_file
from autotune.hardware import Gpu, Hardware
from autotune.trial import Fidelity, Measurement, Status, TrialRecord, TrialSpec

GIB = 2**30
H200 = Hardware(
    device="cuda",
    gpus=(Gpu(index=0, uuid="", name="H200", memory_bytes=143771 << 20, sm=90, has_power=True),),
    cores=16,
    memory_bytes=128 * GIB,
    host="",
    exclusive=False,
)
CPU = dataclasses.replace(H200, device="cpu", gpus=(), cores=2, memory_bytes=24 * GIB)
BF16 = {"precision.compute_dtype": "bf16", "precision.mode": "cast_model"}
COMPILED = {**BF16, "optim.impl": "fused", "compile.enabled": True}
# what differs from the default, micro-batch, tokens/s, peak GiB; one micro-batch a step
MEASURED = [
    ({}, 1, 1067, 125.6),
    ({**BF16, "optim.impl": "foreach"}, 1, 8020, 62.8),
    ({**BF16, "optim.impl": "foreach"}, 4, 11084, 84.3),
    ({**BF16, "optim.impl": "fused"}, 4, 11805, 84.3),
    (COMPILED, 4, 13704, 76.8),
    (COMPILED, 7, 14240, 106.0),
    (COMPILED, 8, 14181, 115.6),
    ({**COMPILED, "ac.mode": "full"}, 8, 11450, 53.3),
    ({**COMPILED, "float8.enabled": True}, 8, 20144, 93.0),
]


def predict(changes, micro, whole=None, **more):
    configuration = {
        **changes,
        "train.micro_batch_size": micro,
        "train.global_batch_size": whole or micro,
        "train.seq_len": 2048,
    }
    found = estimate.predict(
        space_file.load_model("llama-7b"),
        configuration,
        task="train",
        workload={},
        hardware=H200,
        **more,
    )
    assert found is not None
    return found


@pytest.mark.parametrize(("changes", "micro", "rate", "peak"), MEASURED)
def test_predictions_are_near_what_full_depth_runs_showed(changes, micro, rate, peak):
    found = predict(changes, micro)
    assert found.memory_bytes / GIB == pytest.approx(peak, rel=0.07)
    assert found.metrics()["tokens_per_second"] == pytest.approx(rate, rel=0.25)


def test_what_surely_does_not_fit_is_rejected_with_both_sizes():
    assert "of the 140 GiB here" in str(estimate.check(predict(BF16, 16, 16), H200))
    assert estimate.check(predict(BF16, 4, 16), H200) is None


def test_gradients_that_are_kept_between_micro_batches_count():
    assert predict(COMPILED, 4, 16).memory_bytes > predict(COMPILED, 4, 4).memory_bytes + 10 * GIB


def test_a_model_that_no_setting_fits_is_judged_by_the_slice_that_runs():
    model = space_file.load_model("llama-70b")
    configuration = {**BF16, "train.micro_batch_size": 1, "train.seq_len": 2048}
    found = estimate.predict(
        model, configuration, task="train", workload={}, hardware=H200, depths=(2, 4)
    )
    assert found is not None
    assert found.memory_bytes > H200.device_memory_bytes
    assert estimate.check(found, H200) is None


def record(measured: float, predicted: float) -> TrialRecord:
    spec = TrialSpec(
        study="s",
        number=0,
        task="train",
        runner="torch",
        model={},
        workload={},
        configuration={},
        applied=(),
        stage="search",
        fidelity=Fidelity(),
        seed=0,
        gpus=1,
        timeout_seconds=1.0,
    )
    metrics = {"peak_memory_bytes": measured, "step_time_ms": measured}
    return TrialRecord(
        spec=spec,
        status=Status.COMPLETE,
        measurement=Measurement(metrics=metrics),
        failure=None,
        wall_seconds=1.0,
        started_at="",
        host="",
        folder="",
        predicted={"raw_peak_memory_bytes": predicted, "raw_step_time_ms": predicted},
    )


def test_measurements_correct_the_model_and_a_model_that_is_wrong_rejects_nothing():
    steady = estimate.fit([record(1.2, 1.0)] * 5)
    assert steady is not None
    assert steady.memory == pytest.approx(1.2)
    assert steady.memory_trusted
    wild = estimate.fit([record(r, 1.0) for r in (0.3, 1.0, 2.5, 0.4, 3.0, 1.0)])
    assert wild is not None
    assert not wild.memory_trusted
    too_big = dataclasses.replace(predict(BF16, 64, 64), memory_trusted=False)
    assert estimate.check(too_big, H200) is None


@pytest.mark.parametrize(
    ("name", "changes", "hardware", "whole"),
    [
        ("llama-7b", BF16, H200, True),
        ("llama-7b", {}, H200, True),
        ("llama-70b", BF16, H200, False),
        ("llama-7b", BF16, CPU, False),
        ("llama-7b", {}, CPU, False),
        ("smollm2-135m", {}, CPU, True),
    ],
)
def test_a_model_is_served_whole_where_its_weights_leave_room(name, changes, hardware, whole):
    found = estimate.serves_whole(space_file.load_model(name), changes, hardware)
    assert found is whole
