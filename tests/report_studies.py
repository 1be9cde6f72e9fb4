"""Fake studies for the report's tests, made of the real vocabulary and written as study.json."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    to_json,
)

GIB = 2**30
KNOBS: dict[str, tuple[tuple[KnobValue, ...], KnobValue, str]] = {
    "precision.compute_dtype": (("fp32", "bf16", "fp16"), "fp32", "dtype of matrix products"),
    "float8.enabled": ((False, True), False, "linear layers in float8"),
    "train.micro_batch_size": ((1, 2, 4, 8, 16), 1, "sequences per forward pass"),
    "compile.scope": (("off", "block", "model"), "off", "what torch.compile sees"),
    "compile.mode": (
        ("default", "max-autotune-no-cudagraphs"),
        "default",
        "effort to tune",
    ),
    "attention.backend": (("auto", "flash", "cudnn", "math"), "auto", "attention kernel"),
    "optim.implementation": (("foreach", "fused", "single"), "foreach", "how the optimizer steps"),
    "activation.checkpointing": (("none", "selective", "full"), "none", "recompute activations"),
    "allocator.expandable_segments": (
        ("unset", True),
        "unset",
        "grow memory segments",
    ),
    "loader.workers": ((0, 1, 2, 4, 8), 0, "processes that prepare batches"),
    "optim.lr": ((1e-5, 3e-5, 1e-4, 3e-4), 1e-4, "learning rate"),
    "inductor.coordinate_descent_tuning": ((False, True), False, "tune tiles one by one"),
}
COMMON: dict[str, KnobValue] = {"precision.compute_dtype": "bf16", "train.micro_batch_size": 4}
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "=cmd|' /C calc'!A0",
    "\u202eright-to-left \u05e9\u05dc\u05d5\u05dd",
    "emoji \U0001f680 & \"quotes\" 'single' `tick` ${x} {{ 7*7 }} $\\alpha$",
    "line\nbreak\u2028separator",
)


def default() -> dict[str, KnobValue]:
    """Every knob at its upstream default."""
    return {name: facts[1] for name, facts in KNOBS.items()}


def tokens_per_second(knobs: Mapping[str, Any], noise: random.Random) -> float:
    """A smooth formula with the order of the real gains."""
    speed = {"fp32": 1067.0, "bf16": 8020.0, "fp16": 7900.0}[knobs["precision.compute_dtype"]]
    speed *= 1 + 0.19 * math.log2(knobs["train.micro_batch_size"]) / 2
    speed *= 1.45 if knobs["float8.enabled"] else 1.0
    speed *= {"off": 1.0, "block": 1.16, "model": 1.13}[knobs["compile.scope"]]
    speed *= {"auto": 1.0, "flash": 1.0, "cudnn": 1.01, "math": 0.8}[knobs["attention.backend"]]
    speed *= {"foreach": 1.0, "fused": 1.065, "single": 0.93}[knobs["optim.implementation"]]
    speed *= {"none": 1.0, "selective": 0.92, "full": 0.8}[knobs["activation.checkpointing"]]
    return speed * noise.lognormvariate(0, 0.004)


def peak_memory(knobs: Mapping[str, Any]) -> float:
    """Bytes: weights and states, plus activations that grow with the micro-batch."""
    states = 118 if knobs["precision.compute_dtype"] == "fp32" else 58
    each = {"none": 7.2, "selective": 4.0, "full": 1.3}[knobs["activation.checkpointing"]]
    each *= 0.8 if knobs["compile.scope"] != "off" else 1.0
    return float((states + each * knobs["train.micro_batch_size"]) * GIB)


def random_configuration(draw: random.Random, extra: int = 0) -> dict[str, KnobValue]:
    """A legal configuration; ``extra`` more knobs that do nothing."""
    chosen = {name: draw.choice(facts[0]) for name, facts in KNOBS.items()}
    if chosen["precision.compute_dtype"] != "bf16":
        chosen["float8.enabled"] = False
    if chosen["compile.scope"] == "off":
        del chosen["compile.mode"]
    for i in range(extra):
        chosen[f"extra.knob_{i:02d}"] = draw.choice((0, 1, 2, 4, 8))
    return chosen


def spec_of(number: int, stage: str, knobs: Mapping[str, KnobValue], **fields: Any) -> TrialSpec:
    """The spec of one trial of the fake study."""
    final = stage in ("final", "ablation")
    defaults = default()
    return TrialSpec(
        study="llama-7b-train",
        number=number,
        task="train",
        runner="torch",
        model={"name": "llama-7b"},
        workload={"train.seq_len": 2048},
        configuration=dict(knobs),
        applied=tuple(
            AppliedKnob(
                name=name,
                value=value,
                apply={"argument": name},
                is_default=defaults.get(name, value) == value,
            )
            for name, value in knobs.items()
        ),
        stage=stage,
        fidelity=fields.pop("fidelity", Fidelity(depths=() if final else (2, 4))),
        seed=137,
        gpus=1,
        timeout_seconds=120.0,
        **fields,
    )


def record_of(
    number: int,
    stage: str,
    knobs: Mapping[str, KnobValue],
    noise: random.Random,
    clock_seconds: float,
    memory_limit: float = 138 * GIB,
) -> TrialRecord:
    """Run the fake device."""
    memory = peak_memory(knobs)
    rate = tokens_per_second(knobs, noise)
    status, failure = _fault(knobs, memory, memory_limit, noise)
    measurement = _measurement(knobs, rate, memory, noise) if status is Status.COMPLETE else None
    compiled = knobs["compile.scope"] != "off"
    started = datetime.datetime(2026, 12, 1, 9, 0, tzinfo=datetime.UTC) + datetime.timedelta(
        seconds=clock_seconds
    )
    return TrialRecord(
        spec=spec_of(number, stage, knobs),
        status=status,
        measurement=measurement,
        failure=failure,
        wall_seconds=0.0 if status is Status.INFEASIBLE else (14.2 if compiled else 6.1),
        started_at=started.isoformat(timespec="milliseconds"),
        host="gpu-1",
        folder=f"runs/llama-7b-train/{number:04d}",
        predicted={
            "tokens_per_second": rate * noise.lognormvariate(0.03, 0.06),
            "peak_memory_bytes": memory * noise.lognormvariate(0, 0.02),
        },
    )


def _fault(
    knobs: Mapping[str, KnobValue], memory: float, limit: float, noise: random.Random
) -> tuple[Status, Failure | None]:
    if memory > limit * 1.15:
        return Status.INFEASIBLE, Failure(
            reason=f"needs about {memory / GIB:.0f} GiB of {limit / GIB:.0f} GiB",
            hint="a smaller micro-batch or checkpointing needs less",
        )
    if memory > limit:
        return Status.OUT_OF_MEMORY, Failure(
            reason=f"CUDA out of memory. Tried to allocate {noise.randint(100, 999)} MiB",
            hint="a smaller micro-batch needs less",
            detail="Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError: CUDA",
        )
    if knobs["precision.compute_dtype"] == "fp16" and noise.random() < 0.3:
        return Status.NON_FINITE, Failure(reason=f"loss is nan at step {noise.randint(1, 9)}")
    if noise.random() < 0.03:
        status = noise.choice((Status.CRASHED, Status.TIMED_OUT, Status.STOPPED_EARLY))
        signal = "SIGSEGV" if status is Status.CRASHED else ""
        return status, Failure(reason=f"ended as {status.lower()}", signal=signal)
    return Status.COMPLETE, None


def _measurement(
    knobs: Mapping[str, KnobValue], rate: float, memory: float, noise: random.Random
) -> Measurement:
    compiled = knobs["compile.scope"] != "off"
    step_ms = 16 * 2048 / rate * 1e3
    share = rate / 20144
    return Measurement(
        metrics={
            "tokens_per_second": rate,
            "step_time_ms": step_ms,
            "peak_memory_bytes": memory,
            "energy_joules_per_token": 640 / rate,
            "ceiling_fraction": 0.62 * share,
            "memory_bandwidth_utilization": 0.3 + 0.2 * noise.random(),
            "validation_loss": 3.2 + 0.01 * noise.random(),
        },
        samples={"step_time_ms": tuple(step_ms * noise.lognormvariate(0, 0.004) for _ in range(7))},
        effective=dict(knobs),
        phases={
            "start": 0.5,
            "build": 1.4,
            "compile": 7.5 if compiled else 0.0,
            "warmup": 1.1,
            "measure": 2.7,
        },
        telemetry={"average_power_watts": 640.0},
        profile={
            "label": "compute-bound",
            "wall_ms": 96.0,
            "milliseconds": {"matmul": 61.0, "attention": 14.0, "elementwise": 17.0, "idle": 4.0},
        }
        if share > 0.9
        else None,
    )


def study_spec(**fields: Any) -> StudySpec:
    """The spec of the fake study; any field can be replaced."""
    base = StudySpec(
        name="llama-7b-train",
        model_name="llama-7b",
        model={"name": "llama-7b", "num_hidden_layers": 32},
        task="train",
        runner="torch",
        workload={"train.seq_len": 2048, "train.global_batch_size": 16},
        objectives=(
            Objective(metric="tokens_per_second", direction="max"),
            Objective(metric="peak_memory_bytes", direction="min"),
        ),
        limits=(Limit(metric="peak_memory_bytes", op="<=", value=130.0 * GIB),),
        budget=Budget(seconds=900.0, trials=None),
        strategy="auto",
        seed=137,
        workers=1,
        gpus_per_trial=1,
        price_usd_per_gpu_hour=None,
        space={
            "name": "train",
            "knobs": [
                {"name": name, "default": facts[1], "summary": facts[2]}
                for name, facts in KNOBS.items()
            ],
        },
        presets=({"name": "common_practice", "configuration": {**default(), **COMMON}},),
        fingerprint={
            "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-5a1c", "memory_bytes": 150754820096}],
            "driver": "580.65",
            "versions": {"torch": "2.11.0+cu130", "triton": "3.6.0", "autotune": "0.1.0"},
            "git": "c77eeda",
            "python": "3.12.3",
            "host": "gpu-1",
            "command": "autotune tune llama-7b --task train --budget 15m --seed 137",
            "ceilings": {"bf16_matmul": 796e12, "fp8_matmul": 1466e12, "copy_bytes": 4.25e12},
        },
        created_at="2026-12-01T09:00:00+00:00",
    )
    return dataclasses.replace(base, **fields)


def search(count: int, *, seed: int = 1, extra: int = 0) -> list[TrialRecord]:
    """Default, common practice, then random settings with a drift towards good ones."""
    draw = random.Random(seed)
    plan: list[tuple[str, dict[str, KnobValue]]] = [
        ("default", {**default(), **{f"extra.knob_{i:02d}": 0 for i in range(extra)}}),
        ("preset", {**default(), **COMMON, **{f"extra.knob_{i:02d}": 0 for i in range(extra)}}),
    ]
    while len(plan) < count:
        knobs = random_configuration(draw, extra)
        late = len(plan) > count // 3
        if late and draw.random() < 0.7:
            knobs |= {"precision.compute_dtype": "bf16", "optim.implementation": "fused"}
            knobs |= {"compile.scope": "block", "compile.mode": "default"}
            knobs["float8.enabled"] = draw.random() < 0.6
        share = len(plan) / count
        stage = "screening" if share < 0.3 else ("search" if share < 0.85 else "refine")
        plan.append((stage, knobs))
    return [
        record_of(i, stage, knobs, draw, clock_seconds=i * 13.0)
        for i, (stage, knobs) in enumerate(plan[:count])
    ]


def interval(values: Sequence[float], spread: float = 0.006) -> Interval:
    """A plausible interval around the median."""
    median = statistics.median(values)
    return Interval(
        median=median, low=median * (1 - spread), high=median * (1 + spread), n=len(values)
    )


def finished(count: int = 120, *, seed: int = 1, extra: int = 0, **fields: Any) -> Study:
    """A study with its final stage, ablation and outcome."""
    records, draw = search(count, seed=seed, extra=extra), random.Random(seed + 1)
    spec = study_spec(**fields)
    study = Study(spec=spec, records=tuple(records))
    goal = spec.objectives[0]
    able = [r for r in records if study.is_feasible(r)]
    winner = min(able, key=lambda r: goal.sign * (r.metric(goal.metric) or 0.0))
    best = dict(winner.spec.configuration)
    extras = {name: value for name, value in best.items() if name.startswith("extra.")}
    common: dict[str, KnobValue] = {**default(), **COMMON, **extras}
    arms = {"best": best, "common_practice": common, "default": {**default(), **extras}}
    measured: dict[str, list[TrialRecord]] = {name: [] for name in arms}
    for _ in range(5):
        for name, knobs in arms.items():
            number = len(records)
            record = record_of(number, "final", knobs, draw, number * 13.0, 400 * GIB)
            spec_of_arm = dataclasses.replace(record.spec, label=name)
            records.append(dataclasses.replace(record, spec=spec_of_arm))
            measured[name].append(records[-1])
    changed = {k: v for k, v in best.items() if common.get(k) != v}
    return Study(
        spec=spec,
        records=tuple(records),
        outcome=_outcome(spec, winner, measured, changed, draw),
        state="finished",
    )


def _outcome(
    spec: StudySpec,
    winner: TrialRecord,
    measured: Mapping[str, Sequence[TrialRecord]],
    changed: Mapping[str, KnobValue],
    draw: random.Random,
) -> Outcome:
    goal = spec.objectives[0]
    metrics = ("tokens_per_second", "step_time_ms", "peak_memory_bytes", "energy_joules_per_token")

    def intervals(name: str) -> dict[str, Interval]:
        kept = [r for r in measured[name] if r.status is Status.COMPLETE]
        return {m: interval([r.metric(m) or math.nan for r in kept]) for m in metrics}

    best = intervals("best")

    def comparison(name: str) -> Comparison:
        ratio = (best[goal.metric].median / intervals(name)[goal.metric].median) ** -goal.sign
        return Comparison(baseline=name, gain=interval([ratio] * 5, 0.009), verdict="better")

    configuration = dict(winner.spec.configuration)
    contributions = []
    for knob, value in changed.items():
        without = {**configuration, knob: {**default(), **COMMON}[knob]}
        without.setdefault("compile.mode", "default")
        gain = (best["tokens_per_second"].median) / tokens_per_second(without, draw)
        contributions.append(
            Contribution(
                knob=knob,
                value=value,
                baseline_value=without[knob],
                gain=interval([gain] * 3, 0.01),
                kept=gain > 1.006,
            )
        )
    comparisons = tuple(comparison(name) for name in ("default", "common_practice"))
    return Outcome(
        best=winner.spec.number,
        configuration=configuration,
        changed=changed,
        changed_from_upstream={k: v for k, v in configuration.items() if default().get(k) != v},
        measured=best,
        baselines={name: intervals(name) for name in ("default", "common_practice")},
        comparisons=comparisons,
        contributions=tuple(contributions),
        verdict=f"{comparisons[1].gain.median:.2f} x common practice, proven by 5 repeats",
        stopped_because="the budget of 15 min was used up",
    )


def unfinished(done: int = 7, total: int = 20) -> Study:
    """A study that was killed on its way."""
    spec = study_spec(budget=Budget(seconds=None, trials=total))
    return Study(spec=spec, records=tuple(search(done)), state="interrupted")


def hopeless(count: int = 8) -> Study:
    """Nothing fits: every trial is over the limit or out of memory."""
    spec = study_spec(limits=(Limit(metric="peak_memory_bytes", op="<=", value=float(GIB)),))
    outcome = Outcome(best=None, verdict="nothing was feasible", stopped_because="8 of 8 trials")
    return Study(spec=spec, records=tuple(search(count)), outcome=outcome, state="finished")


def hostile() -> Study:
    """Every text that comes from outside tries to break out of the page."""
    base = finished(40)
    spec = dataclasses.replace(
        base.spec,
        name=HOSTILE[0],
        model_name=HOSTILE[1],
        environ={"HF_TOKEN": "hf_geheim", "NOTE": HOSTILE[2]},
        fingerprint={HOSTILE[3]: HOSTILE[4], "command": HOSTILE[0]},
    )
    records = []
    for i, record in enumerate(base.records):
        text = HOSTILE[i % len(HOSTILE)]
        knobs = {**record.spec.configuration, "hostile.knob": text, f"{HOSTILE[1]}.name": i % 5}
        failure = record.failure and Failure(reason=text, hint=text, detail=text, signal=text)
        records.append(
            dataclasses.replace(
                record,
                spec=dataclasses.replace(record.spec, configuration=knobs),
                failure=failure,
                folder=text,
                host=text,
            )
        )
    outcome = base.outcome
    assert outcome is not None
    changed = {**outcome.changed, "hostile.knob": HOSTILE[0], HOSTILE[1]: HOSTILE[4]}
    outcome = dataclasses.replace(outcome, changed=changed, verdict=HOSTILE[0])
    return dataclasses.replace(base, spec=spec, records=tuple(records), outcome=outcome)


def with_bad_numbers() -> dict[str, Any]:
    """Plain data with null, NaN, infinite and missing metrics, as a careless writer leaves it."""
    data: dict[str, Any] = to_json(finished(40))
    bad = (None, math.nan, math.inf, -math.inf)
    complete = [r for r in data["records"] if r["status"] == "COMPLETE"]
    for value, record in zip(bad, complete[2:], strict=False):
        record["measurement"]["metrics"]["tokens_per_second"] = value
    del complete[8]["measurement"]["metrics"]["peak_memory_bytes"]
    return data


def write(study: Study | Mapping[str, Any], path: Path) -> Path:
    """As the orchestrator writes study.json (bad numbers pass, as some writer might let them)."""
    data = to_json(study) if isinstance(study, Study) else study
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def audited() -> Study:
    """Baselines and one trial per knob, as the knob audit leaves them; one is not read back."""
    draw, records = random.Random(3), []
    base: dict[str, KnobValue] = {**default(), **COMMON}
    cases: list[tuple[str, dict[str, KnobValue]]] = [("baseline", base)]
    cases += [
        (name, {**base, name: next(v for v in facts[0] if v != base[name])})
        for name, facts in KNOBS.items()
        if name not in ("precision.compute_dtype", "compile.mode")
    ]
    for number, (label, knobs) in enumerate([*cases, ("baseline", base)]):
        record = record_of(number, "audit", knobs, draw, number * 13.0, 400 * GIB)
        record = dataclasses.replace(record, spec=dataclasses.replace(record.spec, label=label))
        if label == "loader.workers" and record.measurement is not None:
            deaf = {**record.measurement.effective, label: 0}
            measured = dataclasses.replace(record.measurement, effective=deaf)
            record = dataclasses.replace(record, measurement=measured)
        records.append(record)
    return Study(spec=study_spec(), records=tuple(records), state="finished")
