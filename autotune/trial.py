"""The vocabulary of one trial: what is asked for, what came back, and how both look as JSON.

Shared by the orchestrator and by the trial programs, so it imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

KnobValue = bool | int | float | str
Configuration = Mapping[str, KnobValue]


class Status(StrEnum):
    """How a trial ended. Only COMPLETE and STOPPED_EARLY carry a usable measurement."""

    COMPLETE = "COMPLETE"
    STOPPED_EARLY = "STOPPED_EARLY"
    INFEASIBLE = "INFEASIBLE"  # rejected before launch: costs no device time
    UNSUPPORTED = "UNSUPPORTED"  # illegal on this device or version, or not read back as set
    OUT_OF_MEMORY = "OUT_OF_MEMORY"  # of the device, whichever library said it
    HOST_OUT_OF_MEMORY = "HOST_OUT_OF_MEMORY"
    TIMED_OUT = "TIMED_OUT"
    GPU_FAULT = "GPU_FAULT"
    CRASHED = "CRASHED"
    NON_FINITE = "NON_FINITE"
    BAD_OUTPUT = "BAD_OUTPUT"  # failed the quality gate
    ABANDONED = "ABANDONED"  # its owner died


# A trial program ends with one of these; any other code (or a signal) is CRASHED unless the log
# says otherwise. Kept apart from 1 and 2, which Python and shells use for faults of their own.
EXIT_CODES: dict[Status, int] = {
    Status.COMPLETE: 0,
    Status.OUT_OF_MEMORY: 70,
    Status.HOST_OUT_OF_MEMORY: 71,
    Status.UNSUPPORTED: 72,
    Status.NON_FINITE: 73,
    Status.BAD_OUTPUT: 74,
    Status.STOPPED_EARLY: 75,
    Status.GPU_FAULT: 76,
    Status.TIMED_OUT: 77,
    Status.CRASHED: 78,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedKnob:
    """One active knob with its value and the way it reaches the trial."""

    name: str
    value: KnobValue
    apply: Mapping[str, str]  # one entry: env | torch | argument | engine -> its target
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How thorough (and dear) a measurement is.

    ``depths`` names the layer slices to measure and extrapolate from; empty means full depth.
    """

    depths: tuple[int, ...] = ()
    timed_steps: int = 5
    profile: bool = False
    quality: bool = False
    fresh_process: bool = False

    @property
    def is_full_depth(self) -> bool:
        return not self.depths


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """Everything a trial program needs to know; written once as spec.json, never edited."""

    study: str
    number: int
    task: str
    runner: str
    model: Mapping[str, Any]  # architecture facts, see search_spaces/models
    workload: Mapping[str, Any]  # e.g. sequence_length_tokens, or the request trace
    configuration: Configuration  # active knobs only, defaults included
    applied: tuple[AppliedKnob, ...]
    stage: str  # default | preset | screening | search | refine | final | ablation | audit
    fidelity: Fidelity
    seed: int
    gpus: int
    timeout_seconds: float
    environ: Mapping[str, str] = field(default_factory=dict)  # the user's own variables
    options: Mapping[str, Any] = field(default_factory=dict)  # of the runner, e.g. its argv
    front: tuple[Mapping[str, float], ...] = ()  # objective values not to fall behind
    label: str = ""  # for people: the preset, the arm of the final stage, the audited knob


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a trial saw. A metric that could not be measured is None, never 0."""

    metrics: Mapping[str, float | None]
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    effective: Mapping[str, KnobValue] = field(default_factory=dict)  # knobs as read back
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds by phase
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial has no usable measurement, in words for a person."""

    reason: str  # one line
    hint: str = ""  # next step, if one is known
    detail: str = ""  # last lines of the log
    signal: str = ""  # e.g. SIGKILL, when the process was ended by one


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A finished trial, as the store keeps it."""

    spec: TrialSpec
    status: Status
    measurement: Measurement | None
    failure: Failure | None
    wall_seconds: float
    started_at: str  # ISO 8601, UTC
    host: str
    folder: str
    predicted: Mapping[str, float] = field(default_factory=dict)  # by estimate, before launch

    def metric(self, name: str) -> float | None:
        """The value of a metric, or None when the trial is not COMPLETE or did not measure it."""
        if self.status is not Status.COMPLETE or self.measurement is None:
            return None
        return self.measurement.metrics.get(name)


_ATOMS = frozenset({str, int, bool, type(None)})


class BadRecord(ValueError):
    """A JSON document is not the spec, measurement or record that it should be."""


def to_json(value: Any) -> Any:
    """Plain JSON data of a vocabulary object; non-finite numbers become None."""
    if type(value) in _ATOMS:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _field_names(type(value))[0]}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def spec_from_json(data: Mapping[str, Any]) -> TrialSpec:
    """Rebuild a spec; raises BadRecord naming the missing or unknown key."""
    fields = checked_fields(TrialSpec, data)
    fields["applied"] = tuple(_applied_from_json(a) for a in fields["applied"])
    fidelity = checked_fields(Fidelity, fields["fidelity"])
    fidelity["depths"] = tuple(fidelity.get("depths", ()))
    fields["fidelity"] = Fidelity(**fidelity)
    fields["front"] = tuple(fields.get("front", ()))
    return TrialSpec(**fields)


def measurement_from_json(data: Mapping[str, Any]) -> Measurement:
    """Rebuild a measurement; raises BadRecord naming the missing or unknown key."""
    fields = checked_fields(Measurement, data)
    samples = fields.get("samples", {})
    fields["samples"] = {name: tuple(values) for name, values in samples.items()}
    fields["notices"] = tuple(fields.get("notices", ()))
    return Measurement(**fields)


def record_from_json(data: Mapping[str, Any]) -> TrialRecord:
    """Rebuild a record; raises BadRecord naming the missing or unknown key."""
    fields = checked_fields(TrialRecord, data)
    fields["spec"] = spec_from_json(fields["spec"])
    fields["status"] = Status(fields["status"])
    if fields["measurement"] is not None:
        fields["measurement"] = measurement_from_json(fields["measurement"])
    if fields["failure"] is not None:
        fields["failure"] = Failure(**checked_fields(Failure, fields["failure"]))
    return TrialRecord(**fields)


def checked_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A dataclass's fields out of a JSON object; BadRecord names a missing or unknown one."""
    if type(data) is not dict and not isinstance(data, Mapping):
        raise BadRecord(f"{kind.__name__} should be an object, not {type(data).__name__}")
    known, required = _field_names(kind)  # type: ignore[arg-type]  # a class is hashable
    if unknown := data.keys() - known:
        raise BadRecord(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    if missing := required - data.keys():
        raise BadRecord(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
    return dict(data)


@functools.cache
def _field_names(kind: type[Any]) -> tuple[dict[str, None], frozenset[str]]:
    """All names in order, and those without a default. A study has a million of these objects."""
    fields = dataclasses.fields(kind)
    required = frozenset(
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    return dict.fromkeys(f.name for f in fields), required


def _applied_from_json(data: Mapping[str, Any]) -> AppliedKnob:
    fields = checked_fields(AppliedKnob, data)
    apply = tuple(fields["apply"].items())
    return _applied_knob(fields["name"], fields["value"], apply, fields["is_default"])


@functools.lru_cache(maxsize=2**16, typed=True)
def _applied_knob(
    name: str, value: KnobValue, apply: tuple[tuple[str, str], ...], is_default: bool
) -> AppliedKnob:
    """The same few knobs come with the same few values in every trial: kept once."""
    return AppliedKnob(name=name, value=value, apply=dict(apply), is_default=is_default)
