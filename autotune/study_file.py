"""study.json read back: the exact reverse of ``to_json(Study)``."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.study import Interval, Outcome, Study, StudySpec
from autotune.trial import BadRecord, TrialRecord, checked_fields, record_from_json


def load_study(path: Path) -> Study:
    """The study of a study.json; BadRecord says in one line what is wrong with the file."""
    try:
        return study_from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadRecord(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # bad JSON, bad UTF-8, or a BadRecord
        raise BadRecord(f"{path} is not a study.json: {error}") from None


def study_from_json(data: Mapping[str, Any]) -> Study:
    """Rebuild a study; raises BadRecord naming what is missing, unknown or of the wrong kind."""
    return typing.cast(Study, _guarded(Study, data))


def study_spec_from_json(data: Mapping[str, Any]) -> StudySpec:
    """Rebuild what was asked; raises BadRecord."""
    return typing.cast(StudySpec, _guarded(StudySpec, data))


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Rebuild what was concluded; raises BadRecord."""
    return typing.cast(Outcome, _guarded(Outcome, data))


def _guarded(kind: type[Any], data: Mapping[str, Any]) -> Any:
    try:
        return _rebuilt(kind, data)
    except BadRecord:
        raise
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise BadRecord(f"a value is of the wrong kind: {error}") from None


def _rebuilt(kind: Any, value: Any) -> Any:
    """A value as its type hint says, so that a field added to the vocabulary needs nothing here."""
    if kind is TrialRecord:
        return record_from_json(value)
    if kind is Interval:
        return _interval(value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = checked_fields(typing.cast(type[Any], kind), value)
        made: Any = kind
        return made(**{name: _rebuilt(hints[name], item) for name, item in fields.items()})
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return tuple(_rebuilt(inner[0], item) for item in value)
    if typing.get_origin(kind) is Mapping:
        return {name: _rebuilt(inner[1], item) for name, item in value.items()}
    if value is not None and (known := [k for k in inner if dataclasses.is_dataclass(k)]):
        return _rebuilt(known[0], value)  # X | None
    return value


def _interval(data: Mapping[str, Any]) -> Interval:
    """JSON has no infinity: a bound written as null is an open one."""
    fields = checked_fields(Interval, data)
    for name, open_end in (("median", math.nan), ("low", -math.inf), ("high", math.inf)):
        fields[name] = open_end if fields[name] is None else fields[name]
    return Interval(**fields)
