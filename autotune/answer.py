"""measurement.json read with suspicion: what a trial program says of itself, or why not."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.trial import (
    BadRecord,
    Failure,
    Measurement,
    Status,
    checked_fields,
    measurement_from_json,
)

NAME = "measurement.json"
_LARGEST_BYTES = 64 << 20
_USABLE = (Status.COMPLETE, Status.STOPPED_EARLY)
# What only the orchestrator can know.
_NOT_FOR_A_TRIAL_TO_SAY = (Status.INFEASIBLE, Status.ABANDONED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a trial says that it ended."""

    status: Status
    measurement: Measurement | None
    failure: Failure | None


def read(folder: Path) -> Answer | None:
    """The trial's answer; None when it gave none. Raises BadRecord naming key and type."""
    path = folder / NAME
    if not path.exists():
        return None
    data = _load(path)
    fields = {**_EMPTY, **data} if isinstance(data, dict) else data
    try:
        if unknown := fields.keys() - _EMPTY.keys():
            raise BadRecord(f"has no field {', '.join(sorted(map(str, unknown)))}")
        status = Status(fields["status"])
        failure = fields["failure"] and Failure(**checked_fields(Failure, fields["failure"]))
        measurement = fields["measurement"] and _measurement(fields["measurement"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadRecord(f"{NAME}: {error}") from None
    if status in _NOT_FOR_A_TRIAL_TO_SAY:
        raise BadRecord(f"{NAME}: {status} is not for a trial to say")
    return _consistent(status, measurement or None, failure or None)


_EMPTY = {"status": None, "measurement": None, "failure": None}


def _load(path: Path) -> Any:
    try:
        if not path.is_file():  # a pipe would never end
            raise BadRecord(f"{NAME} is not a file")
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadRecord(f"{NAME} is larger than {_LARGEST_BYTES >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, BadRecord):
            raise
        raise BadRecord(f"{NAME} cannot be read: {error}") from None


def _measurement(data: Mapping[str, Any]) -> Measurement:
    raw = {**data}
    raw["metrics"] = _numbers("metrics", data.get("metrics"), may_be_null=True)
    raw["phases"] = _numbers("phases", data.get("phases", {}))
    samples = _mapping("samples", data.get("samples", {}))
    raw["samples"] = {
        name: tuple(_numbers(f"samples.{name}", dict(enumerate(_list(name, values)))).values())
        for name, values in samples.items()
    }
    for name in ("effective", "telemetry"):
        _mapping(name, data.get(name, {}))
    if not all(isinstance(n, str) for n in _list("notices", data.get("notices", []))):
        raise BadRecord("notices should be texts")
    return measurement_from_json(raw)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRecord(f"{name} is a {type(value).__name__}, not an object")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadRecord(f"{name} is a {type(value).__name__}, not a list")
    return value


def _numbers(name: str, values: Any, *, may_be_null: bool = False) -> dict[Any, Any]:
    """Plain numbers, by name; true and false count as 1 and 0."""
    found: dict[Any, float | None] = {}
    for key, value in _mapping(name, values).items():
        if value is None and may_be_null:
            found[key] = None
        elif isinstance(value, int | float):
            found[key] = int(value) if isinstance(value, bool) else value
            float(value)  # an integer that no float can hold raises OverflowError
        else:
            raise BadRecord(f"{name}: {key} is a {type(value).__name__}, not a number")
    return found


def _consistent(status: Status, measurement: Measurement | None, failure: Failure | None) -> Answer:
    """A usable measurement is there and finite, a failure has a reason, and never both."""
    if status not in _USABLE:
        failure = failure or Failure(reason=f"the trial says {status} and no more")
        return Answer(status=status, measurement=None, failure=failure)
    if measurement is None:
        if status is Status.STOPPED_EARLY:
            failure = failure or Failure(reason="the trial stopped itself early")
            return Answer(status=status, measurement=None, failure=failure)
        raise BadRecord(f"{NAME}: {status} without a measurement")
    if bad := list(_not_finite(measurement)):
        failure = Failure(reason=f"{bad[0]}", hint="such a value has no place in a ranking")
        return Answer(status=Status.NON_FINITE, measurement=None, failure=failure)
    return Answer(status=status, measurement=measurement, failure=failure)


def _not_finite(measurement: Measurement) -> Iterable[str]:
    groups = {
        "": measurement.metrics,
        "phase ": measurement.phases,
    }
    for what, values in groups.items():
        for name, value in values.items():
            if value is not None and not math.isfinite(value):
                yield f"{what}{name} is {value}"
    for name, samples in measurement.samples.items():
        if not all(math.isfinite(v) for v in samples):
            yield f"a sample of {name} is not finite"
