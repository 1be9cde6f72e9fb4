"""One driver's hold on a study: turning proposals into specs, and records into what is stored."""

from __future__ import annotations

import dataclasses
import datetime
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import estimate
from autotune.plan import Plan
from autotune.sampler.protocol import Proposal
from autotune.space import nearest
from autotune.study import DEFAULT_TIMEOUT_SECONDS, Objective
from autotune.trial import (
    AppliedKnob,
    Failure,
    Fidelity,
    Status,
    TrialRecord,
    TrialSpec,
)

UPSTREAM = "upstream_default"
PLAYBOOK = "playbook"  # stage of the trials that judge a claim
# A CPU page-faults gigabytes of gradients and optimizer states in: every layer costs seconds there.
_SLICES = {"cpu": (0, 1), "cuda": (2, 4)}
_RISKY = ("numerics", "quality")
_OVERTIME_SECONDS = 3.0  # that a trial may run over the study's time budget, at most
_OVERTIME_SHARE = 0.05  # of the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a person may want to see while a study runs."""

    kind: str  # notice | started | finished | stage
    text: str = ""
    record: TrialRecord | None = None
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a driver needs to launch and keep trials; nothing in it changes."""

    plan: Plan
    folder: Path  # runs/STUDY
    owner: str
    emit: Callable[[Event], None]
    deadline: float | None = None  # monotonic; no trial runs far beyond it

    def trial_folder(self, number: int) -> Path:
        """runs/STUDY/0017"""
        return self.folder / f"{number:04d}"


def slice_depths(plan: Plan) -> tuple[int, ...]:
    """The two depths to extrapolate from, or () where the whole model is no deeper."""
    depths = _SLICES[plan.hardware.device]
    layers = int(plan.spec.model.get("num_hidden_layers", 0))
    return depths if layers > depths[-1] else ()


def spec_of(
    session: Session,
    number: int,
    proposal: Proposal,
    records: Sequence[TrialRecord],
) -> TrialSpec:
    """The frozen spec of one trial."""
    plan, asked = session.plan, session.plan.spec
    final = proposal.stage in ("final", "ablation")
    depths = () if _goes_full_depth(plan, proposal) else slice_depths(plan)
    # A loss means something beside one of the same depth only: the gate judges slices, or a model
    # that is measured whole throughout.
    gated = bool(depths) or not slice_depths(plan)
    return TrialSpec(
        study=asked.name,
        number=number,
        task=asked.task,
        runner=asked.runner,
        model=asked.model,
        workload=_workload(asked.workload, held_out=final),
        configuration=dict(proposal.configuration),
        applied=_applied(session, proposal),
        stage=proposal.stage,
        fidelity=Fidelity(
            depths=depths,
            profile=proposal.profile,
            quality=gated and (final or proposal.stage == PLAYBOOK or _is_risky(session, proposal)),
        ),
        seed=asked.seed,
        gpus=asked.gpus_per_trial,
        timeout_seconds=_timeout(session, proposal),
        environ=asked.environ,
        options={**asked.options, **_reference(records)},
        label=proposal.label,
    )


def prediction(session: Session, spec: TrialSpec, fit: estimate.Calibration | None) -> Any:
    """What the estimate says of a spec, or None for a runner that it knows nothing about."""
    if spec.runner not in ("torch", "vllm"):
        return None
    return estimate.predict(
        spec.model,
        spec.configuration,
        task=spec.task,
        workload=spec.workload,
        hardware=session.plan.hardware,
        depths=spec.fidelity.depths,
        calibration=fit,
    )


def rejected(session: Session, spec: TrialSpec, reason: str, predicted: Any) -> TrialRecord:
    """The record of a trial that the estimate refused: it cost nothing."""
    return TrialRecord(
        spec=spec,
        status=Status.INFEASIBLE,
        measurement=None,
        failure=Failure(reason=reason, hint="a smaller micro-batch or checkpointing needs less"),
        wall_seconds=0.0,
        started_at=now(),
        host=socket.gethostname(),
        folder=str(session.trial_folder(spec.number)),
        predicted=predicted,
    )


def completed(session: Session, record: TrialRecord, predicted: Mapping[str, float]) -> TrialRecord:
    """The record with what follows from it: per-GPU rate, dollars, prediction, relative folder."""
    measurement = record.measurement
    if record.status is Status.TIMED_OUT and _was_cut(record, session):
        failure = Failure(reason="the study's time budget ended before this trial did")
        record = dataclasses.replace(record, status=Status.STOPPED_EARLY, failure=failure)
    if measurement is not None:
        metrics = dict(measurement.metrics)
        metrics |= _derived(metrics, record.spec, session.plan.spec.price_usd_per_gpu_hour)
        measurement = dataclasses.replace(measurement, metrics=metrics)
    record = dataclasses.replace(record, measurement=measurement, predicted=dict(predicted))
    return _with_objectives(record, session.plan.spec.objectives)


def _with_objectives(record: TrialRecord, objectives: Sequence[Objective]) -> TrialRecord:
    """A trial that did not measure what is wanted has failed, with the reason it gave."""
    missing = [o.metric for o in objectives if record.metric(o.metric) is None]
    if record.status is not Status.COMPLETE or record.measurement is None or not missing:
        return record
    name, found = missing[0], record.measurement.metrics
    said = [text for text in record.measurement.notices if text.startswith(f"{name} is null")]
    known = ", ".join(sorted(n for n, v in found.items() if v is not None)) or "nothing"
    reason = said[0] if said else f"objective {name} was not measured"
    hint = "" if name in found else f"the trial reported {known}{nearest(name, found)}"
    failure = Failure(reason=reason, hint=hint)
    return dataclasses.replace(record, status=Status.NON_FINITE, failure=failure)


def _was_cut(record: TrialRecord, session: Session) -> bool:
    """Whether the study's end, not the trial's own time-out, ended it: no word on its knobs."""
    return record.spec.timeout_seconds < session.plan.spec.budget.trial_timeout_seconds


def now() -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _derived(
    metrics: Mapping[str, float | None], spec: TrialSpec, price: float | None
) -> dict[str, float | None]:
    rate = metrics.get("output_tokens_per_second") or metrics.get("tokens_per_second")
    if not rate:
        return {}
    # The count is what the trial was given; a CPU trial occupies its host as one device.
    devices = max(1, spec.gpus)
    derived: dict[str, float | None] = {"tokens_per_second_per_gpu": rate / devices}
    if price is not None:
        derived["dollars_per_million_tokens"] = devices * price / 3600 / rate * 1e6
    return derived


def _applied(session: Session, proposal: Proposal) -> tuple[AppliedKnob, ...]:
    space = session.plan.space
    knobs = {knob.name: knob for knob in space.knobs}
    return tuple(
        AppliedKnob(
            name=name,
            value=value,
            apply=knobs[name].apply,
            is_default=value == knobs[name].default,
        )
        for name, value in proposal.configuration.items()
    )


def _is_risky(session: Session, proposal: Proposal) -> bool:
    """Whether a change could alter what the model learns or says; the default is the reference."""
    if proposal.stage == "default":
        return True
    space = session.plan.space
    changed = space.changed(proposal.configuration)
    return any(space.knob(name).risk in _RISKY for name in changed if name not in space.fixed)


def _reference(records: Sequence[TrialRecord]) -> dict[str, float]:
    """The loss that later trials must agree with: that of the default."""
    for record in records:
        if record.spec.stage == "default" and (loss := record.metric("loss_at_end")) is not None:
            return {"reference_loss": loss}
    return {}


def _workload(workload: Mapping[str, Any], *, held_out: bool) -> Mapping[str, Any]:
    """Final numbers come from a request trace that the search never saw."""
    if held_out and "trace_seed" in workload:
        return {**workload, "trace_seed": int(workload["trace_seed"]) + 1_000_003}
    return workload


def _goes_full_depth(plan: Plan, proposal: Proposal) -> bool:
    """Whether to measure the whole model: asked for, and held by the device by the estimate.

    Never the upstream defaults: fp32 at batch 1 takes half a minute a step at full depth, for a
    baseline that nobody uses. Its extrapolated figure is marked as such.
    """
    if not proposal.full_depth or proposal.label == UPSTREAM:
        return False
    if plan.spec.runner not in ("torch", "vllm"):
        return True
    if plan.spec.task == "serve":
        return estimate.serves_whole(plan.spec.model, proposal.configuration, plan.hardware)
    predicted = estimate.predict(
        plan.spec.model,
        proposal.configuration,
        task=plan.spec.task,
        workload=plan.spec.workload,
        hardware=plan.hardware,
    )
    return estimate.check(predicted, plan.hardware) is None


def _timeout(session: Session, proposal: Proposal) -> float:
    """Full depth builds and steps as much longer as the model is deeper, within reason."""
    budget = session.plan.spec.budget
    longest = budget.trial_timeout_seconds
    if longest == DEFAULT_TIMEOUT_SECONDS:  # else it is the user's own word, for every trial
        if proposal.full_depth and slice_depths(session.plan):
            longest *= 3
        elif proposal.stage == "default":
            longest *= 2  # the slowest setting of all, and the one that must be known
    if session.deadline is None:
        return longest
    overtime = min(_OVERTIME_SECONDS, _OVERTIME_SHARE * (budget.seconds or 0.0))
    return min(longest, max(1.0, session.deadline - time.monotonic() + overtime))
