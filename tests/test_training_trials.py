"""Training trials of a tiny decoder on the CPU, each in a process forked as a study forks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import launch, space_file
from autotune.space import SearchSpace
from autotune.trial import AppliedKnob, Fidelity, Status, TrialRecord, TrialSpec
from autotune.zygote import Zygote

SMALL = {"train.seq_len": 32, "train.global_batch_size": 16, "train.micro_batch_size": 4}
FACTS = {
    "device": "cpu",
    "sm": 0,
    "torch": 2.13,
    "world_size": 1,
    "nodes": 1,
    "engine": "own",
    "export": "",
    "host.exclusive": False,
    "cores": 2,
    "memory_bytes": 16 * 2**30,
    "task": "train",
    "has.torchao": True,
}
BF16 = {"precision.compute_dtype": "bf16"}
# Few tokens: a CPU without bf16 products takes long over them.
PURE = {**BF16, "precision.mode": "cast_model", "train.seq_len": 8}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """Torch is imported once for all of these."""
    found = Zygote(("torch", "torch._dynamo"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return space_file.select(
        space_file.load_catalogue(),
        task="train",
        runner="torch",
        context=FACTS,
        settings={},
        only=("*",),
        exclude=(),
        workload={},
    )


def spec_of(space: SearchSpace, changes, extra=(), **fidelity) -> TrialSpec:
    configuration = space.complete({**SMALL, **changes})
    applied = tuple(
        AppliedKnob(
            name=name,
            value=value,
            apply=space.knob(name).apply,
            is_default=value == space.knob(name).default,
        )
        for name, value in configuration.items()
    )
    fidelity = {"depths": (), "timed_steps": 5, **fidelity}
    return TrialSpec(
        study="s",
        number=0,
        task="train",
        runner="torch",
        model=space_file.load_model("tiny"),
        workload={},
        configuration=configuration,
        applied=(*applied, *extra),
        stage="search",
        fidelity=Fidelity(**fidelity),
        seed=0,
        gpus=0,
        timeout_seconds=200.0,
    )


@pytest.fixture
def run(zygote: Zygote, space: SearchSpace, tmp_path: Path):
    def go(changes, extra=(), options=None, **fidelity) -> TrialRecord:
        spec = spec_of(space, changes, extra, **fidelity)
        spec = dataclasses.replace(spec, options=options or {})
        return launch.run(spec, tmp_path / "0000", zygote=zygote)

    return go


def test_a_trial_reports_rate_memory_and_every_active_knob_as_read_back(run):
    record = run({}, quality=True)
    assert record.status is Status.COMPLETE, record.failure
    assert record.measurement is not None
    metrics = record.measurement.metrics
    tokens = 16 * 32
    assert metrics["tokens_per_second"] == pytest.approx(
        tokens / metrics["step_time_ms"] * 1e3, rel=0.01
    )
    assert metrics["peak_memory_bytes"] > 50e6
    assert metrics["loss_at_end"] > 0
    assert record.measurement.telemetry["extrapolated"] is False
    missing = record.spec.configuration.keys() - record.measurement.effective.keys()
    live = [n for n in missing if n.split(".")[0] in ("train", "optim", "precision", "model")]
    assert live == []


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.impl": "fused", "model.fused_qkv": True, "model.fused_gate_up": True},
        {**PURE, "optim.master_weights": True},
        {"ac.mode": "selective_op"},
        {"ac.mode": "full", "loss.impl": "chunked"},
        {"optim.name": "adamw8bit_torchao"},
    ],
    ids=lambda c: " ".join(f"{k}={v}" for k, v in c.items())[:60],
)
def test_settings_train_and_read_back_as_set(run, changes):
    record = run(changes)
    assert record.status is Status.COMPLETE, record.failure
    assert record.measurement is not None
    for name, value in changes.items():
        assert record.measurement.effective[name] == value


def test_ds_03_accumulation_counts_the_whole_optimiser_step(run):
    for micro in (16, 4):
        record = run({"train.micro_batch_size": micro})
        assert record.measurement is not None
        telemetry = record.measurement.telemetry
        assert telemetry["tokens_per_step"] == 16 * 32
        wall = telemetry["window"][1] - telemetry["window"][0]
        steps = len(record.measurement.samples["step_time_ms"])
        outside = 16 * 32 * steps / wall
        assert record.metric("tokens_per_second") == pytest.approx(outside, rel=0.5)


def test_pt_12_weights_that_do_not_move_are_bad_output(run):
    record = run({**PURE, "optim.lr": 1e-5}, quality=True)
    assert record.status is Status.BAD_OUTPUT
    assert record.failure is not None
    assert "learning" in record.failure.reason


def test_a_loss_above_the_reference_is_bad_output(run):
    record = run({}, options={"reference_loss": 0.5}, quality=True)
    assert record.status is Status.BAD_OUTPUT


def knob(name: str, **apply: str) -> AppliedKnob:
    return AppliedKnob(name=name, value=True, apply=apply, is_default=False)


def test_a_knob_that_nothing_reads_fails_its_trial(run):
    record = run({}, extra=(knob("train.misspelt", argument="train.misspelt"),))
    assert record.status is Status.UNSUPPORTED
    assert record.failure is not None
    assert "train.misspelt" in record.failure.reason


def test_an_attribute_that_vanished_upstream_fails_its_trial(run):
    record = run({}, extra=(knob("x.gone", torch="torch.backends.cuda.gone"),))
    assert record.status is Status.UNSUPPORTED
    assert record.failure is not None
    assert "torch.backends.cuda.gone" in record.failure.reason


def test_pt_11_what_the_device_lacks_is_unsupported_not_a_crash(run):
    float8 = AppliedKnob(
        name="float8.enabled",
        value=True,
        apply={"argument": "float8.enabled"},
        is_default=False,
    )
    record = run(BF16, extra=(float8,))
    assert record.status is Status.UNSUPPORTED
    assert record.failure is not None
    assert "float8" in record.failure.reason


def test_a_trial_clearly_behind_the_front_stops_early(zygote, space, tmp_path):
    spec = dataclasses.replace(spec_of(space, {}), front=({"tokens_per_second": 1e9},))
    record = launch.run(spec, tmp_path / "0000", zygote=zygote)
    assert record.status is Status.STOPPED_EARLY
